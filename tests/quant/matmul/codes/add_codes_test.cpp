#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <span>

#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/words/row_kernel.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/matmul/exact.hpp"

namespace nibble::matmul {
namespace {

using exact::Codes;
using exact::Matrix;

// The sums of natural columns; nothing if the integers refuse.
std::optional<Matrix> added_integers(AddIntegers add, const Codes& codes, const std::vector<float>& x) {
  const std::size_t columns = codes.weights.columns;
  Lines<float> sums(columns);
  std::fill_n(sums.data(), columns, 3.0f);
  const bool are_added = add(codes.rows(), x.data(), sums.data());
  EXPECT_TRUE(are_added || std::ranges::all_of(std::span(sums.data(), columns), [](float sum) { return sum == 3; }));
  if (!are_added) return std::nullopt;
  Matrix natural(1, columns);
  restore_four_bit(sums.data(), columns, natural.values.data());
  return natural;
}

void for_each_kernel(const std::function<void(AddIntegers, const std::string&)>& check) {
  test::for_each_target([&](const std::string& target) {
    if (const AddIntegers vnni = add_code_rows_vnni()) check(vnni, target + ", AVX512_VNNI");
    if (const AddIntegers vbmi = add_code_rows_vbmi()) check(vbmi, target + ", AVX512_VBMI");
    if (const AddIntegers int16 = add_code_rows_int16()) check(int16, target);
  });
}

TEST(AddIntegers, AddsAsALoopDoes) {
  for_each_kernel([](AddIntegers add, const std::string& target) {
    for (const std::size_t blocksize : {64u, 128u, 512u, 4096u})
      for (const std::size_t columns :
           {2 * blocksize, 3 * blocksize, std::min<std::size_t>(20 * blocksize, 8192), std::size_t{8192}}) {
        if (columns > 8192 || (columns % 128 != 0 && add != add_code_rows_int16())) continue;
        const Codes codes(8, columns, blocksize, 7);
        std::vector<float> x = exact::integers(1, 8, 5).values;
        x[2] = 0;
        const auto sums = added_integers(add, codes, x);
        ASSERT_TRUE(sums) << target << ", blocksize " << blocksize;
        for (std::size_t c = 0; c < columns; ++c) {
          float expected = 3;
          for (std::size_t r = 0; r < 8; ++r) expected += x[r] * codes.weights(r, c);
          ASSERT_NEAR((*sums)(0, c), expected, 0x1p-18) << target << ", column " << c << ", blocksize " << blocksize;
        }
      }
  });
}

// The weights of the row with the outlier are 0.
TEST(AddIntegers, RefusesAnOutlierThatHidesTheRest) {
  for_each_kernel([](AddIntegers add, const std::string& target) {
    constexpr std::size_t columns = 128;
    Codes codes(8, columns, 64, 7);
    for (std::size_t c = 0; c < columns; ++c) codes.weights(3, c) = 0;
    std::fill_n(codes.packed.begin() + 3 * columns / 2, columns / 2, std::uint8_t{0x88});
    // Zeros do not hide that.
    EXPECT_FALSE(added_integers(add, codes, {0, 0x1.7p-13f, 0, 1, 0, 0x1.7p-13f, 0x1.7p-13f, 0})) << target;
    for (int exponent = 0; exponent < 30; ++exponent) {
      std::vector<float> x = test::normal_weights(8, 5);
      x[3] = std::ldexp(1.0f, exponent);
      const auto sums = added_integers(add, codes, x);
      // Between them, it depends on the other numbers.
      if (exponent < 3 || exponent > 6) {
        EXPECT_EQ(sums.has_value(), exponent < 3) << target << ", outlier of 2^" << exponent;
      }
      for (std::size_t c = 0; sums && c < columns; ++c) {
        float expected = 3, magnitude = 0;
        for (std::size_t r = 0; r < 8; ++r) {
          expected += x[r] * codes.weights(r, c);
          magnitude += std::abs(codes.weights(r, c));
        }
        EXPECT_NEAR((*sums)(0, c), expected, 0x1p-9f * magnitude) << target << ", outlier of 2^" << exponent;
      }
    }
  });
}

TEST(AddIntegers, RefusesOtherShapesAndNumbers) {
  for_each_kernel([](AddIntegers add, const std::string& target) {
    const std::vector<float> x(8, 1.0f);
    EXPECT_TRUE(added_integers(add, Codes(8, 128, 64, 7), x)) << target;
    EXPECT_FALSE(added_integers(add, Codes(7, 128, 64, 7), x)) << target;
    EXPECT_FALSE(added_integers(add, Codes(8, 128, 32, 7), x)) << target;
    EXPECT_EQ(added_integers(add, Codes(8, 192, 64, 7), x).has_value(), add == add_code_rows_int16()) << target;
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 1e38f})
      for (std::size_t row = 0; row < 8; ++row) {
        std::vector<float> of_bad = x;
        of_bad[row] = bad;
        EXPECT_FALSE(added_integers(add, Codes(8, 128, 64, 7), of_bad)) << target << ", " << bad << " in row " << row;
        if (std::isfinite(bad)) continue;
        for (std::size_t other = 0; other < 8; ++other) of_bad[other] = other == row ? bad : 0;
        EXPECT_FALSE(added_integers(add, Codes(8, 128, 64, 7), of_bad)) << target << ", zeros and " << bad;
      }
    EXPECT_FALSE(added_integers(add, Codes(8, 128, 64, 7), std::vector<float>(8, 0x1p-90f))) << target;
    EXPECT_TRUE(added_integers(add, Codes(8, 128, 64, 7), std::vector<float>(8, 0x1p-80f))) << target;
    EXPECT_FALSE(added_integers(add, Codes(8, 128, 64, 7), std::vector<float>(8, 3e38f))) << target;
    EXPECT_TRUE(added_integers(add, Codes(8, 128, 64, 7), std::vector<float>(8, 0.0f))) << target;
    Codes codes(8, 2048, 64, 7);
    codes.absmax[3 * 32 + 31] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(added_integers(add, codes, x)) << target;
  });
}

}  // namespace
}  // namespace nibble::matmul
