// Regions of a matrix against their definition, weight by weight, and scales as they are stored. What codecs make of
// both is in fp8_test.cpp.

#include "quant/codecs/scaled.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "nibble/error.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::scaled_test {
namespace {

using test::Bytes;
using test::bytes_of;

constexpr Granularity granularities[] = {Granularity::row, Granularity::tensor, Granularity::tile};

Regions regions(Granularity granularity, const Shape& shape) { return {granularity, {"w", DType::f32, shape}}; }

// The region of a weight, as the header defines it.
std::uint64_t region_of(Granularity granularity, const Shape& shape, std::uint64_t weight) {
  const std::uint64_t row = weight / shape[1], column = weight % shape[1];
  if (granularity == Granularity::tensor) return 0;
  if (granularity == Granularity::row) return row;
  return row / 128 * ((shape[1] + 127) / 128) + column / 128;
}

// From any weight to any other: runs follow each other, each lies in one region, and none could be longer.
TEST(Regions, RunsAreTheLongestOfOneRegion) {
  for (const Shape& shape : {Shape{1, 1}, Shape{3, 5}, Shape{130, 3}, Shape{2, 300}, Shape{129, 257}, Shape{256, 128}})
    for (const Granularity granularity : granularities) {
      const Regions all = regions(granularity, shape);
      const std::uint64_t weights = shape[0] * shape[1];
      for (const std::uint64_t first : {std::uint64_t{0}, weights / 3, weights / 2, weights - 1})
        for (const std::uint64_t n : {std::uint64_t{1}, (weights - first + 1) / 2, weights - first}) {
          std::uint64_t next = 0;
          std::uint64_t before = ~std::uint64_t{0};
          all.for_each_run(first, n, [&](std::uint64_t region, std::size_t begin, std::size_t end) {
            EXPECT_EQ(begin, next);
            ASSERT_LT(begin, end);
            ASSERT_LT(region, all.count());
            for (std::size_t i = begin; i < end; ++i)
              ASSERT_EQ(region, region_of(granularity, shape, first + i)) << to_string(shape) << ' ' << first + i;
            // A run goes on as long as it can, but for tiles, where it ends with the row.
            EXPECT_TRUE(region != before || (granularity == Granularity::tile && (first + begin) % shape[1] == 0));
            before = region;
            next = end;
          });
          EXPECT_EQ(next, n) << to_string(shape);
        }
    }
}

TEST(Regions, AMatrixOfOneTileIsOneRun) {
  std::size_t runs = 0;
  regions(Granularity::tile, {128, 128}).for_each_run(0, 128 * 128, [&](auto, auto, auto) { ++runs; });
  regions(Granularity::tile, {100, 7}).for_each_run(5, 600, [&](auto, auto, auto) { ++runs; });
  EXPECT_EQ(runs, 2U);
}

// Chunks are told the bands that they touch, the last of which may be short.
TEST(Regions, BandsOfAChunk) {
  const Regions tiles = regions(Granularity::tile, {257, 300});
  EXPECT_EQ(tiles.bands(), 3U);
  EXPECT_EQ(tiles.per_band(), 3U);
  EXPECT_EQ(tiles.first_of_band(128 * 300 - 1), 0U);
  EXPECT_EQ(tiles.first_of_band(128 * 300), 3U);
  EXPECT_EQ(tiles.first_of_band(257 * 300 - 1), 6U);
  EXPECT_EQ(tiles.count_in_bands(0, 128 * 300), 3U);
  EXPECT_EQ(tiles.count_in_bands(0, 128 * 300 + 1), 6U);
  EXPECT_EQ(tiles.count_in_bands(128 * 300 - 1, 2), 6U);
  EXPECT_EQ(tiles.count_in_bands(256 * 300, 300), 3U);
  const Regions rows = regions(Granularity::row, {257, 300});
  EXPECT_EQ(rows.count_in_bands(299, 2), 2U);
  EXPECT_EQ(rows.count(), 257U);
  EXPECT_EQ(regions(Granularity::tensor, {257, 300}).count_in_bands(299, 2000), 1U);
}

// Of no weights there is one scale for the tensor, and none for rows or tiles that do not exist.
TEST(Regions, EmptyMatrices) {
  for (const Shape& shape : {Shape{0, 5}, Shape{5, 0}, Shape{0, 0}}) {
    EXPECT_EQ(regions(Granularity::tensor, shape).count(), 1U);
    EXPECT_EQ(regions(Granularity::row, shape).count(), shape[0]);
    EXPECT_EQ(regions(Granularity::tile, shape).count(), 0U);
    for (const Granularity granularity : granularities)
      regions(granularity, shape).for_each_run(0, 0, [](auto, auto, auto) { ADD_FAILURE(); });
  }
}

// More of them than are widened at a time; 16 bits take the nearest.
TEST(Scales, AreStoredInThreeTypes) {
  std::vector<float> scales(5000);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = std::ldexp(1.0f + static_cast<float>(i) / 8192, -8);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    Bytes stored(byte_count(type, scales.size()));
    narrow_scales(scales, type, stored);
    EXPECT_EQ(stored, test::stored_as(type, scales)) << traits(type).name;
    const std::vector<double> expected = test::numbers_of(type, stored);
    EXPECT_EQ(widen_scales(stored, type), std::vector<float>(expected.begin(), expected.end())) << traits(type).name;
    narrow_scales({}, type, {});
    EXPECT_TRUE(widen_scales({}, type).empty());
  }
}

// F32 scales are taken for any weights, but as many as there are regions.
TEST(Scales, OfFp32HaveToBeAsManyAsThereAreRegions) {
  const auto codec = make_codec("fp8:scales=row");
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    const TensorInfo tensor{"m.weight", type, {3, 4}};
    const auto decodes = [&](std::size_t bytes) {
      const Bytes scales(bytes);
      try {
        return codec->decoder(tensor, std::vector<std::span<const std::byte>>{scales}) != nullptr;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::bad_input);
        return false;
      }
    };
    const bool is_half = type == DType::bf16 || type == DType::f16;
    EXPECT_TRUE(decodes(3 * 4)) << traits(type).name;
    EXPECT_EQ(decodes(3 * 2), is_half) << traits(type).name;
    for (const std::size_t bytes : {0U, 4U, 8U, 16U, 24U}) EXPECT_FALSE(decodes(bytes)) << traits(type).name << bytes;
  }
}

}  // namespace
}  // namespace nibble::scaled_test
