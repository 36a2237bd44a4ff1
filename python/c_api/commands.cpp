// Runs the commands of the program for a caller that wants their JSON, and neither output nor signal handlers.

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/describe.hpp"
#include "cli/run_program.hpp"
#include "cli/terminal/json.hpp"
#include "cli/terminal/terminal.hpp"
#include "nibble/error.hpp"
#include "python/c_api/result.hpp"

namespace nibble::c_api {
namespace {

// Collects what a command prints, and passes on what it tells.
class ListenerTerminal final : public cli::Terminal {
 public:
  explicit ListenerTerminal(const nibble_listener* listener) : listener_(listener != nullptr ? *listener : none) {}

  void write(std::string_view text) override { text_ += text; }
  bool flush() noexcept override { return true; }
  void note(std::string_view line) noexcept override {
    if (listener_.note == nullptr) return;
    try {
      listener_.note(listener_.user, std::string(line).c_str());
    } catch (const std::exception&) {  // no memory for the line: a warning is no reason to stop
    }
  }
  void advance(std::string_view tensor, std::uint64_t done, std::uint64_t total) override {
    if (listener_.progress == nullptr) return;
    if (listener_.progress(listener_.user, std::string(tensor).c_str(), done, total) != 0) stopped_ = true;
  }
  void draw(std::string_view) noexcept override {}
  void catch_interrupts() override {}
  bool interrupted() const noexcept override {
    return stopped_ || (listener_.cancel != nullptr && __atomic_load_n(listener_.cancel, __ATOMIC_RELAXED) != 0);
  }

  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  static constexpr nibble_listener none{};

  nibble_listener listener_;
  std::string text_;
  std::atomic<bool> stopped_ = false;
};

std::vector<std::string> with_json(int argument_count, const char* const* arguments) {
  if (argument_count < 1) throw Error(Errc::usage, "argument_count is less than 1: the first argument is the command");
  require(arguments, "arguments");
  std::vector<std::string> given;
  for (int i = 0; i < argument_count; ++i) {
    require(arguments[i], "arguments[" + std::to_string(i) + "]");
    given.emplace_back(arguments[i]);
  }
  if (given[0].starts_with('-') || !cli::may_print_json(given[0]))
    throw Error(Errc::usage, "'" + printable(given[0]) + "' is not a command with --json");
  given.insert(given.begin() + 1, "--json");  // here, because after `--` it would be no option
  return given;
}

}  // namespace
}  // namespace nibble::c_api

int nibble_command(int argument_count, const char* const* arguments, const nibble_listener* listener, char** json) {
  using namespace nibble;
  if (json != nullptr) *json = nullptr;
  return c_api::guarded([&] {
    if (listener != nullptr) c_api::require_struct(*listener, "listener");
    c_api::ListenerTerminal terminal(listener);
    const auto give_text = [&] {
      if (json != nullptr && !terminal.text().empty()) *json = c_api::allocated(terminal.text());
    };
    try {
      cli::run_program(c_api::with_json(argument_count, arguments), terminal);
    } catch (const Error&) {
      give_text();
      throw;
    }
    give_text();
  });
}

int nibble_list_commands(char** json) {
  using namespace nibble;
  return c_api::guarded([&] {
    c_api::require(json, "json");
    *json = c_api::allocated(cli::dump(cli::describe_commands()));
  });
}
