#include "quant/matmul/codes/int8_kernel.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/matmul/exact.hpp"

namespace nibble::matmul {
namespace {

using exact::Matrix;

// The memory of the codes ends with the last one, so that AddressSanitizer sees what is read behind it.
void expect_products(std::size_t rows, std::size_t m, std::size_t n, const std::string& what) {
  const Matrix weights = exact::integers(rows, n, 7), x = exact::integers(m, n, 5);
  const std::vector<std::int8_t> codes(weights.values.begin(), weights.values.end());
  const Lines<std::uint32_t> words = exact::words(1, x);
  std::vector<float> sums(rows * m, 3.0f);
  multiply_int8_codes({codes.data(), n, rows, n, 0}, reinterpret_cast<const float*>(words.data()), n, m, sums.data());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < m; ++i)
      ASSERT_EQ(sums[r * m + i], 3 + exact::product(weights, r, x, i))
          << what << ", row " << r << " of " << rows << ", x " << i << " of " << m << ", n = " << n;
}

TEST(Int8Kernel, MultipliesAsALoopDoes) {
  test::for_each_target([](const std::string& target) {
    for (const std::size_t n : {32u, 96u, 2048u})
      for (std::size_t rows = 1; rows <= 9; ++rows)
        for (std::size_t m = 1; m <= 9; ++m) expect_products(rows, m, n, target);
  });
}

// The memory of the sums ends with the last one, too.
TEST(Int8Kernel, AddsRowsAsALoopDoes) {
  test::for_each_target([](const std::string& target) {
    for (const std::size_t n : {32u, 96u, 2048u})
      for (std::size_t rows = 1; rows <= 9; ++rows)
        for (std::size_t m = 1; m <= 5; ++m) {
          const Matrix weights = exact::integers(rows, n, 7), factors = exact::integers(m, rows + 3, 5);
          const std::vector<std::int8_t> codes(weights.values.begin(), weights.values.end());
          const std::size_t n_read = n - (n > 32 ? 32 : 0);  // the strides are larger
          std::vector<float> sums(m * n, 3.0f);
          add_int8_code_rows({codes.data(), n, rows, n_read, 0}, factors.values.data(), factors.columns, m, sums.data(),
                             n);
          for (std::size_t i = 0; i < m; ++i)
            for (std::size_t c = 0; c < n; ++c) {
              float expected = 3;
              for (std::size_t r = 0; r < rows && c < n_read; ++r) expected += factors(i, r) * weights(r, c);
              ASSERT_EQ(sums[i * n + c], expected) << target << ", column " << c << " of " << n << ", row " << i
                                                   << " of " << m << ", " << rows << " rows of codes";
            }
        }
  });
}

TEST(Int8Kernel, FactorsThatMayLoseBitsAreNan) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float value : {0.0f, 1e-30f, 1.0f, 1e30f}) {
    EXPECT_EQ(factor_of_int8_codes(value), value);
    EXPECT_EQ(factor_of_int8_codes(-value), -value);
  }
  for (const float value : {1e-31f, 1e31f, infinity, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(factor_of_int8_codes(value))) << value;
    EXPECT_TRUE(std::isnan(factor_of_int8_codes(-value))) << value;
  }
}

TEST(Int8Kernel, MultipliesEveryCode) {
  std::vector<std::int8_t> codes(256);
  std::vector<float> x(256);
  float expected = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<std::int8_t>(static_cast<int>(i) - 128);
    x[i] = static_cast<float>(i % 7);
    expected += static_cast<float>(codes[i]) * x[i];
  }
  Matrix row(1, x.size());
  row.values = x;
  const Lines<std::uint32_t> words = exact::words(1, row);
  test::for_each_target([&](const std::string& target) {
    float sum = 0;
    multiply_int8_codes({codes.data(), 256, 1, 256, 0}, reinterpret_cast<const float*>(words.data()), 256, 1, &sum);
    EXPECT_EQ(sum, expected) << target;
  });
}

}  // namespace
}  // namespace nibble::matmul
