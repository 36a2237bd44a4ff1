// The products against a loop over std::fma, bit for bit.
#include "quant/quantizers/compensation/products.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::products_test {
namespace {

template <class T> std::vector<T> numbers(std::size_t n, unsigned seed) {
  const std::vector<float> normal = test::normal_weights(n, seed);
  return {normal.begin(), normal.end()};
}

template <class T> void compare() {
  constexpr std::size_t width = panel_width<T>, depth = 37, stride = width + 3;
  for (const std::size_t rows : std::initializer_list<std::size_t>{1, 2, 5, 6, 7, 8, 13}) {
    const std::vector<T> a = numbers<T>(rows * depth, 1), panel = numbers<T>(depth * width, 2),
                         start = numbers<T>(rows * stride, 3);
    std::vector<T> expected = start;
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < width; ++c)
        for (std::size_t p = 0; p < depth; ++p)
          expected[r * stride + c] = std::fma(-a[p * rows + r], panel[p * width + c], expected[r * stride + c]);
    test::for_each_target([&](const std::string& target) {
      std::vector<T> sums = start;
      for (const auto& [first, end] : {std::pair<std::size_t, std::size_t>{0, 11}, {11, 11}, {11, depth}})
        subtract_products(StridedMatrix<T>{a.data() + first * rows, 1, rows}, rows, end - first,
                          panel.data() + first * width, sums.data(), stride);
      EXPECT_EQ(sums, expected) << target << ", " << rows << " rows";
    });
  }
}

TEST(Products, OfSinglePrecisionAreRoundedOnceOnEveryTarget) { compare<float>(); }
TEST(Products, OfDoublePrecisionAreRoundedOnceOnEveryTarget) { compare<double>(); }

}  // namespace
}  // namespace nibble::products_test
