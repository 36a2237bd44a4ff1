#include "quant/matmul/codes/code_kernel.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "quant/matmul/words/row_kernel.hpp"
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
    if (const auto vnni = code_kernel_vnni()) kernels.emplace_back("vnni", *vnni);
    if (const auto vbmi = code_kernel_vbmi()) kernels.emplace_back("vbmi", *vbmi);
    for (const auto& [name, kernel] : kernels)
      for (std::size_t blocksize = kernel.min_blocksize; blocksize <= 512; blocksize *= 2)
        for (std::size_t rows = 1; rows <= max_tested_rows; ++rows)
          for (std::size_t m = 1; m <= kernel.max_m; ++m)
            expect_products(kernel, Codes(rows, 3 * std::max(blocksize, kernel.depth_multiple), blocksize, 7), m,
                            kernel.x.parts == 1, target + ", " + name);
  });
}

// The weights of one number of a row of x, which hides the others of its block in the first part, are 0.
void expect_second_part(const CodeKernel& kernel, std::size_t m, std::size_t row, std::size_t outlier_block,
                        const std::string& what) {
  constexpr std::size_t rows = 5, columns = 384, first_columns = 256, blocksize = 64;
  const std::size_t outlier = outlier_block * blocksize + 5;
  Codes codes(rows, columns, blocksize, 7);
  for (std::size_t r = 0; r < rows; ++r) {
    std::uint8_t& byte = codes.packed[(r * columns + outlier) / 2];
    byte = static_cast<std::uint8_t>((byte & 0xF0) | 8);  // the column is odd
    codes.weights(r, outlier) = 0;
  }
  Matrix x = exact::integers(m, columns, 5);
  x(row, outlier) = 0x1p17f;
  const auto words = arranged_for(kernel, x);
  std::vector<float> sums(rows * m, 0.0f);
  CodeRows part = codes.rows();
  part.n = first_columns;
  kernel.multiply(part, words.data(), kernel.x.words(columns), m, sums.data());
  part.n = columns - first_columns;
  part.packed += first_columns / 2;
  part.absmax += first_columns / blocksize;
  kernel.multiply(part, words.data() + kernel.x.words(first_columns), kernel.x.words(columns), m, sums.data());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < m; ++i)
      ASSERT_NEAR(sums[r * m + i], exact::product(codes.weights, r, x, i), 0x1p-6)
          << what << ", outlier in block " << outlier_block << " of row " << row << ", row " << r << ", x " << i
          << " of " << m;
}

TEST(CodeKernel, AddsSecondPartsWhereThereAreOutliers) {
  test::for_each_target([](const std::string& target) {
    for (const auto& kernel : {code_kernel_int16(), code_kernel_vnni(), code_kernel_vbmi()})
      for (const std::size_t m : {1u, 3u, 7u, 16u})
        for (const std::size_t row : {std::size_t{0}, m - 1})
          for (std::size_t block = 0; kernel && block < 6; ++block) expect_second_part(*kernel, m, row, block, target);
  });
}

// Also where all products with the number are products with 0.
TEST(CodeKernel, SumsWithNumbersThatAreNotFiniteAreNotFinite) {
  test::for_each_target([](const std::string& target) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    constexpr std::size_t rows = 5, m = 3;
    for (const auto& kernel : {code_kernel_int16(), code_kernel_vnni(), code_kernel_vbmi()})
      for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()})
        for (std::size_t at = 0; kernel && at <= 128; ++at) {
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
        for (std::size_t m = 1; m <= max_m_of_add_code_rows(); ++m) {
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
