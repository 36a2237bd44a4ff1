#include "quant/quantizers/column_weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace nibble::column_weights_test {
namespace {

using testing::ElementsAre;

std::vector<float> roots(const ColumnWeights& columns, std::uint64_t first, std::size_t n) {
  std::vector<float> room(n);
  const auto found = columns.roots(first, n, room);
  return {found.begin(), found.end()};
}

TEST(ColumnWeights, AreRootsRelativeToTheLargest) {
  const ColumnWeights columns({4.0f, 100.0f, 1.0f, 0.0f});
  EXPECT_FALSE(columns.empty());
  EXPECT_THAT(roots(columns, 0, 4), ElementsAre(0.2f, 1.0f, 0.1f, 1.0f / (1 << 20)));
}

TEST(ColumnWeights, CountAlikeWithoutAnyInput) {
  EXPECT_TRUE(ColumnWeights().empty());
  EXPECT_THAT(roots(ColumnWeights({0.0f, 0.0f}), 0, 2), ElementsAre(1, 1));
}

TEST(ColumnWeights, BeginAgainWithEachRow) {
  const ColumnWeights columns({4.0f, 1.0f, 0.25f});
  EXPECT_THAT(roots(columns, 7, 2), ElementsAre(0.5f, 0.25f));
  EXPECT_THAT(roots(columns, 3'000'000'000'002, 8), ElementsAre(0.25f, 1, 0.5f, 0.25f, 1, 0.5f, 0.25f, 1));
  std::vector<float> weights{8, 8, 8, 8, 8};
  columns.apply(5, weights);
  EXPECT_THAT(weights, ElementsAre(2, 8, 4, 2, 8));
}

}  // namespace
}  // namespace nibble::column_weights_test
