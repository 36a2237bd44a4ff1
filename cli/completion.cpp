// nibble completion SHELL: a completion script, made from the subcommands and options as they are registered.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/options/codec_option.hpp"
#include "cli/options/options.hpp"
#include "cli/terminal/terminal.hpp"

namespace nibble::cli {
namespace {

// What is offered for a value.
struct Offer {
  bool files = false;
  std::vector<std::string> words;
};

struct KnownOption {
  std::string name;  // "--to"
  std::string help;
  bool takes_value = false;
  Offer offer;
};

struct Command {
  std::string name;
  std::string summary;
  std::vector<KnownOption> options;
  Offer argument;
};

// Words if an option takes only words or codecs; file names if its type is FILE or if it is an argument instead of an
// option. Nothing for numbers, sizes and patterns.
Offer offer_of(const CLI::Option& option) {
  Offer offer{.files = false, .words = choices_of(option)};
  if (option.get_type_name() == codec_type) offer.words = codec_words();
  offer.files = offer.words.empty() && (option.get_positional() || option.get_type_name() == file_type ||
                                        option.get_type_name() == directory_type);
  return offer;
}

std::vector<Command> list_commands(CLI::App& app) {
  std::vector<Command> known;
  for (CLI::App* const command : app.get_subcommands([](CLI::App*) { return true; })) {
    Command entry{command->get_name(), command->get_description(), {}, {}};
    for (const CLI::Option* const option : command->get_options()) {
      const Offer offer = offer_of(*option);
      for (const std::string& name : option->get_lnames())
        entry.options.push_back({"--" + name, option->get_description(), option->get_items_expected_max() > 0, offer});
      if (option->get_positional()) entry.argument = offer;
    }
    known.push_back(std::move(entry));
  }
  return known;
}

std::string joined_names(const std::vector<Command>& known) {
  std::string names;
  for (const Command& command : known) names += (names.empty() ? "" : " ") + command.name;
  return names;
}

// A single-quoted word, valid in all three shells.
std::string shell_word(std::string_view text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

// Bash splits words at "=" and ":", unless COMP_WORDBREAKS was changed, and replaces only the last piece: so the pieces
// are joined, and the text before the last piece is removed from the answers. If there are no answers, bash falls back
// on file names, which compopt prevents; bash 3 has no compopt and offers them.
void print_bash(Terminal& terminal, const std::vector<Command>& known) {
  terminal.print(
      "_nibble() {{\n  local word=${{COMP_WORDS[COMP_CWORD]}} option= prefix= i=$COMP_CWORD\n  COMPREPLY=()\n");
  terminal.print(
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W {} -- \"$word\"))\n    return\n  fi\n",
      shell_word(joined_names(known)));
  terminal.print(
      "  local piece=$word\n"
      "  if [[ $piece == [:=]* ]]; then piece=; fi\n"
      "  while [ \"$i\" -gt 2 ] && [[ ${{COMP_WORDS[i]}} == [:=]* || ${{COMP_WORDS[i-1]}} == [:=]* ]]; do\n"
      "    i=$((i - 1)) word=${{COMP_WORDS[i]}}$word\n"
      "  done\n"
      "  option=${{COMP_WORDS[i-1]}}\n"
      "  local -i skip=$((${{#word}} - ${{#piece}}))\n"
      "  if [[ $word == --*=* ]]; then option=${{word%%=*}} prefix=${{word%%=*}}= word=${{word#*=}}; fi\n"
      "  case ${{COMP_WORDS[1]}}$option in\n");
  for (const Command& command : known)
    for (const KnownOption& option : command.options)
      if (!option.offer.words.empty())
        terminal.print(
            "    {}{}) COMPREPLY=($(compgen -P \"$prefix\" -W {} -- \"$word\"))\n"
            "      for i in \"${{!COMPREPLY[@]}}\"; do COMPREPLY[i]=${{COMPREPLY[i]:skip}}; done\n"
            "      return ;;\n",
            command.name, option.name, shell_word(joined(option.offer.words)));
      else if (option.takes_value)
        terminal.print("    {}{}) {}return ;;\n", command.name, option.name,
                       option.offer.files ? "" : "compopt +o default 2>/dev/null; ");
  terminal.print("  esac\n  case ${{COMP_WORDS[1]}} in\n");
  for (const Command& command : known) {
    std::string options;
    for (const KnownOption& option : command.options) options += (options.empty() ? "" : " ") + option.name;
    terminal.print("    {})\n      if [[ $word == -* ]]; then COMPREPLY=($(compgen -W {} -- \"$word\"))", command.name,
                   shell_word(options));
    if (!command.argument.words.empty())
      terminal.print("\n      else COMPREPLY=($(compgen -W {} -- \"$word\"))",
                     shell_word(joined(command.argument.words)));
    terminal.print("; fi ;;\n");
  }
  terminal.print("  esac\n}}\ncomplete -o default -F _nibble nibble\n");
}

// _arguments takes '--name[what it does]', and '--name=[what it does]:value:(one other)'; brackets and colons in the
// text would end it early.
std::string zsh_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("[]:\\").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// A space is an action that offers nothing.
std::string zsh_offer(const Offer& offer) {
  return offer.files ? "_files" : offer.words.empty() ? " " : "(" + zsh_text(joined(offer.words)) + ")";
}

void print_zsh(Terminal& terminal, const std::vector<Command>& known) {
  terminal.print("#compdef nibble\n_nibble() {{\n  if (( CURRENT == 2 )); then\n    local -a commands=(\n");
  for (const Command& command : known) terminal.print("      {}\n", shell_word(command.name + ":" + command.summary));
  terminal.print("    )\n    _describe command commands\n    return\n  fi\n  case $words[2] in\n");
  for (const Command& command : known) {
    terminal.print("    {}) _arguments", command.name);
    for (const KnownOption& option : command.options)
      terminal.print(" \\\n      {}",
                     shell_word(option.name + (option.takes_value ? "=[" : "[") + zsh_text(option.help) + "]" +
                                (option.takes_value ? ":value:" + zsh_offer(option.offer) : "")));
    terminal.print(" \\\n      {} ;;\n", shell_word("*:argument:" + zsh_offer(command.argument)));
  }
  terminal.print("  esac\n}}\ncompdef _nibble nibble\n");
}

void print_fish(Terminal& terminal, const std::vector<Command>& known) {
  for (const Command& command : known) {
    terminal.print("complete -c nibble -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
                   shell_word(command.summary));
    for (const KnownOption& option : command.options) {
      const bool files = option.offer.files || !option.takes_value;
      const std::string values = option.offer.words.empty() ? "" : " -a " + shell_word(joined(option.offer.words));
      terminal.print("complete -c nibble -n '__fish_seen_subcommand_from {}' -l {}{}{}{} -d {}\n", command.name,
                     option.name.substr(2), option.takes_value ? " -r" : "", files ? "" : " -f", values,
                     shell_word(option.help));
    }
    if (!command.argument.words.empty())
      terminal.print("complete -c nibble -n '__fish_seen_subcommand_from {}' -f -a {}\n", command.name,
                     shell_word(joined(command.argument.words)));
  }
}

}  // namespace

void add_completion(CLI::App& app, Terminal& terminal) {
  CLI::App* const command = app.add_subcommand("completion", "Print a completion script for a shell");
  const auto shell = std::make_shared<std::string>();
  set_choices(command->add_option("SHELL", *shell, "The shell to complete in"), {"bash", "zsh", "fish"})->required();
  command->footer(
      "Examples:\n"
      "  source <(nibble completion bash)\n"
      "  nibble completion fish > ~/.config/fish/completions/nibble.fish");
  command->callback([&app, shell, &terminal] {
    const std::vector<Command> known = list_commands(app);
    if (*shell == "bash") return print_bash(terminal, known);
    if (*shell == "zsh") return print_zsh(terminal, known);
    print_fish(terminal, known);
  });
}

}  // namespace nibble::cli
