// Codes against GPTQ in fp64, given the scales that were chosen, and these scales against the weights that it finds
// when it reaches their blocks.
#include "quant/quantizers/compensation/compensation.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "nibble/error.hpp"
#include "nibble/int8.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/quantizers/compensation/reference.hpp"

namespace nibble::compensation_test {
namespace {

struct Case {
  const char* codec;
  std::size_t rows, k;
  ColumnOrder order = ColumnOrder::stored;
};

// Encodes as convert does: a first pass where it is needed, and then parts of so many rows.
struct Encoded {
  std::vector<std::uint8_t> packed, absmax_codes;
  std::vector<float> absmax, decoded;
  std::optional<NestedRange> range;
  bool operator==(const Encoded& other) const {
    return packed == other.packed && absmax_codes == other.absmax_codes && absmax == other.absmax;
  }
};

Encoded encode(const FourBitCodec& codec, const InputFactor& factor, std::span<const float> weights,
               std::size_t part = 1000) {
  const std::size_t k = factor.columns(), blocks = weights.size() / codec.blocksize();
  Encoded to;
  to.packed.resize(weights.size() / 2);
  to.absmax.resize(blocks);
  to.decoded.resize(weights.size());
  if (codec.double_quant()) {
    to.absmax_codes.resize(blocks);
    encode_four_bit(codec.tables(), weights, codec.blocksize(), to.packed, to.absmax);
    to.range.emplace(to.absmax, codec.absmax_choice());
  }
  const FourBitCompensation compensation(codec, factor);
  for (std::size_t row = 0; row * k < weights.size(); row += part) {
    const std::size_t n = std::min(part, weights.size() / k - row) * k, at = row * k;
    compensation.encode(row, weights.subspan(at, n), to.range ? &*to.range : nullptr,
                        {std::span(to.packed).subspan(at / 2, n / 2),
                         std::span(to.absmax).subspan(at / codec.blocksize(), n / codec.blocksize()),
                         to.range ? std::span(to.absmax_codes).subspan(at / codec.blocksize(), n / codec.blocksize())
                                  : std::span<std::uint8_t>()});
  }
  decode_four_bit(codec.tables(), to.packed, to.absmax, codec.blocksize(), to.decoded);
  return to;
}

// The sum of importance * (w - s value)^2 over a block.
double error_for(const FourBitTables& tables, std::span<const double> w, std::span<const double> importance, double s) {
  double error = 0;
  for (std::size_t c = 0; c < w.size(); ++c) {
    double least = std::numeric_limits<double>::infinity();
    for (const float value : tables.codebook) least = std::min(least, std::abs(w[c] - s * value));
    error += importance[c] * least * least;
  }
  return error;
}

// The errors that are left by the scales that were chosen, and by the best of all multiples of 1/64 of the largest
// magnitudes.
struct ScaleErrors {
  double found = 0, least = 0, largest = 0;
};

void add_scale(const FourBitCodec& codec, float absmax, std::span<const double> w, std::span<const double> importance,
               ScaleErrors& errors) {
  double largest = 0, least = std::numeric_limits<double>::infinity();
  for (const double weight : w) largest = std::max(largest, std::abs(weight));
  for (int step = -100; step <= 100; ++step)
    if (step != 0) least = std::min(least, error_for(codec.tables(), w, importance, largest * step / 64));
  errors.found += error_for(codec.tables(), w, importance, absmax);
  errors.least += least;
  errors.largest += error_for(codec.tables(), w, importance, largest);
  if (codec.absmax_choice() == AbsmaxChoice::max && !codec.double_quant()) {
    EXPECT_NEAR(absmax, largest, 1e-5 * largest);
  }
}

class Compensation : public testing::TestWithParam<Case> {};

TEST_P(Compensation, IsThatOfTheReference) {
  const auto& [name, rows, k, order_of_columns] = GetParam();
  const auto codec_of_any_type = make_codec(name);
  const auto& codec = dynamic_cast<const FourBitCodec&>(*codec_of_any_type);
  const test::Numbers h = test::second_moment(k, k, 5, 2), full = test::damped(h, k, 0.01);
  test::Numbers given = h;
  const std::size_t blocksize = codec.blocksize();
  const InputFactor factor(given, k, {blocksize, order_of_columns});
  const std::vector<float> weights = test::normal_weights(rows * k, 6, 0.03f);
  const Encoded encoded = encode(codec, factor, weights);

  std::vector<double> importance(k);
  for (std::size_t j = 0; j < k; ++j) importance[factor.order()[j]] = factor.importance()[j];
  const test::Numbers u = test::factor_of_inverse(full, factor.order());
  test::Numbers values;
  ScaleErrors errors;
  for (std::size_t row = 0; row < rows; ++row) {
    std::vector<bool> is_reached(k / blocksize);
    const auto first_block = row * k / blocksize;
    const test::Numbers of_row = test::gptq(
        std::span(weights).subspan(row * k, k), u, factor.order(),
        [&](std::size_t column, const test::Numbers& w) {
          const std::size_t block = column / blocksize;
          if (is_reached[block]) return;
          is_reached[block] = true;
          add_scale(codec, encoded.absmax[first_block + block], std::span(w).subspan(block * blocksize, blocksize),
                    std::span(importance).subspan(block * blocksize, blocksize), errors);
        },
        [&](std::size_t column, double w) {
          double nearest = 0, least = std::numeric_limits<double>::infinity();
          for (const float value : codec.tables().codebook) {
            const double q = static_cast<double>(value) * encoded.absmax[first_block + column / blocksize];
            if (std::abs(w - q) < least) least = std::abs(w - q), nearest = q;
          }
          return nearest;
        });
    values.insert(values.end(), of_row.begin(), of_row.end());
  }
  const double error = test::output_error(weights, encoded.decoded, full, k);
  EXPECT_NEAR(error, test::output_error(weights, values, full, k), 1e-4 * error);
  std::size_t others = 0;  // rounding may decide for another code, and then the rest of the row differs
  for (std::size_t i = 0; i < values.size(); ++i)
    others += std::abs(values[i] - encoded.decoded[i]) > 1e-6 * std::abs(values[i]) ? 1 : 0;
  EXPECT_LE(others, values.size() / 100);

  if (codec.absmax_choice() == AbsmaxChoice::search) {  // the range of double quantization is too small for some
    EXPECT_LE(errors.found, (codec.double_quant() ? 1.12 : 1.05) * errors.least);
  }
  EXPECT_LE(errors.found, 1.01 * errors.largest);
  for (std::size_t b = 0; b < encoded.absmax_codes.size(); ++b)
    EXPECT_EQ(encoded.absmax[b], encoded.range->value_of(encoded.absmax_codes[b], b));
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, Compensation,
    testing::Values(Case{"nf4:double-quant=no", 17, 192}, Case{"nf4:double-quant=no,absmax=search", 9, 192},
                    Case{"nf4:double-quant=no,absmax=search-positive", 5, 128}, Case{"nf4", 9, 192},
                    Case{"nf4:absmax=search", 9, 192}, Case{"nf4:double-quant=no", 3, 192, ColumnOrder::largest},
                    Case{"nf4:absmax=search", 3, 192, ColumnOrder::largest},
                    Case{"nf4:double-quant=no,block-size=32", 3, 96},
                    Case{"nf4:double-quant=no,block-size=128", 3, 256}, Case{"fp4:double-quant=no", 7, 128},
                    Case{"fp4:absmax=search", 7, 128}, Case{"nf4:double-quant=no", 1, 64}));

TEST(CompensationOfInt8, IsThatOfTheReference) {
  for (const auto order : {ColumnOrder::stored, ColumnOrder::largest}) {
    constexpr std::size_t rows = 17, k = 100;
    const test::Numbers h = test::second_moment(k, k, 7), full = test::damped(h, k, 0.01);
    test::Numbers given = h;
    const InputFactor factor(given, k, {k, order});
    std::vector<float> weights = test::normal_weights(rows * k, 8, 0.03f);
    std::fill_n(weights.begin() + 2 * k, k, 0.0f);
    std::vector<float> absmax(rows), decoded(rows * k);
    std::vector<std::int8_t> codes(rows * k);
    bool is_plain = true;
    for (std::size_t r = 0; r < rows; ++r)
      absmax[r] = int8::row_absmax(DType::f32, std::as_bytes(std::span(weights).subspan(r * k, k)), is_plain);
    absmax[3] *= 0.5f;  // the code is at most 127
    compensate_int8(factor, 0, weights, absmax, codes);
    const test::Numbers u = test::factor_of_inverse(full, factor.order());
    test::Numbers values;
    for (std::size_t r = 0; r < rows; ++r) {
      const double step = static_cast<double>(absmax[r]) / 127;
      const test::Numbers of_row = test::gptq(
          std::span(weights).subspan(r * k, k), u, factor.order(), [](std::size_t, const test::Numbers&) {},
          [&](std::size_t, double w) { return step == 0 ? 0 : step * std::clamp(std::rint(w / step), -127.0, 127.0); });
      values.insert(values.end(), of_row.begin(), of_row.end());
      int8::decode_row(std::span(codes).subspan(r * k, k), absmax[r], std::span(decoded).subspan(r * k, k));
    }
    const double error = test::output_error(weights, decoded, full, k);
    EXPECT_NEAR(error, test::output_error(weights, values, full, k), 1e-4 * error);
    EXPECT_TRUE(std::all_of(codes.begin() + 2 * k, codes.begin() + 3 * k, [](std::int8_t code) { return code == 0; }));
    EXPECT_EQ(*std::max_element(codes.begin() + 3 * k, codes.begin() + 4 * k), 127);
  }
}

TEST(FourBitCompensation, BytesDependNeitherOnThePartsNorOnTheTarget) {
  constexpr std::size_t rows = 131, k = 128;
  const std::vector<float> weights = test::normal_weights(rows * k, 9);
  for (const char* name : {"nf4:absmax=search", "fp4", "nf4:double-quant=no,block-size=128"}) {
    const auto any = make_codec(name);
    const auto& codec = dynamic_cast<const FourBitCodec&>(*any);
    test::Numbers h = test::second_moment(k, 40, 10);
    const InputFactor factor(h, k, {codec.blocksize(), ColumnOrder::largest});
    const Encoded expected = encode(codec, factor, weights);
    EXPECT_TRUE(encode(codec, factor, weights, 130) == expected) << name;
    EXPECT_TRUE(encode(codec, factor, weights, 7) == expected) << name;
    test::for_each_target([&](const std::string& target) {
      test::Numbers again = test::second_moment(k, 40, 10);
      const InputFactor of_target(again, k, {codec.blocksize(), ColumnOrder::largest});
      EXPECT_TRUE(encode(codec, of_target, weights) == expected) << name << ", " << target;
    });
  }
}

TEST(CompensationOfInt8, BytesDependNeitherOnThePartsNorOnTheTarget) {
  constexpr std::size_t rows = 20, k = 128;
  const std::vector<float> weights = test::normal_weights(rows * k, 9), absmax(rows, 2.5f);
  test::Numbers h = test::second_moment(k, 40, 10);
  const InputFactor factor(h, k, {});
  std::vector<std::int8_t> expected(rows * k);
  compensate_int8(factor, 0, weights, absmax, expected);
  test::for_each_target([&](const std::string& target) {
    std::vector<std::int8_t> codes(rows * k);
    for (const auto& [row, n] : {std::pair<std::size_t, std::size_t>{0, 3}, {3, 17}})
      compensate_int8(factor, row, std::span(weights).subspan(row * k, n * k), std::span(absmax).subspan(row, n),
                      std::span(codes).subspan(row * k, n * k));
    EXPECT_EQ(codes, expected) << target;
  });
}

// Plain rounding leaves several times the error where inputs depend on each other.
TEST(FourBitCompensation, LowersTheErrorOfTheOutput) {
  constexpr std::size_t rows = 16, k = 256;
  const auto any = make_codec("nf4:double-quant=no");
  const auto& codec = dynamic_cast<const FourBitCodec&>(*any);
  const std::vector<float> weights = test::normal_weights(rows * k, 11);
  const test::Numbers h = test::second_moment(k, 64, 12);
  test::Numbers given = h;
  const Encoded encoded = encode(codec, InputFactor(given, k, {}), weights);
  const std::vector<float> plain = test::round_trip(codec, weights, {rows, k});
  EXPECT_LT(test::output_error(weights, encoded.decoded, h, k), 0.35 * test::output_error(weights, plain, h, k));
}

// Without second moments nothing is corrected: the bytes are those of every other conversion.
TEST(FourBitCompensation, OfInputsThatAreAlwaysZeroIsPlainRounding) {
  constexpr std::size_t rows = 3, k = 128;
  std::vector<float> weights = test::normal_weights(rows * k, 13);
  std::fill_n(weights.begin() + 64, 64, 0.0f);
  weights[200] = 1e-39f;  // not a normal number
  std::fill_n(weights.begin() + 256, 64, 2e-39f);
  for (const char* name : {"nf4:double-quant=no", "fp4:double-quant=no"}) {
    const auto any = make_codec(name);
    const auto& codec = dynamic_cast<const FourBitCodec&>(*any);
    test::Numbers h(k * k);
    const Encoded encoded = encode(codec, InputFactor(h, k, {}), weights);
    const auto plain = test::encode(codec, {"w", DType::f32, {rows, k}}, test::bytes_of(weights));
    EXPECT_EQ(test::bytes_of(encoded.packed), plain.planes[0]) << name;
    EXPECT_EQ(test::bytes_of(encoded.absmax), plain.planes[1]) << name;
  }
}

// Without corrections, the weights of a block are the same whatever the absmax of the block before.
TEST(FourBitCompensation, DoubleQuantizationTakesTheCodeThatHurtsLess) {
  constexpr std::size_t rows = 40, k = 128;
  const std::vector<float> weights = test::normal_weights(rows * k, 15);
  const auto plain = make_codec("nf4:double-quant=no,absmax=search"), nested = make_codec("nf4:absmax=search");
  const auto& codec = dynamic_cast<const FourBitCodec&>(*nested);
  test::Numbers h(k * k);
  const InputFactor factor(h, k, {});
  const Encoded found = encode(dynamic_cast<const FourBitCodec&>(*plain), factor, weights);
  const Encoded encoded = encode(codec, factor, weights);
  std::size_t others = 0;
  const std::vector<double> alike(64, 1.0);
  for (std::size_t b = 0; b < encoded.absmax.size(); ++b) {
    const std::vector<double> w(weights.begin() + static_cast<std::ptrdiff_t>(64 * b),
                                weights.begin() + static_cast<std::ptrdiff_t>(64 * b + 64));
    const auto [nearest, other] = encoded.range->around(found.absmax[b], b);
    const double of_nearest = error_for(codec.tables(), w, alike, encoded.range->value_of(nearest, b));
    const double of_other = error_for(codec.tables(), w, alike, encoded.range->value_of(other, b));
    if (std::abs(of_nearest - of_other) < 1e-4 * of_nearest) continue;
    EXPECT_EQ(encoded.absmax_codes[b], of_other < of_nearest ? other : nearest) << b;
    others += of_other < of_nearest ? 1 : 0;
  }
  EXPECT_GT(others, 3U);
}

TEST(FourBitCompensation, NamesWhatItCannotEncode) {
  constexpr std::size_t k = 64;
  const auto any = make_codec("nf4:double-quant=no");
  const auto& codec = dynamic_cast<const FourBitCodec&>(*any);
  test::Numbers h = test::second_moment(k, k, 14);
  const InputFactor factor(h, k, {});
  const auto error_of = [&](const std::vector<float>& weights) -> std::string {
    try {
      encode(codec, factor, weights, 2);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  std::vector<float> weights(2 * k, 1.0f);
  weights[k + 5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(error_of(weights), "weight [1, 5] is not finite, so no other weight can make up for its error");
  weights.insert(weights.begin(), 2 * k, 1.0f);  // in the second part
  EXPECT_EQ(error_of(weights), "weight [3, 5] is not finite, so no other weight can make up for its error");
  weights.resize(k / 2);
  weights.shrink_to_fit();
  std::vector<std::uint8_t> packed(16);
  std::vector<float> absmax(1);
  try {
    FourBitCompensation(codec, factor).encode(0, weights, nullptr, {packed, absmax, {}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "32 weights are not rows of 64");
  }
}

// Column 64 has to make up for the errors of the 64 before.
InputFactor factor_of_large_corrections() {
  constexpr std::size_t k = 128;
  test::Numbers h(k * k);
  for (std::size_t i = 0; i < k; ++i) h[i * k + i] = 1;
  for (std::size_t i = 0; i < 64; ++i) h[i * k + i] = 1e6, h[i * k + 64] = 900;
  h[64 * k + 64] = 64;
  return InputFactor(h, k, {});
}

TEST(FourBitCompensation, RefusesCorrectionsBeyondFp32) {
  const auto any = make_codec("nf4:double-quant=no");
  const auto& codec = dynamic_cast<const FourBitCodec&>(*any);
  const InputFactor factor = factor_of_large_corrections();
  std::vector<float> weights(128, 3e38f);
  for (std::size_t i = 0; i < 64; ++i) weights[i] = i == 0 ? 3e38f : 2.6e38f;
  try {
    encode(codec, factor, weights);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the corrections of row 0 are beyond the range of fp32");
  }
}

// The absmax of the second row is far too small.
TEST(CompensationOfInt8, RefusesCorrectionsBeyondFp32) {
  const InputFactor factor = factor_of_large_corrections();
  std::vector<float> weights(2 * 128, 1e36f);
  std::fill(weights.begin() + 128, weights.end(), 3e38f);
  const std::vector<float> absmax{1e36f, 1.0f};
  std::vector<std::int8_t> codes(weights.size());
  try {
    compensate_int8(factor, 7, weights, absmax, codes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the corrections of row 8 are beyond the range of fp32");
  }
}

}  // namespace
}  // namespace nibble::compensation_test
