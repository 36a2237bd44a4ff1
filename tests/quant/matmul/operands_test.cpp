#include "quant/matmul/operands.hpp"

#include <gtest/gtest.h>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::matmul {
namespace {

using test::Bytes;

// The distance from 1 to the next number.
float spacing(DType dtype) { return dtype == DType::f32 ? 0x1p-23f : dtype == DType::bf16 ? 0x1p-7f : 0x1p-10f; }

// The bias brings the sum beyond half of the spacing. Rounded before it is added, the sum would stay below.
TEST(Operands, SumsAndBiasAreRoundedOnce) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const float unit = spacing(dtype);
    const Bytes bias = test::stored_as(dtype, std::vector{unit * 3 / 8});
    Bytes y(bias.size());
    float sum = 1 + unit / 4;
    round({dtype, 1, {}, bias, y}, {0, 1}, {0, 1}, 1, &sum, 1);
    EXPECT_EQ(y, test::stored_as(dtype, std::vector{1 + unit})) << traits(dtype).name;
  }
}

TEST(Operands, OnlyTheseRowsAndColumnsAreWritten) {
  constexpr std::size_t m = 4, n = 2 * max_rounded_columns, stride = max_rounded_columns + 3;
  constexpr Range rows{1, 2}, columns{300, max_rounded_columns};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
    for (const bool has_bias : {false, true}) {
      std::vector<float> added(n), expected(m * n, -1.0f), sums(rows.size * stride, 100.0f);
      for (std::size_t i = 0; i < n; ++i) added[i] = static_cast<float>(i % 32);
      for (std::size_t r = 0; r < rows.size; ++r)
        for (std::size_t c = 0; c < columns.size; ++c) {
          const float sum = static_cast<float>(64 * r + c % 32);
          sums[r * stride + c] = sum;
          expected[(rows.first + r) * n + columns.first + c] = has_bias ? sum + added[columns.first + c] : sum;
        }
      const Bytes bias = has_bias ? test::stored_as(dtype, added) : Bytes();
      Bytes y = test::stored_as(dtype, std::vector<float>(m * n, -1.0f));
      round({dtype, m, {}, bias, y}, rows, columns, n, sums.data(), stride);
      EXPECT_EQ(y, test::stored_as(dtype, expected)) << traits(dtype).name << ", bias " << has_bias;
    }
}

}  // namespace
}  // namespace nibble::matmul
