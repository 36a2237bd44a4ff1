#include "quant/merge/low_rank.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::low_rank_test {
namespace {

struct Sizes {
  std::size_t experts, rows, columns, rank;
};

struct Case {
  Sizes sizes;
  std::vector<float> left, right, weights;
  LowRankProduct product;
  float scale = 0.37f;

  explicit Case(const Sizes& s)
      : sizes(s),
        left(test::normal_weights(s.experts * s.rows * s.rank, 1)),
        right(test::normal_weights(s.experts * s.rank * s.columns, 2)),
        weights(test::normal_weights(s.experts * s.rows * s.columns, 3)),
        product(s.experts, s.rows, s.columns, s.rank) {
    for (std::size_t e = 0; e < s.experts; ++e) {
      for (std::size_t i = 0; i < s.rows; ++i)
        for (std::size_t k = 0; k < s.rank; ++k) product.left(e, i, k) = left[(e * s.rows + i) * s.rank + k];
      for (std::size_t k = 0; k < s.rank; ++k)
        for (std::size_t j = 0; j < s.columns; ++j) product.right(e, k, j) = right[(e * s.rank + k) * s.columns + j];
    }
  }

  // The definition: the order of the sum and every rounding.
  [[nodiscard]] std::vector<float> expected() const {
    std::vector<float> result = weights;
    for (std::size_t i = 0; i < result.size(); ++i) {
      const std::size_t row = i / sizes.columns, e = row / sizes.rows, j = i % sizes.columns;
      float sum = 0;
      for (std::size_t k = 0; k < sizes.rank; ++k)
        sum = std::fma(left[row * sizes.rank + k], right[(e * sizes.rank + k) * sizes.columns + j], sum);
      const float scaled = sum * scale;
      result[i] += scaled;
    }
    return result;
  }

  // All of it, in ranges of at most `size`.
  [[nodiscard]] std::vector<float> in_ranges(std::size_t size) const {
    std::vector<float> result(weights.size());
    for (std::size_t at = 0; at < result.size(); at += size) {
      const std::size_t n = std::min(size, result.size() - at);
      product.add(at, scale, std::span(weights).subspan(at, n), std::span(result).subspan(at, n));
    }
    return result;
  }
};

// Around the tile (64 columns), the group (4 rows), and vectors of 16.
constexpr Sizes all_sizes[] = {{1, 1, 1, 1},   {1, 4, 64, 8},     {1, 5, 65, 3}, {1, 3, 63, 16},
                               {1, 9, 128, 2}, {3, 5, 70, 4},     {2, 4, 64, 1}, {1, 130, 17, 64},
                               {4, 1, 200, 5}, {1, 8, 1000, 256}, {5, 2, 1, 2}};

TEST(LowRankProduct, IsItsDefinitionToTheBit) {
  for (const Sizes& sizes : all_sizes) {
    const Case c(sizes);
    const std::vector<float> expected = c.expected();
    test::for_each_target([&](const std::string& target) {
      EXPECT_EQ(c.in_ranges(c.weights.size()), expected) << target << ' ' << sizes.rows << 'x' << sizes.columns;
    });
  }
}

TEST(LowRankProduct, DoesNotDependOnTheRanges) {
  for (const Sizes& sizes : all_sizes) {
    const Case c(sizes);
    const std::vector<float> expected = c.expected();
    for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{64}, sizes.columns, sizes.columns + 1,
                                   3 * sizes.columns, 5 * sizes.columns - 1})
      if (c.weights.size() / std::max<std::size_t>(size, 1) < 3000) {
        EXPECT_EQ(c.in_ranges(std::max<std::size_t>(size, 1)), expected) << size << " of " << sizes.columns;
      }
  }
}

TEST(LowRankProduct, WorksInPlace) {
  Case c({2, 6, 100, 4});
  const std::vector<float> expected = c.expected();
  c.product.add(0, c.scale, c.weights, c.weights);
  EXPECT_EQ(c.weights, expected);
}

TEST(LowRankProduct, NothingIsAskedFor) {
  const Case c({1, 2, 3, 1});
  c.product.add(6, 1.0f, {}, {});
}

TEST(LowRankProduct, MemoryIsThatOfTheFactorsWithWholeTiles) {
  EXPECT_EQ(LowRankProduct::memory_bytes(3, 5, 70, 4), 3 * 4 * (5 + 128) * sizeof(float));
}

}  // namespace
}  // namespace nibble::low_rank_test
