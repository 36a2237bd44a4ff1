#include "kernels/host/matmul_plan.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::kernels {
namespace {

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
