#include "cli/options/usage_errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <string_view>

#include "cli/options/codec_option.hpp"
#include "core/text/suggest.hpp"
#include "nibble/error.hpp"

namespace nibble::cli {
namespace {

// What other programs call the commands.
constexpr std::array command_synonyms{
    Synonym{"quantize", "convert"}, Synonym{"quantise", "convert"}, Synonym{"quant", "convert"},
    Synonym{"cast", "convert"},     Synonym{"info", "inspect"},     Synonym{"show", "inspect"},
    Synonym{"list", "inspect"},     Synonym{"ls", "inspect"},       Synonym{"compare", "measure"},
    Synonym{"diff", "measure"},     Synonym{"evaluate", "measure"}, Synonym{"eval", "measure"}};

// CLI11 explains over several lines; a program that reads our errors expects one.
std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n') c = ' ';
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

// The option or argument that CLI11 speaks of.
const CLI::Option* option_in(const CLI::App& command, std::string_view text) {
  const auto is_named = [&](const std::string& name) {
    const std::size_t at = text.find(name);
    return at != std::string_view::npos && text.substr(at + name.size()).find_first_of(": =") == 0;
  };
  for (const CLI::Option* const option : command.get_options())
    if (is_named(option->get_name())) return option;
  return nullptr;
}

std::string needs_value(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return fmt::format("{} needs a value: {}", option.get_name(),
                     type == codec_type ? fmt::format("{}", fmt::join(target_names(), "|")) : type);
}

// CLI11's own texts talk about its types and counts.
std::string reworded(const CLI::App& app, const CLI::App& command, const CLI::ParseError& error) {
  const std::string text = one_line(error.what());
  const CLI::Option* const option = option_in(command, text);
  switch (static_cast<CLI::ExitCodes>(error.get_exit_code())) {
    case CLI::ExitCodes::ExtrasError:
      // For all commands: everything after "--" is left to the program itself.
      if (const std::vector<std::string> left = app.remaining(true); !left.empty())
        return fmt::format("unexpected argument '{}'", printable(left.front()));
      break;
    case CLI::ExitCodes::ExcludesError:
      if (const std::size_t at = text.find(" excludes "); at != std::string::npos)
        return fmt::format("{} cannot be combined with {}", text.substr(0, at), text.substr(at + 10));
      break;
    case CLI::ExitCodes::ArgumentMismatch:
      if (option == nullptr) break;
      if (option->count() > 1) return fmt::format("{} is given {} times", option->get_name(), option->count());
      return needs_value(*option);
    case CLI::ExitCodes::ConversionError:
      if (option != nullptr && option->get_items_expected_max() == 0)
        return fmt::format("{} takes no value", option->get_name());
      break;
    default:
      break;
  }
  return escaped(text);
}

std::vector<CLI::App*> all_commands(CLI::App& app) {
  return app.get_subcommands([](CLI::App*) { return true; });
}

CLI::App* find_command(CLI::App& app, std::string_view name) {
  const std::vector<CLI::App*> commands = all_commands(app);
  const auto found = std::find_if(commands.begin(), commands.end(),
                                  [&](const CLI::App* command) { return command->get_name() == name; });
  return found == commands.end() ? nullptr : *found;
}

std::string unknown_command(CLI::App& app, const std::string& given) {
  std::vector<std::string> names;
  for (const CLI::App* const command : all_commands(app)) names.push_back(command->get_name());
  if (given.empty()) return fmt::format("no command is given: the commands are {}", fmt::join(names, ", "));
  const std::vector<std::string_view> words(names.begin(), names.end());
  return "command " + none_of(given, words, command_synonyms);
}

std::string unknown_option(const CLI::App& command, const std::string& argument) {
  const std::string given = argument.substr(0, argument.find('='));
  std::deque<std::string> names;
  for (const CLI::Option* const option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  const std::vector<std::string_view> words(names.begin(), names.end());
  const std::string text = fmt::format("{} has no option '{}'", command.get_name(), printable(given));
  // A setting that is on by default has an option that turns it off, and none that turns it on.
  if (given.starts_with("--"))
    if (const std::string off = "--no-" + given.substr(2); std::find(words.begin(), words.end(), off) != words.end())
      return fmt::format("{}: that is the default, which {} turns off", text, off);
  const auto meant = nearest(given.starts_with("--") ? given : "-" + given, words);
  return meant ? fmt::format("{}: did you mean {}?", text, *meant) : text;
}

// The first argument that looks like an option but is none.
std::optional<std::string> first_unknown(const CLI::App& command) {
  for (const std::string& argument : command.remaining())
    if (argument.size() > 1 && argument.starts_with('-') && argument != "--") return argument;
  return std::nullopt;
}

}  // namespace

std::string explain(CLI::App& app, const std::vector<std::string>& arguments, const CLI::ParseError& error) {
  const std::string first = arguments.empty() ? "" : arguments.front();
  CLI::App* const command = find_command(app, first);
  if (command == nullptr && !first.starts_with('-')) return unknown_command(app, first) + " (see nibble --help)";
  const CLI::App& parsed = command == nullptr ? app : *command;
  const std::string help = command == nullptr ? " (see nibble --help)" : fmt::format(" (see nibble {} --help)", first);
  // Leftovers of an unknown option, such as its value, cause errors of their own, which say less.
  if (const auto unknown = first_unknown(parsed)) return unknown_option(parsed, *unknown) + help;
  return reworded(app, parsed, error) + help;
}

void refuse_empty_values(CLI::App& app, const std::vector<std::string>& arguments) {
  CLI::App* const command = arguments.empty() ? nullptr : find_command(app, arguments.front());
  if (command == nullptr) return;
  for (const std::string& argument : arguments) {
    if (argument == "--") return;
    if (!argument.starts_with("--") || argument.find('=') != argument.size() - 1) continue;
    const CLI::Option* const option = command->get_option_no_throw(argument.substr(0, argument.size() - 1));
    if (option != nullptr && option->get_items_expected_max() > 0)
      throw Error(Errc::usage, fmt::format("{} (see nibble {} --help)", needs_value(*option), command->get_name()));
  }
}

std::vector<std::string> with_help_option(CLI::App& app, std::vector<std::string> arguments) {
  if (arguments.empty() || arguments.front() != "help") return arguments;
  arguments.erase(arguments.begin());
  // For a command that does not exist, CLI11 would accept the option and print its own help.
  if (arguments.empty() || find_command(app, arguments.front()) != nullptr) arguments.emplace_back("--help");
  return arguments;
}

}  // namespace nibble::cli
