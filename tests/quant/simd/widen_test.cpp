#include "quant/simd/widen.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::widen_test {
namespace {

TEST(Widen, AlignedFp32IsNotCopied) {
  const std::vector<float> weights = test::normal_weights(100, 1);
  std::vector<float> tile(100);
  EXPECT_EQ(widen(DType::f32, std::as_bytes(std::span(weights)), tile).data(), weights.data());
}

TEST(Widen, RoundingToOddKeepsWhatALaterRoundingNeeds) {
  const std::vector<double> weights{1.0, 1 + 0x1p-24, 1 + 0x1p-30, 2 - 0x1p-30, -(1 + 0x1p-30), 1e300, 1e-300, 0.0};
  std::vector<float> tile(weights.size());
  const auto odd = widen(DType::f64, std::as_bytes(std::span(weights)), tile, Rounding::odd);
  const std::vector<float> expected{
      1.0f, 1 + 0x1p-23f, 1 + 0x1p-23f, 2 - 0x1p-23f, -(1 + 0x1p-23f), 0x1.fffffep127f, 0x1p-149f, 0.0f};
  EXPECT_EQ(std::vector<float>(odd.begin(), odd.end()), expected);
}

TEST(Widen, TilesCoverEveryWeightOnce) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, tile_weights - 1, tile_weights, 3 * tile_weights + 5}) {
    std::vector<float> weights(n), seen(n);
    for (std::size_t i = 0; i < n; ++i) weights[i] = static_cast<float>(i);
    for_each_tile(DType::f32, std::as_bytes(std::span(weights)), [&](std::size_t i, std::span<const float> tile) {
      EXPECT_LE(tile.size(), tile_weights);
      std::copy(tile.begin(), tile.end(), seen.begin() + static_cast<std::ptrdiff_t>(i));
    });
    EXPECT_EQ(seen, weights);
  }
}

TEST(CountNonfinite, TellsOverflowFromInfinity) {
  const std::vector<double> weights{1.0, 1e300, HUGE_VAL, std::nan(""), 65520.0};
  const auto bytes = std::as_bytes(std::span(weights));
  EXPECT_EQ(count_nonfinite(DType::f64, bytes, 10),
            (Findings{.nan = 1, .inf = 1, .overflow = 1, .overflow_fp32 = 1, .first_nonfinite = 11}));
  EXPECT_EQ(count_nonfinite(DType::f64, bytes, 0, 65520.0f),
            (Findings{.nan = 1, .inf = 1, .overflow = 2, .overflow_fp32 = 1, .first_nonfinite = 1}));
}

}  // namespace
}  // namespace nibble::widen_test
