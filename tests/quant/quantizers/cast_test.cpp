// Casts, where it matters that a chunk is encoded tile by tile, and the errors that they report. The numbers themselves
// are tested with the codecs (bf16_test.cpp and others).

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "quant/quantizers/quantizer.hpp"
#include "quant/simd/widen.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::cast_quantizer_test {
namespace {

using test::Bytes;
using test::bytes_of;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

TEST(CastQuantizer, PiecesOfErrorsAreNotCut) {
  const auto codec = make_codec("bf16");
  const auto quantizer = make_quantizer(*codec);
  const TensorInfo tensor{"w", DType::f32, {100, 1000}};
  const auto weights = [&](std::uint64_t limit) { return quantizer->chunking(tensor, limit).weights; };
  EXPECT_EQ(weights(0), 1U);
  EXPECT_EQ(weights(1), 1U);
  EXPECT_EQ(weights(tile_weights), tile_weights);
  EXPECT_EQ(weights(tile_weights + 1), tile_weights);
  EXPECT_EQ(weights(10 * tile_weights - 1), 9 * tile_weights);
  EXPECT_FALSE(quantizer->chunking(tensor, 1).scan);
}

// By its number in the tensor, in whatever tile or chunk it is.
TEST(CastQuantizer, TheFirstNonfiniteWeightIsCountedFromTheFirst) {
  const auto codec = make_codec("fp16");
  const TensorInfo tensor{"w", DType::f32, {5, tile_weights}};
  for (const std::uint64_t at : {std::uint64_t{0}, tile_weights - 1, tile_weights, 3 * tile_weights + 5}) {
    std::vector<float> weights(tensor.elements(), 1.0f);
    weights[at] = nan;
    weights.back() = nan;
    for (const std::uint64_t limit : {tile_weights, 2 * tile_weights, 5 * tile_weights}) {
      const Findings findings = test::encode(*codec, tensor, bytes_of(weights), {.limit = limit}).findings;
      EXPECT_EQ(findings.first_nonfinite, at) << limit;
      EXPECT_EQ(findings.nan, 2U);
    }
  }
}

std::vector<ErrorSums> errors_of(std::string_view to, DType source, const Bytes& weights) {
  std::vector<ErrorSums> errors;
  const TensorInfo tensor{"w", source, {weights.size() / (traits(source).bits / 8)}};
  (void)test::encode(*make_codec(to), tensor, weights, {.errors = &errors});
  return errors;
}

// Rounded to fp32 first, they would have no error at all.
TEST(CastQuantizer, ErrorsOfFp64AreNotRoundedFirst) {
  const double weight = 1 + std::ldexp(1.0, -40);
  const std::vector<ErrorSums> errors = errors_of("fp32", DType::f64, bytes_of(std::vector<double>{weight, -2}));
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].count, 2U);
  EXPECT_EQ(errors[0].square, std::ldexp(1.0, -80));
  EXPECT_EQ(errors[0].product, weight + 4);
}

// A pair of which one is no number, or is beyond fp32, has no error that could be said.
TEST(CastQuantizer, ErrorsOfFp64LeaveOutWhatHasNone) {
  const double largest = std::numeric_limits<float>::max(), infinity = std::numeric_limits<double>::infinity();
  for (const double weight : {double{nan}, infinity, -infinity, std::nextafter(largest, infinity), 1e300, -1e300})
    for (const char* const to : {"fp32", "bf16"}) {
      const std::vector<ErrorSums> errors = errors_of(to, DType::f64, bytes_of(std::vector<double>{weight, 3}));
      ASSERT_EQ(errors.size(), 1U);
      EXPECT_EQ(errors[0].count, 1U) << weight << " to " << to;
      EXPECT_EQ(errors[0].square, 0) << weight << " to " << to;
    }
  // It fits into fp32, but becomes an infinity there.
  EXPECT_EQ(errors_of("bf16", DType::f64, bytes_of(std::vector<double>{largest, 3}))[0].count, 1U);
  EXPECT_EQ(errors_of("fp32", DType::f64, bytes_of(std::vector<double>{largest, 3}))[0].count, 2U);
}

TEST(CastQuantizer, WhatHasTheTypeAlreadyHasNoErrors) {
  const std::vector<float> weights(2 * tile_weights + 1, 1.5f);
  EXPECT_EQ(errors_of("fp32", DType::f32, bytes_of(weights)).size(), 0U);
  EXPECT_EQ(errors_of("bf16", DType::f32, bytes_of(weights)).size(), 3U);  // one for each tile
}

}  // namespace
}  // namespace nibble::cast_quantizer_test
