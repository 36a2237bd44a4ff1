#include "quant/matmul/amx/terms.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::matmul {
namespace {

double sum_of_terms(float number, std::size_t terms) {
  double sum = 0;
  for (std::size_t i = 0; i < terms; ++i) {
    std::uint16_t term = 0;
    take_term({&number, 1}, {&term, 1});
    sum += bf16::to_float(term);
  }
  return sum;
}

TEST(Terms, AreExactlyANumberInFp16) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float number = fp16::to_float(static_cast<std::uint16_t>(bits));
    if (!std::isfinite(number)) continue;
    ASSERT_EQ(sum_of_terms(number, terms_of(DType::f16)), number) << bits;
  }
}

TEST(Terms, AreExactlyANumberInFp32) {
  for (const float number : test::normal_weights(10000, 1))
    ASSERT_EQ(sum_of_terms(number, terms_of(DType::f32)), number);
}

TEST(Terms, RoundOneByOne) {
  std::vector<float> numbers{1.0f + 0x1p-8f + 0x1p-20f, -3.0f};
  std::vector<std::uint16_t> term(2);
  take_term(numbers, term);
  EXPECT_EQ(bf16::to_float(term[0]), 1 + 0x1p-7f);
  EXPECT_EQ(numbers, (std::vector<float>{0x1p-20f - 0x1p-8f, 0}));
}

}  // namespace
}  // namespace nibble::matmul
