// nibble completion SHELL: a completion script, made from the subcommands and options as they are registered.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"

namespace nibble::cli {
namespace {

struct Command {
  std::string name;
  std::string summary;
  std::vector<std::pair<std::string, std::string>> options;  // "--to", what it does
};

std::vector<Command> list_commands(CLI::App& app) {
  std::vector<Command> known;
  for (CLI::App* const command : app.get_subcommands([](CLI::App*) { return true; })) {
    Command entry{command->get_name(), command->get_description(), {}};
    for (const CLI::Option* const option : command->get_options())
      for (const std::string& name : option->get_lnames())
        entry.options.emplace_back("--" + name, option->get_description());
    known.push_back(std::move(entry));
  }
  return known;
}

std::string joined_names(const std::vector<Command>& known) {
  std::string names;
  for (const Command& command : known) names += (names.empty() ? "" : " ") + command.name;
  return names;
}

// A single-quoted word of any of the three shells.
std::string shell_word(std::string_view text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

void print_bash(const std::vector<Command>& known) {
  fmt::print("_nibble() {{\n  local word=${{COMP_WORDS[COMP_CWORD]}}\n  COMPREPLY=()\n");
  fmt::print("  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W {} -- \"$word\"))\n    return\n  fi\n",
             shell_word(joined_names(known)));
  fmt::print("  [[ $word == -* ]] || return\n  case ${{COMP_WORDS[1]}} in\n");
  for (const Command& command : known) {
    std::string options;
    for (const auto& [name, help] : command.options) options += (options.empty() ? "" : " ") + name;
    fmt::print("    {}) COMPREPLY=($(compgen -W {} -- \"$word\")) ;;\n", command.name, shell_word(options));
  }
  fmt::print("  esac\n}}\ncomplete -o default -F _nibble nibble\n");
}

// _arguments takes '--name[what it does]'; brackets and colons in the text would end it early.
std::string zsh_text(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("[]:\\").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

void print_zsh(const std::vector<Command>& known) {
  fmt::print("#compdef nibble\n_nibble() {{\n  if (( CURRENT == 2 )); then\n    local -a commands=(\n");
  for (const Command& command : known) fmt::print("      {}\n", shell_word(command.name + ":" + command.summary));
  fmt::print("    )\n    _describe command commands\n    return\n  fi\n  case $words[2] in\n");
  for (const Command& command : known) {
    fmt::print("    {}) _arguments", command.name);
    for (const auto& [name, help] : command.options)
      fmt::print(" \\\n      {}", shell_word(name + "[" + zsh_text(help) + "]"));
    fmt::print(" \\\n      '*:file:_files' ;;\n");
  }
  fmt::print("  esac\n}}\ncompdef _nibble nibble\n");
}

void print_fish(const std::vector<Command>& known) {
  for (const Command& command : known) {
    fmt::print("complete -c nibble -n __fish_use_subcommand -f -a {} -d {}\n", command.name,
               shell_word(command.summary));
    for (const auto& [name, help] : command.options)
      fmt::print("complete -c nibble -n '__fish_seen_subcommand_from {}' -l {} -d {}\n", command.name, name.substr(2),
                 shell_word(help));
  }
}

}  // namespace

void add_completion(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("completion", "Print a completion script for a shell");
  const auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->type_name("")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}).description(""));
  command->footer(
      "Examples:\n"
      "  source <(nibble completion bash)\n"
      "  nibble completion fish > ~/.config/fish/completions/nibble.fish");
  command->callback([&app, shell] {
    const std::vector<Command> known = list_commands(app);
    if (*shell == "bash") return print_bash(known);
    if (*shell == "zsh") return print_zsh(known);
    print_fish(known);
  });
}

}  // namespace nibble::cli
