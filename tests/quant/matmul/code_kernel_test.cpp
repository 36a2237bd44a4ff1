#include "quant/matmul/code_kernel.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "quant/matmul/row_kernel.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/matmul/exact.hpp"

namespace nibble::matmul {
namespace {

using exact::Codes;
using exact::Matrix;

constexpr std::size_t max_tested_rows = 9;

// x in the order of the kernel, from memory without alignment.
Lines<std::uint32_t> arranged_for(const CodeKernel& kernel, const Matrix& x) {
  test::Bytes bytes(1);
  const test::Bytes stored = test::stored_as(kernel.x.from, x.values);
  bytes.insert(bytes.end(), stored.begin(), stored.end());
  Lines<std::uint32_t> words(kernel.x.parts * kernel.x.words(x.values.size()));
  kernel.x.arrange(bytes.data() + 1, x.values.size(), words.data());
  return words;
}

void expect_products(const CodeKernel& kernel, const Codes& codes, std::size_t m, bool is_exact,
                     const std::string& what) {
  const Matrix x = exact::integers(m, codes.weights.columns, 5);
  const std::size_t rows = codes.weights.rows;
  std::vector<float> sums(rows * m, 3.0f);
  kernel.multiply(codes.rows(), arranged_for(kernel, x).data(), kernel.x.words(x.columns), m, sums.data());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < m; ++i) {
      const float expected = 3 + exact::product(codes.weights, r, x, i);
      ASSERT_NEAR(sums[r * m + i], expected, is_exact ? 0 : 0x1p-20)
          << what << ", row " << r << " of " << rows << ", x " << i << " of " << m << ", blocksize " << codes.blocksize;
    }
}

TEST(CodeKernel, MultipliesAsALoopDoes) {
  test::for_each_target([](const std::string& target) {
    std::vector<std::pair<std::string, CodeKernel>> kernels{{"fp32", code_kernel_f32()}};
    if (const auto bf16 = code_kernel_bf16()) kernels.emplace_back("bf16", *bf16);
    if (const auto int16 = code_kernel_int16()) kernels.emplace_back("int16", *int16);
    for (const auto& [name, kernel] : kernels)
      for (std::size_t blocksize = kernel.min_blocksize; blocksize <= 512; blocksize *= 2)
        for (std::size_t rows = 1; rows <= max_tested_rows; ++rows)
          for (std::size_t m = 1; m <= kernel.max_m; ++m)
            expect_products(kernel, Codes(rows, 3 * blocksize, blocksize, 7), m, name != "int16", target + ", " + name);
  });
}

// Also where all products with the number are products with 0.
TEST(CodeKernel, SumsWithNumbersThatAreNotFiniteAreNotFinite) {
  test::for_each_target([](const std::string& target) {
    const auto kernel = code_kernel_int16();
    if (!kernel) return;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    constexpr std::size_t rows = 5, m = 3;
    for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()})
      for (std::size_t at = 0; at <= 128; ++at) {
        Codes codes(rows, 128, 64, 7);
        std::ranges::fill(codes.packed, std::uint8_t{0x88});  // zeros
        Matrix x = exact::integers(m, 128, 5);
        if (at < 128)
          x(1, at) = bad;
        else
          for (std::size_t c = 0; c < 128; ++c) x(1, c) = bad;
        std::vector<float> sums(rows * m, 3);
        kernel->multiply(codes.rows(), arranged_for(*kernel, x).data(), kernel->x.words(128), m, sums.data());
        for (std::size_t i = 0; i < sums.size(); ++i)
          EXPECT_EQ(std::isfinite(sums[i]), i % m != 1) << target << ", " << bad << " at " << at << ", sum " << i;
      }
  });
}

// sums[i][c] of natural columns.
Matrix added(const Codes& codes, const Matrix& x, std::size_t m) {
  const std::size_t columns = codes.weights.columns;
  Lines<float> sums(m * columns);
  std::fill_n(sums.data(), m * columns, 3.0f);
  add_code_rows(codes.rows(), x.values.data(), x.columns, m, sums.data(), columns);
  Matrix natural(m, columns);
  for (std::size_t i = 0; i < m; ++i)
    restore_four_bit(sums.data() + i * columns, columns, natural.values.data() + i * columns);
  return natural;
}

TEST(CodeKernel, AddsRowsAsALoopDoes) {
  test::for_each_target([](const std::string& target) {
    for (const std::size_t blocksize : {32u, 64u, 512u})
      for (const std::size_t rows : {1u, 7u, 8u, 9u, 17u})
        for (std::size_t m = 1; m <= code_kernel_f32().max_m; ++m) {
          const Codes codes(rows, 3 * blocksize, blocksize, 7);
          const Matrix x = exact::integers(m, rows + 1, 5), sums = added(codes, x, m);
          for (std::size_t i = 0; i < m; ++i)
            for (std::size_t c = 0; c < sums.columns; ++c) {
              float expected = 3;
              for (std::size_t r = 0; r < rows; ++r) expected += x(i, r) * codes.weights(r, c);
              ASSERT_EQ(sums(i, c), expected) << target << ", rows " << rows << ", x " << i << " of " << m
                                              << ", column " << c << ", blocksize " << blocksize;
            }
        }
  });
}

}  // namespace
}  // namespace nibble::matmul
