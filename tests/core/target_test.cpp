#include "nibble/target.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "nibble/error.hpp"

namespace nibble::target_test {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;

// What the bit tests run on at least: the scalar code of every build, and the lowest vectors that Highway has.
TEST(Target, ScalarAndTheBaselineAreAlwaysThere) {
  EXPECT_THAT(cpu_targets(), Contains(AnyOf("SCALAR", "EMU128")));
#if defined(__x86_64__)
  EXPECT_THAT(cpu_targets(), Contains("SSSE3"));
#elif defined(__aarch64__)
  EXPECT_THAT(cpu_targets(), Contains("NEON"));
#endif
}

TEST(Target, TheBestRunsUnlessAnotherIsForced) {
  const auto targets = cpu_targets();
  EXPECT_EQ(cpu_target(), targets.front());
  for (const std::string_view target : targets) {
    std::string lower(target);
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    force_cpu_target(lower);
    EXPECT_EQ(cpu_target(), target);
    EXPECT_EQ(cpu_targets(), targets);
  }
  force_cpu_target({});
  EXPECT_EQ(cpu_target(), targets.front());
}

TEST(Target, TheEnvironmentForcesOneIfItNamesOne) {
  const std::string best(cpu_target()), other(cpu_targets().back());
  ::unsetenv("NIBBLE_CPU_TARGET");
  force_cpu_target_of_environment();
  EXPECT_EQ(cpu_target(), best);
  ::setenv("NIBBLE_CPU_TARGET", other.c_str(), 1);
  force_cpu_target_of_environment();
  EXPECT_EQ(cpu_target(), other);
  ::setenv("NIBBLE_CPU_TARGET", "", 1);
  force_cpu_target_of_environment();
  EXPECT_EQ(cpu_target(), best);
  ::unsetenv("NIBBLE_CPU_TARGET");
}

TEST(Target, OneThatIsNotThereIsRefusedAndTheOthersAreNamed) {
  try {
    force_cpu_target("Z80\n");
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::usage);
    EXPECT_THAT(error.what(), HasSubstr("CPU target 'Z80\\n': this build on this processor has "));
    EXPECT_THAT(error.what(), HasSubstr(std::string(cpu_targets().back())));
  }
}

}  // namespace
}  // namespace nibble::target_test
