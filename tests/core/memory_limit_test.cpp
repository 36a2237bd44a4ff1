#include "core/memory_limit.hpp"

#include <gtest/gtest.h>

#include "tests/support/corrupt.hpp"

namespace nibble::memory_limit_test {
namespace {

using test::error_of;

TEST(MemoryLimit, WhatIsTooMuchIsSaidWithTheWholeProgram) {
  MemoryLimit limit(program_bytes + 1'000'000);
  limit.take(600'000, "f");
  EXPECT_EQ(error_of([&] { limit.take(400'001, "f"); }, Errc::no_space),
            "f: opening it needs at least 15680065 bytes of memory, the limit is 15680064 bytes");
  EXPECT_EQ(error_of([&] { limit.take(1'400'000, "f"); }, Errc::no_space),
            "f: opening it needs at least 16.68 MB of memory, the limit is 15.68 MB");
  EXPECT_EQ(limit.taken(), 600'000U);
  limit.take(400'000, "f");
}

// What is needed is said, and not what is a byte more than what is allowed.
TEST(MemoryLimit, LessThanTheProgramAllowsNothing) {
  MemoryLimit limit(1'000'000);
  EXPECT_EQ(error_of([&] { limit.take(1, "f"); }, Errc::no_space),
            "f: opening it needs at least 14.68 MB of memory, the limit is 1.00 MB");
  limit.take(0, "f");
}

TEST(MemoryLimit, WithoutOneEverythingIsAllowed) {
  MemoryLimit limit;
  limit.take(~std::uint64_t{0} - program_bytes, "f");
}

TEST(MemoryLimit, IsGivenBackAtTheEndOfAScope) {
  MemoryLimit limit(program_bytes + 100);
  limit.take(10, "f");
  {
    TakenMemory memory(limit, "g");
    memory.add(40);
    memory.add(50);
    EXPECT_EQ(error_of([&] { memory.add(1); }, Errc::no_space).substr(0, 3), "g: ");
    EXPECT_EQ(limit.taken(), 100U);
  }
  EXPECT_EQ(limit.taken(), 10U);
}

}  // namespace
}  // namespace nibble::memory_limit_test
