#include "kernels/host/matmul/matmul_plan.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::kernels {
namespace {

u32 blocks(const std::vector<u64>& items, u64 resident) { return blocks_for_each(items, resident); }

TEST(MatmulPlan, BlocksWithAnItemRunAtATime) {
  EXPECT_EQ(blocks({1000}, 264), 264U);
  EXPECT_EQ(blocks({100}, 264), 100U);
  EXPECT_EQ(blocks({1000, 1000, 1000}, 264), 88U);
  EXPECT_EQ(blocks({256, 64, 64}, 264), 136U);  // of which the second and third weight have 64 with an item
  EXPECT_EQ(blocks({64, 256, 64}, 264), 136U);
  EXPECT_EQ(blocks({100, 80, 84}, 264), 100U);
  EXPECT_EQ(blocks({0, 1000}, 264), 264U);
  EXPECT_EQ(blocks({0, 0}, 264), 0U);
  EXPECT_EQ(blocks({5, 5, 5, 5}, 2), 1U);  // one at least, which takes all items of its weight
}

TEST(MatmulPlan, SplitsHaveToSaveATwentieth) {
  const auto cost_of = [](std::vector<u64> costs) {
    return [costs = std::move(costs)](u64 splits) { return costs.at(splits - 1); };
  };
  EXPECT_EQ(cheapest_splits(3, true, cost_of({100, 95, 96})).count, 1U);
  EXPECT_EQ(cheapest_splits(3, true, cost_of({100, 94, 93})).count, 3U);
  EXPECT_EQ(cheapest_splits(3, true, cost_of({100, 94, 93})).cost, 93U);
  EXPECT_EQ(cheapest_splits(2, true, cost_of({100, 94, 93})).count, 2U) << "each has a step";
  EXPECT_EQ(cheapest_splits(3, false, cost_of({100, 94, 93})).count, 1U);
  EXPECT_EQ(cheapest_splits(100, true, [](u64 splits) { return 1000 - splits; }).count, 1U);
  EXPECT_EQ(cheapest_splits(100, true, [](u64 splits) { return 1000 / splits; }).count, max_splits);
}

}  // namespace
}  // namespace nibble::kernels
