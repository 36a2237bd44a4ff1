// Scales of regions: how matrices are cut, and regions that are larger than a chunk. The codes are tested with the
// codec (fp8_test.cpp).

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "quant/quantizers/quantizer.hpp"
#include "quant/quantizers/scanned_magnitude.hpp"
#include "quant/simd/widen.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::absmax_regions_test {
namespace {

using test::bytes_of;
using test::values_of;

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
constexpr const char* specs[] = {"fp8", "fp8:scales=tensor", "fp8:scales=block"};

void expect_cut(const char* spec, const Shape& shape, std::uint64_t limit, std::uint64_t weights, bool scan) {
  const auto codec = make_codec(spec);
  const Chunking found = make_quantizer(*codec)->chunking({"w", DType::f32, shape}, limit);
  EXPECT_EQ(found.weights, weights) << spec << ", " << to_string(shape) << ", " << limit;
  EXPECT_EQ(found.scan, scan) << spec << ", " << to_string(shape) << ", " << limit;
}

TEST(AbsmaxOfRegions, WhatFitsIsOneChunk) {
  for (const char* const spec : specs) {
    expect_cut(spec, {300, 200}, 60'000, 60'000, false);
    expect_cut(spec, {300, 0}, 300, 300, false);
  }
}

TEST(AbsmaxOfRegions, ChunksAreWholeBandsThatDoNotCutPieces) {
  expect_cut("fp8", {10, 5000}, 12'000, 10'000, false);
  expect_cut("fp8", {300, 200}, 20'000, 19'200, false);  // a piece has 16 rows
  expect_cut("fp8", {300, 200}, 3100, 3000, false);
  expect_cut("fp8:scales=block", {300, 200}, 59'999, 51'200, false);
  expect_cut("fp8:scales=block", {300, 200}, 25'600, 25'600, false);
}

TEST(AbsmaxOfRegions, LargerRegionsAreScannedFirst) {
  expect_cut("fp8", {10, 5000}, 4999, tile_weights, true);
  expect_cut("fp8", {300, 200}, 100, 100, true);
  expect_cut("fp8:scales=tensor", {10, 5000}, 12'000, 2 * tile_weights, true);
  expect_cut("fp8:scales=block", {300, 200}, 25'599, 22'400, true);
  expect_cut("fp8:scales=block", {300, 200}, 0, 1, true);
}

TEST(AbsmaxOfRegions, KeepsANumberForEachRegion) {
  const TensorInfo tensor{"w", DType::bf16, {300, 200}};
  for (const auto& [spec, regions] :
       {std::pair<const char*, std::uint64_t>{specs[0], 300}, {specs[1], 1}, {specs[2], 3 * 2}}) {
    const auto codec = make_codec(spec);
    EXPECT_EQ(make_quantizer(*codec)->scratch_bytes(tensor), regions * sizeof(float)) << spec;
    EXPECT_EQ(make_quantizer(*codec)->scan_bytes(tensor), regions * scanned_magnitude_bytes) << spec;
  }
}

// A region of zeros has the epsilon of the scale's type.
TEST(AbsmaxOfRegions, ScalesTakeTheLargestMagnitudeToTheLargestCode) {
  for (const auto& [type, epsilon] :
       {std::pair{DType::f32, 0x1p-23f}, {DType::f64, 0x1p-23f}, {DType::bf16, 0x1p-7f}, {DType::f16, 0x1p-10f}}) {
    const TensorInfo tensor{"w", type, {3, 2}};
    const auto weights = test::stored_as(type, {7, -896, 0, 0, 448, 3});
    const test::Encoded found = test::encode(*make_codec("fp8"), tensor, weights);
    const DType stored = type == DType::f64 ? DType::f32 : type;
    EXPECT_EQ(test::numbers_of(stored, found.planes.at(1)), (std::vector<double>{2, epsilon, 1}));
  }
}

// A scale's rows may be in any chunks; what is not finite does not count for it.
TEST(AbsmaxOfRegions, RegionsInSeveralChunksAreCodedAsAWhole) {
  const TensorInfo tensor{"w", DType::f32, {200, 300}};
  std::vector<float> weights = test::normal_weights(tensor.elements(), 2, 0.1f);
  weights[5] = -448;               // tile 0
  weights[127 * 300 + 128] = 896;  // tile 1
  weights[256] = infinity;         // tile 2
  weights[100 * 300 + 299] = -2 * 448;
  weights[199 * 300] = nan;  // tile 3
  weights[128 * 300 + 1] = 4 * 448;
  weights[199 * 300 + 200] = 8 * 448;  // tile 4
  weights.back() = -16 * 448;          // tile 5
  const auto scales_of = [&](const test::Encoded& encoded) { return values_of<float>(encoded.planes.at(1)); };
  for (const char* const spec : specs) {
    const auto codec = make_codec(spec);
    const test::Encoded whole = test::encode(*codec, tensor, bytes_of(weights));
    if (spec == specs[1]) {
      EXPECT_EQ(scales_of(whole), std::vector<float>{16});
    }
    if (spec == specs[2]) {
      EXPECT_EQ(scales_of(whole), (std::vector<float>{1, 2, 2, 4, 8, 16}));
    }
    EXPECT_EQ(whole.findings.nan, 1U);
    EXPECT_EQ(whole.findings.inf, 1U);
    EXPECT_EQ(whole.findings.first_nonfinite, 256U);
    for (const std::uint64_t limit : {17U, 4096U, 40'000U})
      EXPECT_EQ(test::encode(*codec, tensor, bytes_of(weights), {.limit = limit, .order = test::backwards}), whole)
          << spec << ", " << limit;
  }
}

TEST(AbsmaxOfRegions, TellsTheSpreadOfTheAbsmaxValues) {
  const TensorInfo tensor{"w", DType::f32, {3, 100}};
  std::vector<float> weights(tensor.elements(), 0.25f);
  weights[0] = -1;
  weights[200] = 4;
  for (const std::uint64_t limit : {50U, 300U}) {
    EncodingError late;
    (void)test::encode(*make_codec("fp8"), tensor, bytes_of(weights), {.limit = limit, .late = &late});
    EXPECT_EQ(late.absmax.count, 3U);
    EXPECT_EQ(late.absmax.sum, 5.25);
  }
}

}  // namespace
}  // namespace nibble::absmax_regions_test
