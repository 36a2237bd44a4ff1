#include "quant/matmul/codes/int16_factors.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/matmul/exact.hpp"

namespace nibble::matmul {
namespace {

using exact::Codes;

// The reference: the power of two that gives the largest factor of a block 14 bits, and rounding to the nearest.
TEST(Int16Factors, AreNearestIntegersInPowersOfTwo) {
  test::for_each_target([](const std::string& target) {
    for (const std::size_t blocks : {1u, 2u, 3u, 4u, 7u, 15u, 16u, 23u, 127u, 128u}) {
      const Codes codes(8, blocks * 64, 64, 7);
      const std::vector<float> x = test::normal_weights(8, 3);
      Int16Factors factors;
      ASSERT_TRUE(make_int16_factors(codes.rows(), x.data(), factors)) << target << ", " << blocks << " blocks";
      for (std::size_t b = 0; b < blocks; ++b) {
        float largest = 0;
        for (std::size_t r = 0; r < 8; ++r) largest = std::max(largest, std::abs(codes.absmax[r * blocks + b] * x[r]));
        const float one = std::ldexp(1.0f, std::ilogb(largest) - 13);
        EXPECT_EQ(factors.unit[b], one * codes.tables.int16_codebook.unit) << target << ", block " << b;
        for (std::size_t r = 0; r < 8; ++r) {
          const std::uint32_t pair = factors.of_pair[r / 2][b];
          const auto integer = static_cast<std::int16_t>(r % 2 == 0 ? pair & 0xFFFF : pair >> 16);
          EXPECT_EQ(static_cast<float>(integer), std::nearbyint(codes.absmax[r * blocks + b] * x[r] / one))
              << target << ", block " << b << " of " << blocks << ", row " << r;
        }
      }
    }
  });
}

TEST(Int16Factors, MayAllBeZeroInABlock) {
  test::for_each_target([](const std::string& target) {
    Codes codes(8, 23 * 64, 64, 7);
    for (std::size_t r = 0; r < 8; ++r) codes.absmax[r * 23 + 5] = codes.absmax[r * 23 + 22] = 0;
    Int16Factors factors;
    ASSERT_TRUE(make_int16_factors(codes.rows(), test::normal_weights(8, 3).data(), factors)) << target;
    for (const std::size_t b : {5u, 22u}) {
      for (const auto& of_pair : factors.of_pair) EXPECT_EQ(of_pair[b], 0) << target;
      EXPECT_TRUE(std::isfinite(factors.unit[b])) << target;
    }
  });
}

// Of any block.
TEST(Int16Factors, RefuseAnOutlier) {
  test::for_each_target([](const std::string& target) {
    for (const std::size_t blocks : {1u, 3u, 7u, 23u})
      for (std::size_t b = 0; b < blocks; ++b)
        for (std::size_t r = 0; r < 8; ++r) {
          Codes codes(8, blocks * 64, 64, 7);
          codes.absmax[r * blocks + b] = 1e6f;
          Int16Factors factors;
          const std::vector<float> x(8, 1.0f);
          EXPECT_FALSE(make_int16_factors(codes.rows(), x.data(), factors))
              << target << ", block " << b << " of " << blocks << ", row " << r;
        }
  });
}

}  // namespace
}  // namespace nibble::matmul
