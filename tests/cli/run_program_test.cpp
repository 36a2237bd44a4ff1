// The program as a whole, called in this process: what it makes of arguments before any subcommand runs. What it does
// then, and how errors are printed, is in commands_test.cpp.

#include "cli/run_program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "nibble/error.hpp"
#include "nibble/target.hpp"
#include "nibble/version.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::cli::run_program_test {
namespace {

using test::error_of;
using testing::HasSubstr;
using testing::StartsWith;

void run(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "nibble");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  run_program(static_cast<int>(argv.size()), argv.data());
}

std::string printed(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  run(arguments);
  return testing::internal::GetCapturedStdout();
}

std::string refusal(const std::vector<std::string>& arguments) {
  return error_of([&] { run(arguments); }, Errc::usage);
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

// Whatever else is wrong: a target that does not exist would decide what is written, and how fast.
TEST(RunProgram, TheCpuTargetComesFirst) {
  const char* const before = std::getenv("NIBBLE_CPU_TARGET");
  const std::string old = before == nullptr ? "" : before;
  ::setenv("NIBBLE_CPU_TARGET", "6502", 1);
  const std::string error = refusal({"formatz"});
  ::setenv("NIBBLE_CPU_TARGET", old.c_str(), 1);
  if (before == nullptr) ::unsetenv("NIBBLE_CPU_TARGET");
  EXPECT_THAT(error, StartsWith("CPU target '6502': "));
}

}  // namespace
}  // namespace nibble::cli::run_program_test
