// The program as a whole, called in this process: what it makes of arguments before any subcommand runs. What it does
// then, and how errors are printed, is in commands_test.cpp.

#include "cli/run_program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "nibble/error.hpp"
#include "nibble/version.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::cli::run_program_test {
namespace {

using test::error_of;
using testing::HasSubstr;
using testing::StartsWith;

// Keeps what is printed, or loses it.
class TextTerminal final : public Terminal {
 public:
  explicit TextTerminal(bool is_full = false) : is_full_(is_full) {}

  void write(std::string_view text) override { text_ += text; }
  bool flush() noexcept override { return !is_full_; }
  void note(std::string_view) noexcept override {}
  void draw(std::string_view) noexcept override {}
  void catch_interrupts() override {}
  bool interrupted() const noexcept override { return false; }

  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  bool is_full_;
  std::string text_;
};

// What a command prints there is all that it prints.
std::string printed(const std::vector<std::string>& arguments) {
  TextTerminal terminal;
  testing::internal::CaptureStdout();
  run_program(arguments, terminal);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  return terminal.text();
}

std::string refusal(const std::vector<std::string>& arguments) {
  TextTerminal terminal;
  return error_of([&] { run_program(arguments, terminal); }, Errc::usage);
}

TEST(RunProgram, VersionAndHelpAreNoErrors) {
  EXPECT_EQ(printed({"--version"}), "nibble " + std::string(version()) + "\n");
  const std::string help = printed({"--help"});
  EXPECT_THAT(help, HasSubstr("Exit codes: 0 done, 1 a bug, 2 usage"));
  EXPECT_THAT(help, Not(HasSubstr("--max-memory")));
  EXPECT_THAT(printed({"--help-all"}), HasSubstr("--max-memory"));  // of all subcommands
}

TEST(RunProgram, OneSubcommandIsNeeded) {
  EXPECT_NE(refusal({}), "");
  EXPECT_NE(refusal({"formats", "formats"}), "");
  EXPECT_THAT(refusal({"formatz"}), HasSubstr("formats"));  // as it was probably meant
}

// Arguments are read in their order, and each may come with `_` for `-`.
TEST(RunProgram, ArgumentsKeepTheirOrder) {
  EXPECT_THAT(refusal({"inspect", "first", "second"}), HasSubstr("second"));
  EXPECT_THAT(printed({"--help_all"}), HasSubstr("--max-memory"));
}

TEST(RunProgram, OutputThatIsLostIsAnError) {
  for (const char* const argument : {"--help", "formats"}) {
    TextTerminal terminal(true);
    EXPECT_EQ(error_of([&] { run_program({argument}, terminal); }, Errc::io), "cannot write to standard output");
  }
}

TEST(RunProgram, CommandsPrintWhereTheyAreToldTo) {
  EXPECT_THAT(printed({"formats"}), HasSubstr("codecs (--to"));
  EXPECT_THAT(printed({"formats", "--json"}), StartsWith("{"));
  for (const char* const shell : {"bash", "zsh", "fish"}) EXPECT_NE(printed({"completion", shell}), "");
}

}  // namespace
}  // namespace nibble::cli::run_program_test
