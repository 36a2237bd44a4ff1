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
    });
}

}  // namespace
}  // namespace nibble::magnitude_test
