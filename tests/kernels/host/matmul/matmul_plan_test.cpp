#include "kernels/host/matmul/matmul_plan.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::kernels {
namespace {

using Blocks = std::vector<u32>;

Blocks shares(const std::vector<u64>& items, u64 resident) { return shares_of_blocks(items, resident); }

TEST(MatmulPlan, BlocksWithAnItemRunAtATime) {
  EXPECT_EQ(shares({1000}, 264), Blocks{264});
  EXPECT_EQ(shares({100}, 264), Blocks{100});
  EXPECT_EQ(shares({100, 80, 84}, 264), (Blocks{100, 80, 84}));
  EXPECT_EQ(shares({0, 1000}, 264), (Blocks{0, 264}));
  EXPECT_EQ(shares({0, 0}, 264), (Blocks{0, 0}));
  EXPECT_EQ(shares({5, 5, 5, 5}, 2), (Blocks{1, 1, 1, 1}));  // one at least, which takes all items of its weight
}

// q, k and v of grouped heads: in equal shares q would take 6 turns, and k and v 2.
TEST(MatmulPlan, WeightsShareBlocksSoThatTheMostTurnsAreFew) {
  EXPECT_EQ(shares({512, 128, 128}, 264), (Blocks{178, 43, 43}));  // 3 turns each; 7 blocks are left for the first
  EXPECT_EQ(shares({128, 512, 128}, 264), (Blocks{50, 171, 43}));
  EXPECT_EQ(shares({1000, 1000, 1000}, 264), (Blocks{96, 84, 84}));  // 12 turns; 88 blocks each would not make 11
  EXPECT_EQ(shares({256, 64, 64}, 264), (Blocks{200, 32, 32}));  // 2 turns: 136 and 64 each for one turn do not exist
  EXPECT_EQ(shares({1, 1000}, 3), (Blocks{1, 2}));
  EXPECT_EQ(shares({u64{1} << 40, 1}, 4), (Blocks{3, 1}));
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
