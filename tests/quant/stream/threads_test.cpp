#include <gtest/gtest.h>
#include <sched.h>

#include "nibble/memory.hpp"

namespace nibble::threads_test {
namespace {

TEST(Threads, AtLeastOne) { EXPECT_GE(default_threads(), 1U); }

// Of the processors of the machine, those that this process may use: one, once it is told so.
TEST(Threads, AreTheProcessorsOfThisProcess) {
  cpu_set_t before, first;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&first);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&first) == 0; ++i)
    if (CPU_ISSET(i, &before)) CPU_SET(i, &first);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(first), &first), 0);
  EXPECT_EQ(default_threads(), 1U);
  EXPECT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
}

}  // namespace
}  // namespace nibble::threads_test
