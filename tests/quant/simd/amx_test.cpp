#include "quant/simd/amx.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#ifdef __x86_64__
#include <csignal>
#endif

namespace nibble {
namespace {

#ifdef __x86_64__

// Linux does not permit tiles then, so other loops have to run.
TEST(Amx, IsNotUsedWhereASignalStackIsTooSmall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a new process, which has not asked before
  const auto ask = [] {
    static std::array<char, 4096> memory;
    const stack_t small{.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
    if (sigaltstack(&small, nullptr) != 0) std::_Exit(2);
    std::_Exit(amx::has_bf16() ? 1 : 0);
  };
  EXPECT_EXIT(ask(), testing::ExitedWithCode(0), "");
  if (!amx::has_bf16()) GTEST_SKIP() << "this processor has no AMX tiles, or the system does not permit them";
}

#endif

}  // namespace
}  // namespace nibble
