#include "quant/simd/magnitude.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::magnitude_test {
namespace {

// Wherever the largest stands, in numbers of weights that are no multiple of any vector.
TEST(LargestMagnitude, IsThatOfAnyWeight) {
  for (const DType source : {DType::f32, DType::bf16, DType::f16})
    test::for_each_target([&](const std::string& target) {
      EXPECT_EQ(largest_magnitude(source, {}), 0.0f) << target;
      for (const std::size_t n : {1U, 31U, 32U, 33U, 100U})
        for (std::size_t i = 0; i < n; ++i) {
          std::vector<float> weights(n, 0.5f);
          weights[i] = -2.0f;
          EXPECT_EQ(largest_magnitude(source, test::stored_as(source, weights)), 2.0f) << target << ' ' << n;
        }
    });
}

TEST(LargestMagnitude, NothingIsLargerThanWhatIsNotFinite) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const DType source : {DType::f32, DType::bf16, DType::f16})
    test::for_each_target([&](const std::string& target) {
      EXPECT_EQ(largest_magnitude(source, test::stored_as(source, {1, -infinity, 60000})), infinity) << target;
      EXPECT_TRUE(std::isnan(largest_magnitude(source, test::stored_as(source, {1, -infinity, NAN, 60000}))));
      for (const std::size_t n : {33U, 100U})
        for (const std::size_t i : {std::size_t{0}, n - 1}) {
          std::vector<float> weights(n, 0.5f);
          weights[i] = NAN;
          EXPECT_TRUE(std::isnan(largest_magnitude(source, test::stored_as(source, weights)))) << target << n << i;
        }
    });
}

// The last block is short.
TEST(LargestMagnitude, IsThatOfEachBlock) {
  constexpr std::size_t n = 11 * 64 + 7;
  for (const DType source : {DType::f32, DType::bf16, DType::f16})
    test::for_each_target([&](const std::string& target) {
      for (const std::size_t blocksize : {32U, 64U, 512U}) {
        std::vector<float> weights(n, 0.5f), expected;
        for (std::size_t first = 0; first < n; first += blocksize) {
          weights[std::min(first + first / blocksize % blocksize, n - 1)] = -static_cast<float>(first + blocksize);
          expected.push_back(static_cast<float>(first + blocksize));
        }
        weights[3 * blocksize % n] = expected[3 * blocksize % n / blocksize] = NAN;
        std::vector<float> largest(expected.size());
        largest_magnitudes(source, test::stored_as(source, weights), blocksize, largest);
        for (std::size_t b = 0; b < expected.size(); ++b)
          EXPECT_TRUE(largest[b] == expected[b] || (std::isnan(largest[b]) && std::isnan(expected[b])))
              << target << traits(source).name << blocksize << ' ' << b;
      }
    });
}

}  // namespace
}  // namespace nibble::magnitude_test
