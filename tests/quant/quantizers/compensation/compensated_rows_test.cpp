// The scales of rows, how a matrix is cut and finished, and weights that are not finite or beyond fp16. What the codes
// are, given the scales, is tested in compensation_test.cpp.
#include "quant/quantizers/compensation/compensated_rows.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "nibble/int8.hpp"
#include "quant/quantizers/compensation/compensation.hpp"
#include "quant/quantizers/search/row_search.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/quantizers/compensation/reference.hpp"

namespace nibble::compensated_rows_test {
namespace {

constexpr std::size_t rows = 90, k = 100;  // no multiple of 64, and pieces of 40 rows
const TensorInfo f32{"w", DType::f32, {rows, k}};

class CompensatedRows : public testing::TestWithParam<const char*> {
 protected:
  test::Encoded encode(DType dtype, std::span<const std::byte> weights, std::uint64_t limit = 1 << 20,
                       std::vector<ErrorSums>* errors = nullptr, EncodingError* late = nullptr) const {
    const auto quantizer = make_compensated_rows_quantizer(codec(), &factor_);
    return test::encode(
        codec(), {"w", dtype, {rows, k}}, weights,
        {.limit = limit, .order = test::backwards, .by = quantizer.get(), .errors = errors, .late = late});
  }
  test::Encoded encode(const std::vector<float>& weights) const {
    return encode(DType::f32, std::as_bytes(std::span(weights)));
  }
  [[nodiscard]] const Int8Codec& codec() const { return dynamic_cast<const Int8Codec&>(*codec_); }

  test::Numbers given_ = test::second_moment(k, k, 31);
  std::unique_ptr<const Codec> codec_ = make_codec(GetParam());
  InputFactor factor_{given_, k, {.blocksize = 1}};
  std::vector<float> weights_ = test::normal_weights(rows * k, 32);
};

TEST_P(CompensatedRows, HaveTheScalesOfTheRowsAsTheyAre) {
  const ColumnWeights importance({factor_.importance().begin(), factor_.importance().end()});
  std::vector<float> absmax(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto bytes = std::as_bytes(std::span(weights_).subspan(row * k, k));
    bool plain = true;
    absmax[row] = int8::row_absmax(DType::f32, bytes, plain);
    if (codec().searches()) absmax[row] = search_row(DType::f32, bytes, absmax[row], importance);
  }
  std::vector<std::int8_t> codes(rows * k);
  compensate_int8(factor_, 0, weights_, absmax, codes);
  std::vector<ErrorSums> errors;
  EncodingError late;
  const test::Encoded found = encode(DType::f32, std::as_bytes(std::span(weights_)), 1, &errors, &late);
  EXPECT_EQ(found.planes[0], test::bytes_of(codes));
  EXPECT_EQ(found.planes[1], test::bytes_of(absmax));
  EXPECT_EQ(found.findings, Findings());
  EXPECT_EQ(late.absmax.max, *std::ranges::max_element(absmax));

  ErrorSums sums;
  for (const ErrorSums& each : errors) sums.add(each);
  double square = 0;
  const std::vector<float> decoded = test::decode(codec(), f32, found);
  for (std::size_t i = 0; i < decoded.size(); ++i) square += std::pow(static_cast<double>(decoded[i]) - weights_[i], 2);
  EXPECT_NEAR(sums.square, square, 1e-5 * square);
  EXPECT_EQ(sums.count, decoded.size());
}

TEST_P(CompensatedRows, BytesDoNotDependOnTheChunks) {
  const auto bytes = std::as_bytes(std::span(weights_));
  std::vector<ErrorSums> whole, parts;
  EXPECT_EQ(encode(DType::f32, bytes, 1, &parts), encode(DType::f32, bytes, 1 << 20, &whole));
  EXPECT_EQ(whole, parts);
}

// As int8 without compensation does.
TEST_P(CompensatedRows, ReplaceWhatTheyCannotEncode) {
  std::vector<float> damaged = weights_, finite = weights_;
  const std::size_t at = 7 * k;
  damaged[at] = NAN, finite[at] = 0;
  damaged[at + 1] = -INFINITY, finite[at + 1] = 0;
  float largest = 0;
  for (std::size_t i = at; i < at + k; ++i) largest = std::max(largest, std::abs(finite[i]));
  finite[at + 1] = -int8::row_absmax(DType::f32, std::as_bytes(std::span(&largest, 1)), *std::make_unique<bool>(true));
  damaged[8 * k] = 1e5f, finite[8 * k] = 65504;
  test::Encoded found = encode(damaged);
  EXPECT_EQ(found.findings.nan, 1U);
  EXPECT_EQ(found.findings.inf, 1U);
  EXPECT_EQ(found.findings.overflow, 1U);
  EXPECT_EQ(found.findings.first_nonfinite, at);
  if (codec().searches()) return;  // a row that was repaired is not searched
  found.findings = {};
  EXPECT_EQ(found, encode(finite));
}

TEST_P(CompensatedRows, TakeEveryTypeOfWeights) {
  const test::Bytes halves = test::stored_as(DType::bf16, weights_);
  const std::vector<double> numbers = test::numbers_of(DType::bf16, halves);
  const test::Encoded expected = encode({numbers.begin(), numbers.end()});
  EXPECT_EQ(encode(DType::bf16, halves), expected);
  EXPECT_EQ(encode(DType::f64, test::bytes_of(numbers)), expected);
}

INSTANTIATE_TEST_SUITE_P(Codecs, CompensatedRows, testing::Values("int8", "int8:absmax=search"));

}  // namespace
}  // namespace nibble::compensated_rows_test
