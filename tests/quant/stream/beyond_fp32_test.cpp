#include "quant/stream/beyond_fp32.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace nibble::beyond_fp32_test {
namespace {

constexpr double huge = 1e300, infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Weights as a checkpoint has them, and as they are compared.
struct Tile {
  Tile(std::vector<double> values, bool is_fp64) : bytes(is_fp64 ? values.size() * sizeof(double) : 0) {
    for (const double value : values) weights.push_back(static_cast<float>(value));
    if (is_fp64) std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  [[nodiscard]] ComparedTile compared() const { return {weights, bytes}; }
  std::vector<float> weights;
  std::vector<std::byte> bytes;
};

ErrorStats compared(const Tile& reference, const Tile& test) {
  ErrorStats stats = compare(reference.weights, test.weights);
  correct_beyond_fp32(reference.compared(), test.compared(), 100, stats);
  return stats;
}

WeightStats described(const Tile& tile) {
  WeightStats stats = describe(tile.weights, 0);
  correct_beyond_fp32(tile.compared(), stats);
  return stats;
}

TEST(BeyondFp32, IsFiniteInTheReference) {
  const WeightStats stats = described(Tile({1, huge, -huge, infinity, nan}, true));
  EXPECT_EQ(stats.count, 1U);
  EXPECT_EQ(stats.inf, 1U);
  EXPECT_EQ(stats.nan, 1U);
  EXPECT_EQ(stats.beyond_fp32, 2U);
  EXPECT_EQ(described(Tile({1, infinity}, false)).inf, 1U);
}

TEST(BeyondFp32, BecomesInfinite) {
  for (const double other : {infinity, -infinity}) {
    const ErrorStats stats = compared(Tile({1, huge}, true), Tile({1, other}, false));
    EXPECT_EQ(stats.inf, 1U);
    EXPECT_EQ(stats.lost, 1U);
    EXPECT_EQ(stats.count, 1U);
  }
  EXPECT_EQ(compared(Tile({huge}, true), Tile({nan}, false)).lost, 1U);
}

// No figure could say by how much 65504 differs from 1e300.
TEST(BeyondFp32, BecomesSomethingElse) {
  EXPECT_EQ(compared(Tile({huge}, true), Tile({65504}, false)).lost, 1U);
  EXPECT_EQ(compared(Tile({huge}, true), Tile({2 * huge}, true)).lost, 1U);
  const ErrorStats grown = compared(Tile({1}, false), Tile({huge}, true));
  EXPECT_EQ(grown.lost, 1U);
  EXPECT_EQ(grown.inf, 0U);
}

TEST(BeyondFp32, StaysAsItWas) {
  const ErrorStats stats = compared(Tile({1, huge, infinity}, true), Tile({1, huge, infinity}, true));
  EXPECT_EQ(stats.lost, 0U);
  EXPECT_EQ(stats.inf, 1U);
  EXPECT_EQ(stats.count, 1U);
}

// Numbers that fp32 cannot tell apart differ nevertheless.
TEST(BeyondFp32, EqualInFp32) {
  const ErrorStats stats = compared(Tile({1, 3 + 1e-9, 2}, true), Tile({1, 3, 2}, false));
  EXPECT_NEAR(stats.square, 1e-18, 1e-24);
  EXPECT_NEAR(stats.magnitude, 1e-9, 1e-15);
  EXPECT_NEAR(stats.max_abs, 1e-9, 1e-15);
  EXPECT_EQ(stats.max_abs_at, 101U);
  EXPECT_EQ(stats.lost, 0U);
  EXPECT_EQ(compared(Tile({1 + 1e-10}, true), Tile({1 + 1e-10}, true)).square, 0);
  EXPECT_GT(compared(Tile({1 + 1e-10}, true), Tile({1}, true)).square, 0);
}

// What fp32 can hold is counted as ever.
TEST(BeyondFp32, WithinItsRange) {
  for (const bool is_fp64 : {false, true}) {
    const ErrorStats stats =
        compared(Tile({1, 1, infinity, infinity, nan}, is_fp64), Tile({infinity, nan, infinity, 1, infinity}, false));
    EXPECT_EQ(stats.lost, 2U) << is_fp64;
    EXPECT_EQ(stats.inf, 3U) << is_fp64;
    EXPECT_EQ(stats.nan, 1U) << is_fp64;
  }
}

}  // namespace
}  // namespace nibble::beyond_fp32_test
