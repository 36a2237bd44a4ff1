// Absmax of blocks, by themselves and with double quantization: how tensors are cut, and what is kept until the end.
// The codes are tested with the codecs (four_bit_test.cpp and others).

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "nibble/nested.hpp"
#include "quant/errors/four_bit_error.hpp"
#include "quant/quantizers/quantizer.hpp"
#include "quant/simd/widen.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::absmax_blocks_test {
namespace {

using test::bytes_of;
using test::values_of;

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
constexpr const char* plain = "nf4:double-quant=no";
constexpr std::size_t blocksize = 64;

TEST(AbsmaxOfBlocks, ChunksAreWholeBlocksOrTiles) {
  for (const auto& [spec, size] :
       {std::pair<const char*, std::uint64_t>{"nf4", 64}, {"nf4:block-size=4096", 4096}, {"fp4:block-size=256", 256}}) {
    const auto codec = make_codec(spec);
    const auto quantizer = make_quantizer(*codec);
    const auto weights = [&](std::uint64_t limit) {
      const Chunking chunking = quantizer->chunking({"w", DType::f32, {100, 1000}}, limit);
      EXPECT_FALSE(chunking.scan);
      return chunking.weights;
    };
    EXPECT_EQ(weights(0), size);
    EXPECT_EQ(weights(size), size);
    EXPECT_EQ(weights(tile_weights - 1), std::max((tile_weights - 1) / size * size, size));
    EXPECT_EQ(weights(tile_weights), tile_weights);
    EXPECT_EQ(weights(3 * tile_weights - 1), 2 * tile_weights);
  }
}

TEST(AbsmaxOfBlocks, KeepsAnAbsmaxOfEachBlockAndErrorsOnlyForDoubleQuantization) {
  const TensorInfo tensor{"w", DType::f32, {3, 50}};  // 2 blocks and a part of one
  for (const bool sums_errors : {false, true})
    for (const bool nested : {false, true}) {
      const auto codec = make_codec(nested ? "nf4" : plain);
      EXPECT_EQ(make_quantizer(*codec, {.sums_errors = sums_errors})->scratch_bytes(tensor),
                3 * (4 + (sums_errors && nested ? sizeof(FourBitError) : 0)));
    }
}

// What is not finite does not count, and neither does what is in another block.
TEST(AbsmaxOfBlocks, IsTheLargestFiniteMagnitudeOfEachBlock) {
  std::vector<float> weights(3 * blocksize + 2, 0.5f);
  weights[3] = -2;
  weights[blocksize] = nan;
  weights[blocksize + 1] = 3;
  weights[2 * blocksize] = -infinity;
  weights.back() = -0.75f;
  const TensorInfo tensor{"w", DType::f32, {weights.size()}};
  const test::Encoded found = test::encode(*make_codec(plain), tensor, bytes_of(weights));
  EXPECT_EQ(values_of<float>(found.planes.at(1)), (std::vector<float>{2, 3, 0.5f, 0.75f}));
  EXPECT_EQ(found.findings.nan, 1U);
  EXPECT_EQ(found.findings.inf, 1U);
  EXPECT_EQ(found.findings.first_nonfinite, blocksize);
}

std::vector<float> absmax_of(const std::vector<float>& weights) {
  const TensorInfo tensor{"w", DType::f32, {weights.size()}};
  return values_of<float>(test::encode(*make_codec(plain), tensor, bytes_of(weights)).planes.at(1));
}

// More absmax values than a group has, and a last nested block that is short, in chunks that come last first.
TEST(AbsmaxOfBlocks, DoubleQuantizationIsThatOfAllAbsmaxValuesAtOnce) {
  const std::vector<float> weights = test::normal_weights((nested::group + 300) * blocksize - 7, 3);
  const std::vector<float> absmax = absmax_of(weights);
  ASSERT_EQ(absmax.size(), nested::group + 300);
  const float offset = nested::offset(absmax);
  std::vector<std::uint8_t> codes(absmax.size());
  std::vector<float> nested_absmax((absmax.size() + nested::blocksize - 1) / nested::blocksize);
  nested::encode(absmax, offset, codes, nested_absmax);

  const TensorInfo tensor{"w", DType::f32, {weights.size()}};
  const test::Encoded found = test::encode(*make_codec("nf4"), tensor, bytes_of(weights),
                                           {.limit = 10 * tile_weights, .order = test::backwards});
  EXPECT_EQ(found.planes.at(1), bytes_of(codes));
  EXPECT_EQ(found.planes.at(2), bytes_of(nested_absmax));
  EXPECT_EQ(found.planes.at(3), bytes_of(std::vector<float>(nested::codebook.begin(), nested::codebook.end())));
  EXPECT_EQ(found.planes.at(4), bytes_of(std::vector<float>{offset}));
}

// The spread is that of the absmax values before double quantization changes them; asked for, or else there is none.
TEST(AbsmaxOfBlocks, TellsTheSpreadOfTheAbsmaxValuesIfAsked) {
  const std::vector<float> weights = test::normal_weights(100 * blocksize, 4);
  const std::vector<float> absmax = absmax_of(weights);
  const TensorInfo tensor{"w", DType::f32, {weights.size()}};
  double sum = 0;
  for (const float value : absmax) sum += value;
  for (const char* const spec : {plain, "nf4"}) {
    EncodingError late;
    std::vector<ErrorSums> errors;
    (void)test::encode(*make_codec(spec), tensor, bytes_of(weights),
                       {.quantizer = {.sums_errors = true}, .errors = &errors, .late = &late});
    EXPECT_EQ(late.absmax.count, absmax.size());
    EXPECT_NEAR(late.absmax.sum, sum, 1e-9 * sum);
    EXPECT_EQ(late.sums == ErrorSums(), spec == plain);
    (void)test::encode(*make_codec(spec), tensor, bytes_of(weights), {.late = &late});
    EXPECT_EQ(late.absmax.count, 0U);
  }
}

}  // namespace
}  // namespace nibble::absmax_blocks_test
