#include "quant/matmul/code_kernel.hpp"

#include <gtest/gtest.h>

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
  const test::Bytes stored = test::stored_as(kernel.per_word == 1 ? DType::f32 : DType::bf16, x.values);
  bytes.insert(bytes.end(), stored.begin(), stored.end());
  Lines<std::uint32_t> words(x.values.size() / kernel.per_word);
  kernel.arrange(bytes.data() + 1, x.values.size(), words.data());
  return words;
}

void expect_products(const CodeKernel& kernel, const Codes& codes, std::size_t m, const std::string& what) {
  const Matrix x = exact::integers(m, codes.weights.columns, 5);
  const std::size_t rows = codes.weights.rows;
  std::vector<float> sums(rows * m, 3.0f);
  kernel.multiply(codes.rows(), arranged_for(kernel, x).data(), x.columns / kernel.per_word, m, sums.data());
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < m; ++i)
      ASSERT_EQ(sums[r * m + i], 3 + exact::product(codes.weights, r, x, i))
          << what << ", row " << r << " of " << rows << ", x " << i << " of " << m << ", blocksize " << codes.blocksize;
}

TEST(CodeKernel, MultipliesAsALoopDoes) {
  test::for_each_target([](const std::string& target) {
    std::vector<CodeKernel> kernels{code_kernel_f32()};
    if (const auto bf16 = code_kernel_bf16()) kernels.push_back(*bf16);
    for (const CodeKernel& kernel : kernels)
      for (std::size_t blocksize = kernel.min_blocksize; blocksize <= 512; blocksize *= 2)
        for (std::size_t rows = 1; rows <= max_tested_rows; ++rows)
          for (std::size_t m = 1; m <= kernel.max_m; ++m)
            expect_products(kernel, Codes(rows, 3 * blocksize, blocksize, 7), m,
                            target + ", per word " + std::to_string(kernel.per_word));
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
