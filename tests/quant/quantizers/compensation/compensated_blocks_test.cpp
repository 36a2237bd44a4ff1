// How a matrix is cut, scanned and finished, and weights that are not finite. What the codes are is tested in
// compensation_test.cpp.
#include "quant/quantizers/compensation/compensated_blocks.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "nibble/nested.hpp"
#include "quant/quantizers/compensation/compensation.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/quantizers/compensation/reference.hpp"

namespace nibble::compensated_blocks_test {
namespace {

constexpr std::size_t rows = 150, k = 192;

struct Result {
  std::vector<test::Bytes> planes{5};
  Findings findings;
  ErrorSums error;
  EncodingError late;
  bool operator==(const Result& other) const { return planes == other.planes && findings == other.findings; }
};

class Planes final : public PlaneSink {
 public:
  explicit Planes(std::vector<test::Bytes>& to) : to_(to) {}
  void write(std::size_t plane, std::span<const std::byte> bytes) override {
    to_.at(plane).insert(to_.at(plane).end(), bytes.begin(), bytes.end());
  }

 private:
  std::vector<test::Bytes>& to_;
};

class CompensatedBlocks : public testing::TestWithParam<const char*> {
 protected:
  Result encode(DType dtype, std::span<const std::byte> weights, std::uint64_t limit) const {
    const TensorInfo tensor{"w", dtype, {rows, k}};
    const auto quantizer = make_compensated_blocks_quantizer(codec(), {.sums_errors = true}, &factor_);
    const Chunking chunking = quantizer->chunking(tensor, limit);
    EXPECT_EQ(chunking.scan, codec().double_quant());
    EXPECT_EQ(chunking.weights % k, 0U);
    MemoryScratch scratch(quantizer->scratch_bytes(tensor));
    const auto encoder = quantizer->encoder(tensor, chunking, scratch);
    Result result;
    result.planes[0].resize(rows * k / 2);
    std::vector<ErrorSums> errors;
    const std::size_t size = traits(dtype).bits / 8;
    for (const bool scan : {true, false})
      for (std::uint64_t first = 0; first < rows * k; first += chunking.weights) {
        const std::uint64_t n = std::min(chunking.weights, rows * k - first);
        const auto chunk = weights.subspan(first * size, n * size);
        if (scan && chunking.scan) encoder->scan(first, chunk);
        if (scan) continue;
        const auto codes = std::span(result.planes[0]).subspan(first / 2, n / 2);
        result.findings.add(encoder->encode(first, chunk, codes, &errors));
      }
    for (const ErrorSums& each : errors) result.error.add(each);
    Planes rest(result.planes);
    encoder->finish(rest);
    result.late = encoder->late_error();
    result.planes.resize(codec().planes(tensor).size());
    return result;
  }

  std::vector<float> decode(const Result& result) const {
    const TensorInfo tensor{"w", DType::f32, {rows, k}};
    std::vector<float> weights(rows * k);
    const std::vector<std::span<const std::byte>> rest(result.planes.begin() + 1, result.planes.end());
    codec().decoder(tensor, rest)->decode(0, result.planes[0], weights);
    return weights;
  }

  [[nodiscard]] const FourBitCodec& codec() const { return dynamic_cast<const FourBitCodec&>(*codec_); }

  test::Numbers h_ = test::second_moment(k, k, 21), given_ = h_;
  std::unique_ptr<const Codec> codec_ = make_codec(GetParam());
  InputFactor factor_{given_, k, {.blocksize = codec().blocksize()}};
  std::vector<float> weights_ = test::normal_weights(rows * k, 22);
};

TEST_P(CompensatedBlocks, PlanesAreWhatTheDecoderReads) {
  const Result whole = encode(DType::f32, std::as_bytes(std::span(weights_)), 1 << 20);
  const std::vector<float> decoded = decode(whole);
  const FourBitCompensation compensation(codec(), factor_);
  std::vector<std::uint8_t> packed(rows * k / 2), codes(codec().double_quant() ? rows * k / codec().blocksize() : 0);
  std::vector<float> absmax(rows * k / codec().blocksize()), expected(rows * k);
  std::vector<std::uint8_t> unused(packed.size());
  encode_four_bit(codec().tables(), weights_, codec().blocksize(), unused, absmax);
  const NestedRange range(absmax, codec().absmax_choice());
  compensation.encode(0, weights_, codec().double_quant() ? &range : nullptr, {packed, absmax, codes});
  decode_four_bit(codec().tables(), packed, absmax, codec().blocksize(), expected);
  EXPECT_EQ(decoded, expected);

  double square = 0;
  for (std::size_t i = 0; i < decoded.size(); ++i) square += std::pow(static_cast<double>(decoded[i]) - weights_[i], 2);
  EXPECT_NEAR(whole.error.square, square, 1e-5 * square);
  EXPECT_EQ(whole.error.count, decoded.size());
  double largest = 0;
  for (const float value : absmax) largest = std::max<double>(largest, std::abs(value));
  EXPECT_EQ(whole.late.absmax.max, largest);
  EXPECT_GT(whole.late.absmax.min, 0);
}

TEST_P(CompensatedBlocks, BytesDoNotDependOnTheChunks) {
  const auto bytes = std::as_bytes(std::span(weights_));
  const Result whole = encode(DType::f32, bytes, 1 << 20), parts = encode(DType::f32, bytes, 1);
  EXPECT_TRUE(parts == whole);
  EXPECT_EQ(parts.error.square, whole.error.square);
}

TEST_P(CompensatedBlocks, NanIsZeroAndAnInfinityTheLargestOfItsBlock) {
  std::vector<float> damaged = weights_, finite = weights_;
  const std::size_t at = 7 * k + 64;
  damaged[at] = std::numeric_limits<float>::quiet_NaN(), finite[at] = 0;
  float largest = 0;
  damaged[at + 1] = -std::numeric_limits<float>::infinity(), finite[at + 1] = 0;
  for (std::size_t i = at; i < at + codec().blocksize(); ++i) largest = std::max(largest, std::abs(finite[i]));
  finite[at + 1] = -largest;
  Result result = encode(DType::f32, std::as_bytes(std::span(damaged)), 1 << 14);
  EXPECT_EQ(result.findings.nan, 1U);
  EXPECT_EQ(result.findings.inf, 1U);
  EXPECT_EQ(result.findings.first_nonfinite, at);
  result.findings = {};
  EXPECT_TRUE(result == encode(DType::f32, std::as_bytes(std::span(finite)), 1 << 14));
}

TEST_P(CompensatedBlocks, TakesEveryTypeOfWeights) {
  std::vector<std::uint16_t> halves(weights_.size());
  std::vector<float> rounded(weights_.size());
  for (std::size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(weights_[i]) >> 16);
    rounded[i] = std::bit_cast<float>(std::uint32_t{halves[i]} << 16);
  }
  const std::vector<double> doubles(rounded.begin(), rounded.end());
  const Result expected = encode(DType::f32, std::as_bytes(std::span(rounded)), 1 << 14);
  const Result of_halves = encode(DType::bf16, std::as_bytes(std::span(halves)), 1 << 14);
  const Result of_doubles = encode(DType::f64, std::as_bytes(std::span(doubles)), 1 << 14);
  EXPECT_TRUE(of_halves == expected);
  EXPECT_TRUE(of_halves.error == expected.error);
  EXPECT_TRUE(of_doubles == expected);
  EXPECT_TRUE(of_doubles.error == expected.error);
}

INSTANTIATE_TEST_SUITE_P(Codecs, CompensatedBlocks,
                         testing::Values("nf4:double-quant=no", "nf4", "nf4:absmax=search", "fp4"));

}  // namespace
}  // namespace nibble::compensated_blocks_test
