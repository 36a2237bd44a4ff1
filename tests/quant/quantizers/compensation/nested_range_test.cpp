#include "quant/quantizers/compensation/nested_range.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nibble/nested.hpp"

namespace nibble::nested_range_test {
namespace {

TEST(NestedRange, IsKnownBeforeTheFirstBlock) {
  std::vector<float> largest(300, 1.0f);
  largest[10] = 3;
  largest[299] = 0.5f;
  const NestedRange of_largest(largest, AbsmaxChoice::max), of_search(largest, AbsmaxChoice::search);
  EXPECT_FLOAT_EQ(of_largest.offset, (298 + 3.5f) / 300);
  EXPECT_FLOAT_EQ(of_largest.nested_absmax.at(0), 3 - of_largest.offset);
  EXPECT_FLOAT_EQ(of_largest.nested_absmax.at(1), of_largest.offset - 0.5f);
  EXPECT_EQ(of_search.offset, 0);
  EXPECT_EQ(of_search.nested_absmax, (std::vector<float>{3, 1}));
  for (const NestedRange* range : {&of_largest, &of_search})
    for (const float absmax : {1e9f, 1.1f, 0.9f, 0.0f, -0.9f, -1e9f}) {
      const auto [nearest, other] = range->around(absmax, 256);
      double least = std::numeric_limits<double>::infinity();
      for (int code = 0; code < 256; ++code)
        least = std::min<double>(least, std::abs(range->value_of(static_cast<std::uint8_t>(code), 256) - absmax));
      EXPECT_NEAR(std::abs(range->value_of(nearest, 256) - absmax), least, 1e-6 * std::abs(absmax)) << absmax;
      EXPECT_EQ(std::abs(nearest - other), 1) << absmax;
      EXPECT_NE(range->value_of(nearest, 256), range->value_of(other, 256)) << absmax;
    }
  const NestedRange of_equal(std::vector<float>(5, 2.0f), AbsmaxChoice::max);
  EXPECT_EQ(of_equal.around(2, 0).nearest, nested::code_of_zero);
  EXPECT_EQ(of_equal.value_of(of_equal.around(3, 0).nearest, 0), 2);
}

}  // namespace
}  // namespace nibble::nested_range_test
