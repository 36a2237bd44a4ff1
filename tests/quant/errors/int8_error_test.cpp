// int8::compare_rows() against the definition of its sums, in fp64 from the first weight to the last.

#include "quant/errors/int8_error.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"
#include "nibble/int8.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::int8_error_test {
namespace {

// 4096 products in 32 lanes of fp32, and two roundings of what is decoded.
constexpr double tolerance = 140 * 0x1p-24;

float as_stored(DType source, float weight) {
  return source == DType::bf16  ? bf16::to_float(bf16::from_float(weight))
         : source == DType::f16 ? fp16::to_float(fp16::from_float(weight))
                                : weight;
}

// n weights of rows of `columns`, the first of which has `left` to come. The codes need not be good ones.
void expect_definition(DType source, std::size_t n, std::size_t columns, std::size_t left) {
  SCOPED_TRACE(std::string(traits(source).name) + ", " + std::to_string(n) + " weights in rows of " +
               std::to_string(columns) + ", " + std::to_string(left) + " left of the first");
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> weights(n), absmax(1 + n / columns + 1);
  std::vector<std::int8_t> codes(n);
  for (float& weight : weights) weight = normal(random);
  for (float& largest : absmax) largest = 2 + std::abs(normal(random));
  for (std::size_t i = 0; i < n; ++i) codes[i] = static_cast<std::int8_t>(static_cast<int>(i * 37 % 255) - 127);

  double square = 0, reference = 0, test = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t row = i < left ? 0 : 1 + (i - left) / columns;
    const double w = as_stored(source, weights[i]);
    const double t = static_cast<float>(codes[i]) * absmax[row] * int8::inverse_127;
    square += (t - w) * (t - w);
    reference += w * w;
    test += t * t;
  }
  Squares found;
  int8::compare_rows(source, test::stored_as(source, weights), codes, columns, left, absmax, found);
  EXPECT_NEAR(sum_of_lanes(found.square), square, tolerance * square);
  EXPECT_NEAR(sum_of_lanes(found.reference), reference, tolerance * reference);
  EXPECT_NEAR(sum_of_lanes(found.test), test, tolerance * test);
}

TEST(Int8Error, SumsAreThoseOfTheDefinition) {
  for (const DType source : {DType::f32, DType::bf16, DType::f16}) {
    expect_definition(source, 4096, 4096, 4096);
    expect_definition(source, 4096, 64, 64);
    expect_definition(source, 33, 33, 33);      // one step and a weight
    expect_definition(source, 4096, 100, 17);   // rows end within a step, the first one early
    expect_definition(source, 1000, 8192, 24);  // a row ends, and the next one is cut
    expect_definition(source, 31, 8192, 31);    // less than a step
  }
}

// Neighbouring rows are told apart: the absmax of a row is that of its weights alone.
TEST(Int8Error, EachRowHasItsOwnAbsmax) {
  const std::vector<float> weights(128, 1.0f), absmax{127.0f, 254.0f};
  const std::vector<std::int8_t> codes(128, 1);
  Squares found;
  int8::compare_rows(DType::f32, std::as_bytes(std::span(weights)), codes, 64, 64, absmax, found);
  EXPECT_NEAR(sum_of_lanes(found.test), 64 * 1.0 + 64 * 4.0, 1e-4);
  EXPECT_NEAR(sum_of_lanes(found.square), 64 * 1.0, 1e-4);
}

}  // namespace
}  // namespace nibble::int8_error_test
