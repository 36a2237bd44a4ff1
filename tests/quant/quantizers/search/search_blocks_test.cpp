// The absmax of least error: how tensors are cut, what double quantization makes of it, and weights that are not
// finite. The search itself is tested in scale_search_test.cpp, and what all quantizers owe in quantizer_contract_test.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nibble/metrics.hpp"
#include "nibble/nested.hpp"
#include "nibble/nf4.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/quantizers/search/scale_search.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::search_blocks_test {
namespace {

using test::bytes_of;
using test::values_of;

constexpr const char *plain = "nf4:double-quant=no,absmax=search", *nested_search = "nf4:absmax=search";

double rmse(const CodecSpec& codec, const std::vector<float>& weights) {
  return compare(weights, test::round_trip(*make_codec(codec), weights, {1024, weights.size() / 1024})).rmse();
}

// Trying all multiples of 1/64 of the largest magnitude reaches 0.8966 and 0.9218.
TEST(SearchOfBlocks, LowersTheErrorOfNormalWeightsByATenth) {
  const std::vector<float> weights = test::normal_weights(1 << 20, 7);
  const double largest = rmse("nf4:double-quant=no", weights);
  EXPECT_LE(rmse(plain, weights), 0.899 * largest);
  EXPECT_LE(rmse(nested_search, weights), 0.901 * largest);
  EXPECT_LE(rmse("nf4:double-quant=no,absmax=search-positive", weights), 0.924 * largest);
  EXPECT_LE(rmse("nf4:absmax=search-positive", weights), 0.927 * largest);
}

TEST(SearchOfBlocks, ChunksAreWholeNestedBlocks) {
  const auto chunk = [](const char* spec, std::uint64_t limit) {
    const auto codec = make_codec(spec);
    return make_quantizer(*codec)->chunking({"w", DType::f32, {100, 1000}}, limit).weights;
  };
  EXPECT_EQ(chunk(nested_search, 1), 256U * 64);
  EXPECT_EQ(chunk(nested_search, 3 * 256 * 64 - 1), 2U * 256 * 64);
  EXPECT_EQ(chunk(plain, 1), 64U);
  EXPECT_EQ(chunk(plain, 4096 + 64), 4096U);
}

std::vector<float> mean_squares(std::size_t columns) {
  std::vector<float> squares = test::normal_weights(columns, 17);
  for (float& square : squares) square = std::exp(2 * square);
  return squares;
}

// The larger gain of the two codes around the absmax that was found, and an offset of 0. `squares` are the mean squares
// of the columns; empty: they count alike.
void expect_the_code_that_hurts_less(const std::vector<float>& squares) {
  const std::vector<float> weights = test::normal_weights(19195, 9);
  const TensorInfo tensor{"w", DType::f32, {weights.size() / 11, 11}};
  const auto codec = make_codec(nested_search);
  const test::EncodeOptions options{.columns = squares.empty() ? ColumnWeights() : ColumnWeights(squares)};
  const auto found =
      values_of<float>(test::encode(*make_codec(plain), tensor, bytes_of(weights), options).planes.at(1));
  const test::Encoded encoded = test::encode(*codec, tensor, bytes_of(weights), options);
  const auto codes = values_of<std::uint8_t>(encoded.planes.at(1));
  const auto nested_absmax = values_of<float>(encoded.planes.at(2)), codebook = values_of<float>(encoded.planes.at(3));
  for (std::size_t c = 0; c < 255; ++c) {
    const double x = (static_cast<double>(c) - 127) / 127;
    EXPECT_EQ(codebook.at(c), static_cast<float>((x + 7 * std::abs(x) * x) / 8)) << c;
  }
  EXPECT_EQ(codebook.at(255), 1.0f);
  ASSERT_EQ(codes.size(), 300U);
  ASSERT_EQ(nested_absmax.size(), 2U);
  EXPECT_EQ(values_of<float>(encoded.planes.at(4)), std::vector<float>{0.0f});
  std::size_t not_nearest = 0;
  for (std::size_t b = 0; b < codes.size(); ++b) {
    float largest = 0;
    for (std::size_t i = b / 256 * 256; i < std::min<std::size_t>(codes.size(), b / 256 * 256 + 256); ++i)
      largest = std::max(largest, std::abs(found[i]));
    EXPECT_EQ(nested_absmax[b / 256], largest);
    // The search rounds weights to 1/4095 of the largest: of two codes that leave nearly the same, it may take either.
    const auto error = [&](std::size_t code) {
      double sum = 0;
      for (std::size_t i = b * 64; i < std::min(b * 64 + 64, weights.size()); ++i) {
        double least = std::numeric_limits<double>::infinity();
        for (const float value : nf4::codebook.value) {
          const double difference = weights[i] - static_cast<double>(codebook[code] * largest) * value;
          least = std::min(least, difference * difference);
        }
        sum += squares.empty() ? least : squares[i % 11] * least;
      }
      return sum;
    };
    std::size_t below = 0;
    while (below < 253 && codebook[below + 1] <= found[b] / largest) ++below;
    ASSERT_TRUE(codes[b] == below || codes[b] == below + 1) << b;
    EXPECT_LE(error(codes[b]), 1.001 * error(2 * below + 1 - codes[b])) << b;
    const float middle = (codebook[below] + codebook[below + 1]) / 2;
    not_nearest += (found[b] / largest > middle) != (codes[b] == below + 1) ? 1 : 0;
  }
  EXPECT_GT(not_nearest, 5U);
}

TEST(SearchOfBlocks, DoubleQuantizationTakesTheCodeThatHurtsLess) { expect_the_code_that_hurts_less({}); }

TEST(SearchOfBlocks, DoubleQuantizationTakesTheCodeThatHurtsTheOutputLess) {
  expect_the_code_that_hurts_less(mean_squares(11));
}

// Each block is searched with the columns that its weights are in, however the matrix is cut.
TEST(SearchOfBlocks, WeighsTheColumnsOfEachBlock) {
  const std::vector<float> weights = test::normal_weights(100 * 701, 3);
  const TensorInfo tensor{"w", DType::f32, {100, 701}};
  const ColumnWeights columns(mean_squares(701));
  const auto codec = make_codec(plain);
  const auto found = values_of<float>(
      test::encode(*codec, tensor, bytes_of(weights), {.limit = 4096, .order = test::backwards, .columns = columns})
          .planes.at(1));
  std::vector<float> expected(found.size());
  const ScaleSearch search(dynamic_cast<const FourBitCodec&>(*codec).tables(), 64, AbsmaxChoice::search);
  SearchedBlocks(search, DType::f32, bytes_of(weights), {&columns, 0}).find(expected);
  EXPECT_EQ(found, expected);
}

// The largest of them is stored exactly, and the others get the nearer code.
TEST(SearchOfBlocks, DoubleQuantizationOfBlocksThatAreNotSearchedIsTheNearest) {
  std::vector<float> weights(256 * 64);
  for (std::size_t b = 0; b < 256; ++b) weights[b * 64] = 1e38f * static_cast<float>(1 + b % 3);
  const TensorInfo tensor{"w", DType::f32, {weights.size()}};
  const test::Encoded encoded = test::encode(*make_codec(nested_search), tensor, bytes_of(weights));
  const auto codes = values_of<std::uint8_t>(encoded.planes.at(1));
  const auto codebook = values_of<float>(encoded.planes.at(3));
  EXPECT_EQ(values_of<float>(encoded.planes.at(2)).at(0), 3e38f);
  for (std::size_t b = 0; b < 256; ++b)
    for (const float value : codebook)
      EXPECT_LE(std::abs(codebook[codes[b]] - static_cast<float>(1 + b % 3) / 3),
                std::abs(value - static_cast<float>(1 + b % 3) / 3) + 1e-6f);
}

TEST(SearchOfBlocks, BlocksThatAreNotFiniteCountNanAsZeroAndInfinityAsTheLargest) {
  std::vector<float> weights = test::normal_weights(64 * 64, 4), finite = weights;
  weights[70] = std::numeric_limits<float>::quiet_NaN();
  finite[70] = 0;
  weights[200] = -std::numeric_limits<float>::infinity();
  float largest = 0;
  for (std::size_t i = 192; i < 256; ++i) largest = i == 200 ? largest : std::max(largest, std::abs(weights[i]));
  finite[200] = -largest;
  const TensorInfo tensor{"w", DType::f32, {weights.size()}};
  for (const char* const spec : {plain, nested_search})
    for (const ColumnWeights& columns : {ColumnWeights(), ColumnWeights(mean_squares(weights.size()))}) {
      const test::Encoded found = test::encode(*make_codec(spec), tensor, bytes_of(weights), {.columns = columns});
      EXPECT_EQ(found.planes, test::encode(*make_codec(spec), tensor, bytes_of(finite), {.columns = columns}).planes);
      EXPECT_EQ(found.findings.nan, 1U);
      EXPECT_EQ(found.findings.inf, 1U);
      EXPECT_EQ(found.findings.first_nonfinite, 70U);
    }
}

TEST(SearchOfBlocks, KeepsAnAbsmaxOnlyIfItIsStoredOrItsSpreadIsAskedFor) {
  const TensorInfo tensor{"w", DType::f32, {3, 50}};  // 2 blocks and a part of one
  const auto bytes = [&](const char* spec, bool sums_errors) {
    return make_quantizer(*make_codec(spec), {.sums_errors = sums_errors})->scratch_bytes(tensor);
  };
  EXPECT_EQ(bytes(plain, false), 3U * 4);
  EXPECT_EQ(bytes(nested_search, false), 4U + 3);
  EXPECT_EQ(bytes(nested_search, true), 3U * 4 + 4 + 3);
}

// Also beside the smallest numbers.
TEST(SearchOfBlocks, ZerosStayZeros) {
  std::vector<float> weights(1000);
  weights[70] = 1e-39f;
  for (const char* const spec : {plain, nested_search})
    for (std::size_t i = 0; const float decoded : test::round_trip(*make_codec(spec), weights, {10, 100}))
      EXPECT_TRUE(i++ == 70 || decoded == 0) << i;
  const std::vector<float> zeros(256);
  const TensorInfo tensor{"w", DType::f32, {zeros.size()}};
  const test::Encoded encoded = test::encode(*make_codec(nested_search), tensor, bytes_of(zeros));
  EXPECT_EQ(values_of<std::uint8_t>(encoded.planes.at(1)), std::vector<std::uint8_t>(4, nested::code_of_zero));
}

// The codes do not depend on the unit of the weights, as long as none of them leaves the normal numbers.
TEST(SearchOfBlocks, PowersOfTwoChangeNoCode) {
  const std::vector<float> weights = test::normal_weights(256 * 64, 6);
  const TensorInfo tensor{"w", DType::f32, {weights.size()}};
  const test::Encoded expected = test::encode(*make_codec(nested_search), tensor, bytes_of(weights));
  for (const int exponent : {-90, -76, 64, 90}) {
    std::vector<float> scaled = weights;
    for (float& weight : scaled) weight = std::ldexp(weight, exponent);
    const test::Encoded found = test::encode(*make_codec(nested_search), tensor, bytes_of(scaled));
    EXPECT_EQ(found.planes.at(0), expected.planes.at(0)) << exponent;
    EXPECT_EQ(found.planes.at(1), expected.planes.at(1)) << exponent;
  }
}

// A negative absmax counts with its magnitude.
TEST(SearchOfBlocks, TheSpreadIsThatOfMagnitudes) {
  const std::vector<float> weights = test::normal_weights(100 * 64, 4);
  const TensorInfo tensor{"w", DType::f32, {weights.size()}};
  EncodingError late;
  std::vector<ErrorSums> errors;
  const test::Encoded encoded = test::encode(*make_codec(plain), tensor, bytes_of(weights),
                                             {.quantizer = {.sums_errors = true}, .errors = &errors, .late = &late});
  double sum = 0, negative = 0;
  for (const float value : values_of<float>(encoded.planes.at(1))) {
    sum += std::abs(value);
    negative += value < 0 ? 1 : 0;
  }
  EXPECT_GT(negative, 20);
  EXPECT_LT(negative, 80);
  EXPECT_EQ(late.absmax.count, 100U);
  EXPECT_NEAR(late.absmax.sum, sum, 1e-9 * sum);
  EXPECT_GT(late.absmax.min, 0.0f);
}

}  // namespace
}  // namespace nibble::search_blocks_test
