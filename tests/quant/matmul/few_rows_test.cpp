#include "quant/matmul/few_rows.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "quant/matmul/arranged.hpp"

namespace nibble::matmul {
namespace {

bool are_few_four_bit(std::size_t m, std::size_t k, std::size_t blocksize) {
  constexpr std::size_t n = 3;
  const std::vector<std::uint8_t> packed((n * k + 1) / 2);
  const std::vector<float> absmax((n * k + blocksize - 1) / blocksize);
  const FourBitRows weight({n, k, Codebook::nf4, blocksize, packed, absmax, {}, {}, {}, 0.0f});
  return are_few_rows(weight, {DType::f32, m, {}, {}, {}});
}

bool are_few_int8(std::size_t m, std::size_t k) {
  const std::vector<std::int8_t> codes(k);
  const std::vector<float> absmax(1);
  return are_few_rows(Int8Rows({1, k, codes, absmax}), {DType::f32, m, {}, {}, {}});
}

TEST(FewRows, AreAtMost32) {
  EXPECT_TRUE(are_few_four_bit(32, 64, 64));
  EXPECT_FALSE(are_few_four_bit(33, 64, 64));
  EXPECT_TRUE(are_few_int8(32, 64));
  EXPECT_FALSE(are_few_int8(33, 64));
}

TEST(FewRows, FitIntoOneMebibyte) {
  constexpr std::size_t k = max_arranged / 16;
  EXPECT_TRUE(are_few_four_bit(16, k, 64));
  EXPECT_FALSE(are_few_four_bit(17, k, 64));
  EXPECT_TRUE(are_few_int8(16, k));
  EXPECT_FALSE(are_few_int8(17, k));
}

TEST(FewRows, NeedRowsOfWholeVectorsAndBlocks) {
  EXPECT_TRUE(are_few_int8(1, 96));
  EXPECT_FALSE(are_few_int8(1, 80));
  EXPECT_TRUE(are_few_four_bit(1, 96, 32));
  EXPECT_FALSE(are_few_four_bit(1, 96, 64));
}

TEST(FewRows, NeedBlocksThatEndWithThePartsOfARow) {
  EXPECT_TRUE(are_few_four_bit(1, 4096, 2048));
  EXPECT_FALSE(are_few_four_bit(1, 4096, 4096));
}

}  // namespace
}  // namespace nibble::matmul
