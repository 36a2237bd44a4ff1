// Where the system allows fewer threads is shown by tests/cli/commands_test.cpp: a limit holds for a whole process.

#include "core/workers.hpp"

#include <gtest/gtest.h>
#include <oneapi/tbb/parallel_for.h>

#include <atomic>
#include <latch>

namespace nibble::workers_test {
namespace {

TEST(Workers, AreAsManyAsWereWanted) {
  for (const unsigned wanted : {1U, 2U, 5U}) {
    const Workers workers(wanted);
    EXPECT_EQ(workers.count(), wanted);
    EXPECT_EQ(workers.warning(), "");
  }
}

// Each waits for all: that ends only if they run at the same time, also where there are fewer processors.
TEST(Workers, WorkAtTheSameTime) {
  constexpr unsigned wanted = 5;
  Workers workers(wanted);
  std::latch all(wanted);
  workers.execute([&] {
    tbb::parallel_for(
        0U, wanted, [&](unsigned /*worker*/) { all.arrive_and_wait(); }, tbb::simple_partitioner());
  });
  EXPECT_TRUE(all.try_wait());
}

}  // namespace
}  // namespace nibble::workers_test
