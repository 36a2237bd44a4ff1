// Absmax of rows: how matrices are cut, and rows that are longer than a chunk. The codes are tested with the codec
// (int8_test.cpp).

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "quant/quantizers/quantizer.hpp"
#include "quant/quantizers/scanned_magnitude.hpp"
#include "quant/simd/widen.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::absmax_rows_test {
namespace {

using test::bytes_of;
using test::values_of;

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

class AbsmaxOfRows : public testing::Test {
 protected:
  [[nodiscard]] Chunking cut(const Shape& shape, std::uint64_t limit) const {
    return quantizer_->chunking({"w", DType::f32, shape}, limit);
  }
  void expect_cut(const Shape& shape, std::uint64_t limit, std::uint64_t weights, bool scan) const {
    EXPECT_EQ(cut(shape, limit).weights, weights) << to_string(shape) << ", " << limit;
    EXPECT_EQ(cut(shape, limit).scan, scan) << to_string(shape) << ", " << limit;
  }

  const std::unique_ptr<const Codec> codec_ = make_codec("int8");
  const std::unique_ptr<const Quantizer> quantizer_ = make_quantizer(*codec_);
};

TEST_F(AbsmaxOfRows, ChunksAreWholeRowsThatDoNotCutPieces) {
  expect_cut({3, 5}, 12, 10, false);
  expect_cut({100, 4096}, 10'000, 8192, false);
  expect_cut({100, 6144}, 16'384, 12'288, false);
  // A piece has 40 rows of 100 weights.
  expect_cut({1000, 100}, 4000, 4000, false);
  expect_cut({1000, 100}, 3999, 3900, false);
  expect_cut({1000, 100}, 11'999, 8000, false);
  // A device returns the absmax of all rows at once: 4096 of them at most, here whole pieces of 409.
  expect_cut({10'000, 10}, 1 << 20, 40'900, false);
  expect_cut({10'000, 1}, 1 << 20, 4096, false);
}

TEST_F(AbsmaxOfRows, LongerRowsAreScannedFirst) {
  expect_cut({100, 5000}, 5000, tile_weights, true);  // whole pieces only
  expect_cut({100, 4096}, 4095, 4095, true);
  expect_cut({3, 5}, 4, 4, true);
  expect_cut({3, 5}, 0, 1, true);
  expect_cut({3, 1}, 0, 1, false);
  expect_cut({3, 0}, 0, 1, false);
}

TEST_F(AbsmaxOfRows, KeepsANumberForEachRow) {
  const TensorInfo tensor{"w", DType::f16, {7, 5000}};
  EXPECT_EQ(quantizer_->scratch_bytes(tensor), 7 * sizeof(float));
  EXPECT_EQ(quantizer_->scan_bytes(tensor), 7 * scanned_magnitude_bytes);
}

// The largest magnitude may be in any chunk of a row, and what is not finite or beyond fp16 in another: it is
// replaced by a number that fp16 can hold before the absmax is taken.
TEST_F(AbsmaxOfRows, RowsInSeveralChunksAreCodedAsAWhole) {
  constexpr std::uint64_t columns = 2 * tile_weights + 100;
  const TensorInfo tensor{"w", DType::f32, {4, columns}};
  std::vector<float> weights = test::normal_weights(tensor.elements(), 1, 0.1f);
  weights[columns - 1] = -3;
  weights[columns + 5] = 2;
  weights[2 * columns - 1] = nan;
  weights[2 * columns] = infinity;
  weights[2 * columns + tile_weights] = 4;
  weights[4 * columns - 1] = -1e30f;
  const test::Encoded whole = test::encode(*codec_, tensor, bytes_of(weights));
  EXPECT_EQ(values_of<float>(whole.planes.at(1)), (std::vector<float>{3, 2, 4, 65504}));
  EXPECT_EQ(whole.findings.nan, 1U);
  EXPECT_EQ(whole.findings.inf, 1U);
  EXPECT_EQ(whole.findings.overflow, 1U);
  EXPECT_EQ(whole.findings.first_nonfinite, 2 * columns - 1);
  ASSERT_TRUE(cut(tensor.shape, tile_weights).scan);
  for (const test::ChunkOrder& order : {test::ChunkOrder(test::in_order), test::ChunkOrder(test::backwards)})
    EXPECT_EQ(test::encode(*codec_, tensor, bytes_of(weights), {.limit = tile_weights, .order = order}), whole);
}

// A chunk may have the end of one and the beginning of another: what is not finite in the first must not be taken for
// plain because the second is.
TEST_F(AbsmaxOfRows, ShortRowsInSeveralChunksAreCodedAsAWhole) {
  const TensorInfo tensor{"w", DType::f32, {6, 100}};
  std::vector<float> weights = test::normal_weights(tensor.elements(), 6, 0.1f);
  weights[185] = nan;
  const test::Encoded whole = test::encode(*codec_, tensor, bytes_of(weights));
  EXPECT_EQ(whole.findings.first_nonfinite, 185U);
  ASSERT_TRUE(cut(tensor.shape, 90).scan);
  EXPECT_EQ(test::encode(*codec_, tensor, bytes_of(weights), {.limit = 90}), whole);
}

// Each has one absmax to count, whether it was scanned or not.
TEST_F(AbsmaxOfRows, TellsTheSpreadOfTheAbsmaxValues) {
  const TensorInfo tensor{"w", DType::f32, {3, tile_weights}};
  std::vector<float> weights(tensor.elements(), 0.25f);
  weights[0] = -1;
  weights[2 * tile_weights] = 4;
  for (const std::uint64_t limit : {tile_weights / 2, 3 * tile_weights}) {
    EncodingError late;
    (void)test::encode(*codec_, tensor, bytes_of(weights), {.limit = limit, .late = &late});
    EXPECT_EQ(late.absmax.count, 3U);
    EXPECT_EQ(late.absmax.sum, 5.25);
  }
}

}  // namespace
}  // namespace nibble::absmax_rows_test
