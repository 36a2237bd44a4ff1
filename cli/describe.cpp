// The subcommands and options as they are registered, as JSON.

#include "cli/describe.hpp"

#include <CLI/CLI.hpp>
#include <string_view>

#include "cli/commands.hpp"
#include "cli/options/options.hpp"
#include "cli/terminal/terminal.hpp"

namespace nibble::cli {
namespace {

// No command runs, so nothing is printed.
class NoTerminal final : public Terminal {
 public:
  void write(std::string_view) override {}
  bool flush() noexcept override { return true; }
  void note(std::string_view) noexcept override {}
  void draw(std::string_view) noexcept override {}
  void catch_interrupts() override {}
  bool interrupted() const noexcept override { return false; }
};

Json describe(const CLI::Option& option) {
  const bool positional = option.get_positional();
  return {{"name", positional ? option.get_name(true) : "--" + option.get_lnames().front()},
          {"help", option.get_description()},
          {"takes_value", option.get_items_expected_max() > 0},
          {"repeatable",
           option.get_items_expected_max() > 1 || option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll},
          {"required", option.get_required()},
          {"values", choices_of(option)}};
}

bool has_json(const CLI::App& command) { return command.get_option_no_throw("--json") != nullptr; }

}  // namespace

Json describe_commands() {
  NoTerminal terminal;
  CLI::App app;
  for (const auto add : commands) add(app, terminal);
  Json described = Json::object();
  for (CLI::App* const command : app.get_subcommands([](CLI::App*) { return true; })) {
    if (!has_json(*command)) continue;
    Json entry = {{"summary", command->get_description()}, {"arguments", Json::array()}, {"options", Json::array()}};
    for (const CLI::Option* const option : command->get_options()) {
      const std::string name = option->get_name();
      if (name == "--json" || name == "--progress" || option == command->get_help_ptr()) continue;
      entry[option->get_positional() ? "arguments" : "options"].push_back(describe(*option));
    }
    described[command->get_name()] = std::move(entry);
  }
  return described;
}

bool may_print_json(const std::string& command) {
  NoTerminal terminal;
  CLI::App app;
  for (const auto add : commands) add(app, terminal);
  const auto found = app.get_subcommands([&](CLI::App* known) { return known->get_name() == command; });
  return found.empty() ? command != "help" : has_json(*found.front());
}

}  // namespace nibble::cli
