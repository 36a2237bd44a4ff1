#include "nibble/int8.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nibble/error.hpp"
#include "nibble/metrics.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/codecs/reference.hpp"

namespace nibble::int8_test {
namespace {

// Half a step, and the fp16 on the way.
const test::CodecFacts facts("int8", [](double, double absmax) { return absmax * (0.5 / 127 + 0x1p-10); });

const test::GiveDigests digests({{"int8",
                                  "int8",
                                  OnOverflow::automatic,
                                  {"37540d429fe327fd810e4584d14f8b1d", "255b95d3dffc00d56d6fcb7a2f59c6e8",
                                   "06306da51552cc3e01ddc6551eee423c", "68d5021d4abc9f53464d474625948ff0"},
                                  {"8cc9fb86c438a8e2baebb3aa6ea891cd", "40b23943ff6b2ef7262664be2a251f45",
                                   "03af6b770435512efe0f3d34d40f1b69", "854bc2eada6b8a850152d0cb13d34485"}}});

using test::bytes_of;
using test::Encoded;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

std::pair<std::vector<int>, float> row_of(const std::vector<float>& weights) {
  std::vector<std::int8_t> codes(weights.size());
  const float absmax = int8::encode_row(weights, codes);
  return {{codes.begin(), codes.end()}, absmax};
}

TEST(Int8, RandomRowsFollowTheDefinition) {
  for (const std::size_t columns : {1u, 7u, 8u, 33u, 4097u, 10000u}) {
    for (const float scale : {1e-7f, 1e-4f, 0.02f, 1.0f, 5000.0f}) {
      std::vector<float> weights = test::normal_weights(4 * columns, static_cast<unsigned>(columns), scale);
      weights[0] = weights[columns] = weights[2 * columns] = weights[3 * columns] = -3 * scale;  // no row of zeros
      const auto expected = reference::int8(as_xtensor<2>(weights, {4, columns}));
      test::for_each_target([&](const std::string& target) {
        for (std::size_t row = 0; row < 4; ++row) {
          std::vector<std::int8_t> codes(columns);
          ASSERT_EQ(int8::encode_row(std::span(weights).subspan(row * columns, columns), codes), expected.absmax(row));
          for (std::size_t i = 0; i < columns; ++i)
            ASSERT_EQ(codes[i], expected.code(row, i)) << target << ", row " << row << ", " << i << " of " << columns;
        }
      });
    }
  }
}

TEST(Int8, EqualsBitsandbytesByteForByte) {
  const test::Golden golden;
  for (const std::string type : {"float32", "bfloat16", "float16"}) {
    const std::string prefix = "int8." + type;
    for (const std::uint64_t limit : {1u, 50u, 100u, 1000u, 100000u}) {
      const auto encoded =
          test::encode(*make_codec("int8"), golden.info(prefix + ".input"), golden.bytes(prefix + ".input"), limit);
      EXPECT_EQ(encoded.planes[0], golden.bytes(prefix)) << type << ", " << limit;
      EXPECT_EQ(encoded.planes[1], golden.bytes(prefix + ".SCB")) << type << ", " << limit;
    }
  }
}

TEST(Int8, HalvesGoToTheEvenCode) {
  EXPECT_EQ(row_of({127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 126.5f, -126.5f}).first,
            (std::vector<int>{127, 0, 2, 2, 0, -2, 126, -126}));
}

TEST(Int8, RoundingToFp16ComesFirstAndIsToNearestEven) {
  // In [2, 4) fp16 has steps of 2^-9, and a weight is a code here.
  const float tie = 2.5f + 0x1p-10f, odd = 3.5f - 0x1p-9f;
  EXPECT_EQ(row_of({127, tie, std::nextafter(tie, 9.0f)}).first, (std::vector<int>{127, 2, 3}));
  EXPECT_EQ(row_of({127, odd, std::nextafter(odd + 0x1p-10f, 0.0f), odd + 0x1p-10f}).first,
            (std::vector<int>{127, 3, 3, 4}));
}

TEST(Int8, RowsOfZerosHaveAbsmaxZero) {
  EXPECT_EQ(row_of(std::vector<float>(100, 0.0f)), std::pair(std::vector<int>(100, 0), 0.0f));
  EXPECT_EQ(row_of(std::vector<float>(100, 1e-9f)), std::pair(std::vector<int>(100, 0), 0.0f));  // 0 in fp16
}

TEST(Int8, WhatFp16CannotHoldIsRepairedInItsRow) {
  EXPECT_EQ(row_of({2, nan, -1, infinity}), std::pair(std::vector<int>({127, 0, -64, 127}), 2.0f));
  EXPECT_EQ(row_of({70000, -70000, 32752, 0}), std::pair(std::vector<int>({127, -127, 64, 0}), 65504.0f));
  EXPECT_EQ(row_of({65519, 0}).second, 65504.0f);  // rounds down
  EXPECT_EQ(row_of({nan, -infinity}), std::pair(std::vector<int>({0, 0}), 0.0f));
}

TEST(Int8, OverflowOfFp16IsCountedPerWeight) {
  std::vector<float> weights(3 * 5000, 1.0f);
  weights[5000] = 65520.0f;
  weights[9999] = -1e30f;
  weights[10000] = 65519.0f;
  const TensorInfo tensor{"m.weight", DType::f32, {3, 5000}};
  for (const std::uint64_t limit : {100u, 4999u, 5000u, 100000u}) {
    const Encoded encoded = test::encode(*make_codec("int8"), tensor, bytes_of(weights), limit);
    EXPECT_EQ(encoded.findings.overflow, 2u);
    EXPECT_EQ(encoded.findings.inf + encoded.findings.nan, 0u);
    EXPECT_EQ(encoded.findings.first_nonfinite, 5000u);
    EXPECT_EQ(test::values_of<float>(encoded.planes[1]), (std::vector<float>{1.0f, 65504.0f, 65504.0f}));
  }
}

TEST(Int8, Planes) {
  const auto codec = make_codec("int8");
  EXPECT_EQ(codec->planes({"w", DType::f16, {3, 4}}),
            (std::vector<Plane>{{PlaneRole::codes, DType::i8, {3, 4}}, {PlaneRole::absmax, DType::f32, {3}}}));
  EXPECT_FALSE(codec->accepts({"a.weight", DType::f16, {3}}));
  EXPECT_FALSE(codec->accepts({"a.weight", DType::f16, {3, 4, 5}}));
}

// Of any number of codes, which need no alignment.
TEST(Int8, DecodingIsTwoMultiplications) {
  std::vector<std::int8_t> codes;
  for (int i = -128; i < 128; ++i) codes.push_back(static_cast<std::int8_t>(i));
  test::for_each_target([&](const std::string& target) {
    for (const std::size_t first : {0U, 1U})
      for (const std::size_t n : {0U, 1U, 15U, 16U, 17U, 33U, 255U}) {
        std::vector<float> weights(n + 1, -7.0f);
        int8::decode_row(std::span(codes).subspan(first, n), 0.3f, std::span(weights).first(n));
        for (std::size_t i = 0; i < n; ++i) {
          const float product = static_cast<float>(codes[first + i]) * 0.3f;
          EXPECT_EQ(weights[i], product * 7.874015718698502e-3f) << target << ' ' << n;
        }
        EXPECT_EQ(weights[n], -7.0f) << target << ' ' << n;
      }
  });
}

// The sums that encoding reports, and those of the decoded weights, both of pairs of finite numbers.
void expect_errors_of_what_is_decoded(const TensorInfo& tensor, const test::Bytes& weights, std::uint64_t limit) {
  const auto codec = make_codec("int8");
  const Encoded plain = test::encode(*codec, tensor, weights);
  const std::vector<float> decoded = test::decode(*codec, tensor, plain);
  const std::vector<double> numbers = test::numbers_of(tensor.dtype, weights);
  ErrorSums expected;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double w = tensor.dtype == DType::f64 ? static_cast<float>(numbers[i]) : numbers[i], t = decoded[i];
    if (std::isfinite(w)) expected.add({1, (t - w) * (t - w), w * t, w * w, t * t});
  }
  std::vector<ErrorSums> of_first_target;
  test::for_each_target([&](const std::string& target) {
    std::vector<ErrorSums> pieces;
    EXPECT_EQ(test::encode(*codec, tensor, weights, {.limit = limit, .errors = &pieces}), plain);
    ErrorSums sums;
    for (const ErrorSums& piece : pieces) sums.add(piece);
    const std::string where = target + ' ' + to_string(tensor.shape) + ' ' + std::to_string(limit);
    EXPECT_EQ(sums.count, expected.count) << where;
    const auto expect_near = [&](double found, double other) { EXPECT_NEAR(found, other, 1e-6 * other) << where; };
    expect_near(sums.square, expected.square);
    expect_near(sums.product, expected.product);
    expect_near(sums.reference, expected.reference);
    expect_near(sums.test, expected.test);
    if (of_first_target.empty()) of_first_target = pieces;
    EXPECT_EQ(pieces, of_first_target) << where;
  });
}

TEST(Int8, ErrorsAreThoseOfWhatIsDecoded) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const std::uint64_t columns : {1U, 7U, 32U, 33U, 100U, 4096U, 4097U, 10000U})
      for (const std::uint64_t limit : {70U, 12288U, 1U << 20}) {  // 70: chunks of 100 columns that begin within a row
        const std::uint64_t rows = columns > 1000 ? 3 : 10000 / columns;
        const auto weights = test::normal_weights(rows * columns, static_cast<unsigned>(columns), 0.02f);
        expect_errors_of_what_is_decoded({"m.weight", dtype, {rows, columns}}, test::stored_as(dtype, weights), limit);
      }
}

TEST(Int8, ErrorsLeaveOutWhatIsNotFinite) {
  std::vector<float> weights = test::normal_weights(3 * 5000, 8, 0.02f);
  weights[7] = nan;
  weights[5003] = infinity;
  weights[14999] = -infinity;
  expect_errors_of_what_is_decoded({"m.weight", DType::f32, {3, 5000}}, bytes_of(weights), 1 << 20);
  expect_errors_of_what_is_decoded({"m.weight", DType::f32, {150, 100}}, bytes_of(weights), 1 << 20);
}

// Squares that fp32 cannot hold.
TEST(Int8, ErrorsOfSmallAndOfLargeWeights) {
  std::vector<float> weights = test::normal_weights(3 * 5000, 8, 1e-20f);
  expect_errors_of_what_is_decoded({"m.weight", DType::f32, {3, 5000}}, bytes_of(weights), 1 << 20);
  for (const float weight : {65504.0f, 1e20f, 3e38f}) {
    weights[5] = weight;
    expect_errors_of_what_is_decoded({"m.weight", DType::f32, {3, 5000}}, bytes_of(weights), 1 << 20);
  }
}

// Codes of what fp16 cannot hold are much smaller than the weights: sum w t is not what is left of the squares.
TEST(Int8, ErrorsOfWeightsBeyondFp16) {
  for (const float scale : {1e8f, 1e10f, 1e13f})
    expect_errors_of_what_is_decoded({"m.weight", DType::f32, {3, 5000}},
                                     bytes_of(test::normal_weights(3 * 5000, 8, scale)), 1 << 20);
}

// sqrt of the mean square error on N(0, 1): 0.00793 at 1024 columns, 0.00873 at 4096.
TEST(Int8, ErrorOnNormalWeightsIsThePublishedOne) {
  const std::vector<float> weights = test::normal_weights(1 << 20, 2);
  const auto error = [&](std::uint64_t columns) {
    const auto out = test::round_trip(*make_codec("int8"), weights, {weights.size() / columns, columns});
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += std::pow(static_cast<double>(out[i]) - weights[i], 2);
    return std::sqrt(sum / static_cast<double>(out.size()));
  };
  EXPECT_NEAR(error(1024), 0.00793, 0.01 * 0.00793);
  EXPECT_NEAR(error(4096), 0.00873, 0.01 * 0.00873);
}

TEST(Int8, NormalWeightsHaveTheSqnrThatIsExpected) {
  constexpr std::size_t count = std::size_t{1} << 20;
  const std::vector<float> weights = test::normal_weights(count, 3);
  const auto codec = make_codec("int8");
  for (const std::size_t columns : {16U, 64U, 256U, 1024U, 4096U, 16384U}) {
    const TensorInfo tensor{"w.weight", DType::f32, {count / columns, columns}};
    const double db = compare(weights, test::round_trip(*codec, weights, {count / columns, columns})).sqnr_db();
    EXPECT_NEAR(codec->normal_sqnr_db(tensor), db, 0.15) << columns;
  }
  EXPECT_TRUE(std::isnan(codec->normal_sqnr_db({"w.weight", DType::f32, {4, 8}})));
}

TEST(Int8, SizesThatDisagreeAreRefused) {
  std::vector<std::int8_t> codes(2);
  try {
    int8::encode_row(std::vector<float>(3), codes);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::usage);
    EXPECT_STREQ(error.what(), "int8: 3 weights do not fit 2 codes");
  }
}

}  // namespace
}  // namespace nibble::int8_test
