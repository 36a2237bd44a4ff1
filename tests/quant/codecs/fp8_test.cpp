// One file, because the casts and the scales of FP8 are tested against the same lists of numbers.

#include "nibble/fp8.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "nibble/error.hpp"
#include "nibble/metrics.hpp"
#include "quant/codecs/scaled.hpp"
#include "quant/simd/widen.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/codecs/reference.hpp"

namespace nibble::fp8_test {
namespace {

// Half a step of the format: a share of the weight, or of the smallest normal number. And rounding the quotient.
const test::CodecFacts facts("fp8", [](double weight, double absmax) {
  return std::max(std::abs(weight) * 0x1.0001p-4, absmax / 448 * 0x1p-10);
});

const test::GiveDigests digests({{"fp8",
                                  "fp8",
                                  OnOverflow::automatic,
                                  {"7e4d4ee4ad76f8b5615b43fd1438a9ba", "561d9f9189a2bf8019528ae092588e2b",
                                   "19c059f1558d1f9366ae10291e177391", "b11d358dd72d4aa7013d63b05c324f42"},
                                  {"b04d26036622d7988d6c8a5869f85063", "b796a490f91ca646f67e14052d6fe14a",
                                   "51112eeb27be993943e450bd82208a99", "bc09626e31375c4c7ee731b2970ec514"}},
                                 {"fp8_tensor_e5m2",
                                  "fp8:format=e5m2,scales=tensor",
                                  OnOverflow::automatic,
                                  {"85d65422f307f3b2e3ed6867acedb09e", "a8f3a593623b2b88c7ca55c44724f915",
                                   "c10972f2e5444534aedfb0abf546f9ed", "8ede01ea196765247c2cc67fa51f8a5e"},
                                  {"342911687790706f9a6a61572e0da017", "7f91deb382ff2d88dcdbd2d472236125",
                                   "2dfaa52324e48708745a156c6ecf201a", "06534ac03453fd03b02e0368dec01ba2"}},
                                 {"fp8_block",
                                  "fp8:scales=block",
                                  OnOverflow::automatic,
                                  {"37a13317885b1934dbee2c87d9c9a1fe", "747f8593dbd8bacdfc241377b6a5d452",
                                   "8d6f8db46c0b79c337e357bb8cda1cbe", "54ff2e87a06fe88af32242de1fd68ae4"},
                                  {"36fd14c45d42630243d489054b2dfef5", "5611ec7a074d1a2c21df9e47acc4426f",
                                   "25317ce5507e45f1509dad17666fa38f", "ac5e46d6c91431c1b3d33f3c00c5fb85"}}});

using test::Bytes;
using test::bytes_of;
using test::Encoded;

struct Format {
  std::string_view name;
  int mantissa_bits, bias;
  float largest;
};
constexpr Format e4m3{"e4m3", 3, 7, 448.0f}, e5m2{"e5m2", 2, 15, 57344.0f};
constexpr Format formats[] = {e4m3, e5m2};
constexpr Granularity granularities[] = {Granularity::row, Granularity::tensor, Granularity::tile};
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

std::unique_ptr<const Codec> codec_of(const Format& format, Granularity granularity) {
  return make_codec(CodecSpec("fp8").with("format", format.name).with("scales", to_string(granularity)));
}

// Weights of one region.
void encode(const Format& format, DType source, std::span<const std::byte> weights, float scale,
            std::span<std::byte> codes) {
  const auto codec = codec_of(format, Granularity::row);
  dynamic_cast<const ScaledCodec&>(*codec).encode(source, weights, scale, codes);
}
void decode(const Format& format, std::span<const std::byte> codes, float scale, DType to,
            std::span<std::byte> weights) {
  const auto codec = codec_of(format, Granularity::row);
  dynamic_cast<const ScaledCodec&>(*codec).decode_of_region()(codes, scale, to, weights);
}
void decode(const Format& format, std::span<const std::byte> codes, float scale, std::span<float> weights) {
  decode(format, codes, scale, DType::f32, std::as_writable_bytes(weights));
}

std::vector<float> numbers_of(const Format& format, const Bytes& codes, float scale = 1) {
  std::vector<float> numbers(codes.size());
  decode(format, codes, scale, numbers);
  return numbers;
}

Bytes codes_of(const Format& format, DType source, const Bytes& weights, float scale = 1) {
  Bytes codes(weights.size() / (traits(source).bits / 8));
  encode(format, source, weights, scale, codes);
  return codes;
}

Bytes all_codes() {
  Bytes codes;
  for (unsigned code = 0; code < 256; ++code) codes.push_back(static_cast<std::byte>(code));
  return codes;
}

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

TEST(Fp8, CodesStandForTheNumbersOfTheFormat) {
  for (const Format& format : formats)
    test::for_each_target([&](const std::string& target) {
      const std::vector<float> numbers = numbers_of(format, all_codes());
      for (unsigned code = 0; code < 256; ++code) {
        const float expected = reference::fp8_number(code, format.mantissa_bits, format.bias, format.largest);
        if (std::isnan(expected))
          EXPECT_TRUE(std::isnan(numbers[code])) << target << ' ' << code;
        else
          EXPECT_EQ(bits_of(numbers[code]), bits_of(expected)) << target << ' ' << code;
      }
    });
}

// Random bits, and where products of fp32 or of 16 bits end: subnormal, beyond the largest, infinite and NaN.
std::vector<float> scales() {
  std::vector<float> scales{0.0f,
                            1.0f,
                            -1.0f,
                            0x1p-149f,
                            0x1p-126f,
                            0x1p-33f,
                            0x1p-24f,
                            0x1p-14f,
                            146.25f,
                            146.3f,
                            65504.0f / 448,
                            3e38f,
                            std::numeric_limits<float>::max(),
                            infinity,
                            nan};
  std::mt19937 random(2);
  std::uniform_real_distribution<float> exponent(-40, 10);
  for (int i = 0; i < 300; ++i) scales.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  for (int i = 0; i < 700; ++i) scales.push_back(std::exp2(exponent(random)));
  return scales;
}

// Every code times any scale becomes the fp32 product rounded to 16 bits, NaN included: at any address that is aligned
// for the type, and for any number of codes.
TEST(Fp8, EveryCodeTimesAnyScaleIsRoundedOnceMoreTo16Bits) {
  const Bytes codes = all_codes();
  for (const Format& format : formats)
    for (const float scale : scales())
      test::for_each_target([&](const std::string& target) {
        const std::vector<float> weights = numbers_of(format, codes, scale);
        for (const DType to : {DType::bf16, DType::f16}) {
          std::vector<std::uint16_t> out(257, 0xAAAA);
          decode(format, codes, scale, to, std::as_writable_bytes(std::span(out)).subspan(2));
          for (unsigned code = 0; code < 256; ++code) {
            const bool to_bf16 = to == DType::bf16;
            const std::uint16_t expected = to_bf16 ? bf16::from_float(weights[code]) : fp16::from_float(weights[code]);
            if (std::isnan(scale)) {  // of two NaN, the product may be either
              ASSERT_TRUE(std::isnan(to_bf16 ? bf16::to_float(out[code + 1]) : fp16::to_float(out[code + 1])));
              continue;
            }
            ASSERT_EQ(out[code + 1], expected) << target << ": " << code << " * " << scale << ' ' << traits(to).name;
          }
          EXPECT_EQ(out[0], 0xAAAA);
        }
      });
  test::for_each_target([&](const std::string& target) {
    for (const DType to : {DType::bf16, DType::f16})
      for (std::size_t n = 0; n < 100; ++n) {
        std::vector<std::uint16_t> whole(256), out(n + 1, 0xAAAA);
        decode(e4m3, codes, 0.3f, to, std::as_writable_bytes(std::span(whole)));
        decode(e4m3, std::span(codes).first(n), 0.3f, to, std::as_writable_bytes(std::span(out).first(n)));
        EXPECT_TRUE(std::equal(out.begin(), out.end() - 1, whole.begin())) << target << ' ' << n;
        EXPECT_EQ(out[n], 0xAAAA) << target << ' ' << n;
      }
  });
}

// Every finite bf16; of fp32 every tie between two codes and its neighbours, and random bits.
std::vector<float> finite_numbers(const Format& format) {
  std::vector<float> numbers;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits)
    if ((bits & 0x7F80) != 0x7F80) numbers.push_back(bf16::to_float(static_cast<std::uint16_t>(bits)));
  for (unsigned code = 0; code < 127; ++code) {
    const auto number = [&](unsigned of) {
      return reference::fp8_number(of, format.mantissa_bits, format.bias, format.largest);
    };
    const float tie = (number(code) + number(code + 1)) / 2;
    if (!std::isfinite(tie)) continue;
    for (const float near : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, infinity)}) {
      numbers.push_back(near);
      numbers.push_back(-near);
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i)
    if (const float number = std::bit_cast<float>(static_cast<std::uint32_t>(random())); std::isfinite(number))
      numbers.push_back(number);
  return numbers;
}

TEST(Fp8, RoundsToNearestEvenAndSaturates) {
  for (const Format& format : formats) {
    const std::vector<float> weights = finite_numbers(format);
    for (const float scale : {1.0f, 0.37f, 3e-5f, 1e-41f, 1e30f})
      test::for_each_target([&](const std::string& target) {
        const auto numbers = numbers_of(format, codes_of(format, DType::f32, bytes_of(weights), scale));
        for (std::size_t i = 0; i < weights.size(); ++i) {
          const float quotient = weights[i] / scale;
          const float finite = std::clamp(quotient, -format.largest, format.largest);
          const float expected = reference::fp8(finite, format.mantissa_bits, format.bias, format.largest);
          ASSERT_EQ(bits_of(numbers[i]), bits_of(expected)) << target << ": " << weights[i] << " / " << scale;
        }
      });
  }
}

// Of any number of weights, which need no alignment.
TEST(Fp8, EveryNumberOfWeightsIsTakenWhole) {
  const std::vector<float> weights = test::normal_weights(100, 1);
  for (const DType source : {DType::f32, DType::bf16, DType::f16}) {
    const Bytes bytes = test::stored_as(source, weights);
    const std::size_t size = traits(source).bits / 8;
    const Bytes all = codes_of(e4m3, source, bytes, 0.01f);
    const std::vector<float> numbers = numbers_of(e4m3, all, 0.3f);
    test::for_each_target([&](const std::string& target) {
      for (const std::size_t first : {0U, 1U})
        for (std::size_t n = 0; n + first <= weights.size(); ++n) {
          Bytes codes(n + 1, std::byte{0x55});
          encode(e4m3, source, std::span(bytes).subspan(first * size, n * size), 0.01f, std::span(codes).first(n));
          EXPECT_TRUE(std::equal(codes.begin(), codes.end() - 1, all.begin() + static_cast<std::ptrdiff_t>(first)));
          EXPECT_EQ(codes[n], std::byte{0x55}) << target << ' ' << n;
          std::vector<float> out(n + 1, -7.0f);
          decode(e4m3, std::span(all).subspan(first, n), 0.3f, std::span(out).first(n));
          EXPECT_TRUE(std::equal(out.begin(), out.end() - 1, numbers.begin() + static_cast<std::ptrdiff_t>(first)));
          EXPECT_EQ(out[n], -7.0f) << target << ' ' << n;
        }
    });
  }
}

TEST(Fp8, EqualsTorchsCast) {
  const test::Golden golden;
  EXPECT_EQ(codes_of(e4m3, DType::f32, golden.bytes("fp8.e4m3.input")), golden.bytes("fp8.e4m3"));
  EXPECT_EQ(codes_of(e5m2, DType::f32, golden.bytes("fp8.e5m2.input")), golden.bytes("fp8.e5m2"));
}

TEST(Fp8, EqualsCompressedTensorsByteForByte) {
  const test::Golden golden;
  const TensorInfo& tensor = golden.info("fp8.input");
  const std::pair<std::string, Granularity> strategies[] = {
      {"tensor", Granularity::tensor}, {"channel", Granularity::row}, {"block", Granularity::tile}};
  for (const auto& [strategy, granularity] : strategies)
    for (const std::uint64_t limit : {1U, 300U, 5000U, 40000U}) {
      const auto codec = codec_of(e4m3, granularity);
      const Encoded encoded = test::encode(*codec, tensor, golden.bytes("fp8.input"), limit);
      EXPECT_EQ(encoded.planes[0], golden.bytes("fp8." + strategy)) << limit;
      EXPECT_EQ(encoded.planes[1], golden.bytes("fp8." + strategy + ".scale")) << limit;
      EXPECT_EQ(codec->planes(tensor)[1].shape, golden.info("fp8." + strategy + ".scale").shape);
    }
}

TEST(Fp8, Planes) {
  const auto planes = [](Granularity granularity, DType source, const Shape& shape) {
    return codec_of(e5m2, granularity)->planes({"w", source, shape});
  };
  EXPECT_EQ(planes(Granularity::row, DType::f16, {3, 400}),
            (std::vector<Plane>{{PlaneRole::codes, DType::f8_e5m2, {3, 400}}, {PlaneRole::scale, DType::f16, {3, 1}}}));
  EXPECT_EQ(planes(Granularity::tensor, DType::bf16, {3, 400})[1], (Plane{PlaneRole::scale, DType::bf16, {1}}));
  EXPECT_EQ(planes(Granularity::tile, DType::f64, {129, 400})[1], (Plane{PlaneRole::scale, DType::f32, {2, 4}}));
  EXPECT_EQ(make_codec("fp8")->planes({"w", DType::f32, {3, 4}}),
            (std::vector<Plane>{{PlaneRole::codes, DType::f8_e4m3, {3, 4}}, {PlaneRole::scale, DType::f32, {3, 1}}}));
  EXPECT_FALSE(make_codec("fp8")->accepts({"a.weight", DType::f16, {3}}));
  EXPECT_FALSE(make_codec("fp8")->accepts({"a.weight", DType::f16, {3, 4, 5}}));
}

// The scale and the finite largest magnitude of the region of each weight, as the definition has them.
struct Definition {
  std::vector<float> absmax, scale;
};
Definition definition(const Format& format, Granularity granularity, DType source, const Shape& shape,
                      const std::vector<float>& weights) {
  const std::uint64_t height = granularity == Granularity::row ? 1 : granularity == Granularity::tile ? 128 : shape[0];
  const std::uint64_t width = granularity == Granularity::tile ? 128 : shape[1];
  Definition result{std::vector<float>(weights.size()), std::vector<float>(weights.size())};
  for (std::uint64_t i = 0; i < shape[0]; ++i)
    for (std::uint64_t k = 0; k < shape[1]; ++k) {
      float absmax = 0;
      for (std::uint64_t y = i / height * height; y < std::min(shape[0], (i / height + 1) * height); ++y)
        for (std::uint64_t x = k / width * width; x < std::min(shape[1], (k / width + 1) * width); ++x)
          if (const float weight = weights[y * shape[1] + x]; std::isfinite(weight))
            absmax = std::max(absmax, std::abs(weight));
      float scale = absmax / format.largest;
      if (source == DType::bf16) scale = reference::bf16(scale);
      if (source == DType::f16) scale = reference::fp16(scale);
      if (scale == 0) scale = source == DType::bf16 ? 0x1p-7f : source == DType::f16 ? 0x1p-10f : 0x1p-23f;
      result.absmax[i * shape[1] + k] = absmax;
      result.scale[i * shape[1] + k] = scale;
    }
  return result;
}

// Of every type, cut anywhere, with regions of zeros, tiny weights, and NaN and infinities in some.
TEST(Fp8, MatricesFollowTheDefinition) {
  for (const Shape& shape : {Shape{3, 7}, Shape{130, 131}, Shape{300, 20}, Shape{2, 5000}}) {
    std::vector<float> weights = test::normal_weights(shape[0] * shape[1], 9, 0.02f);
    for (std::size_t i = 0; i < shape[1]; ++i) weights[i] = 0;
    for (std::size_t i = shape[1]; i < 2 * shape[1]; ++i) weights[i] *= 1e-5f;
    if (shape[0] > 200) {
      weights[200 * shape[1] + 1] = nan;
      weights[260 * shape[1] + 3] = -infinity;
    }
    for (const DType source : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      const TensorInfo tensor{"m.weight", source, shape};
      const Bytes stored = test::stored_as(source, weights);
      const std::vector<double> numbers = test::numbers_of(source, stored);
      const std::vector<float> values(numbers.begin(), numbers.end());
      for (const Format& format : formats)
        for (const Granularity granularity : granularities) {
          const auto codec = codec_of(format, granularity);
          const Definition expected = definition(format, granularity, source, shape, values);
          const Encoded encoded = test::encode(*codec, tensor, stored);
          const std::vector<float> decoded = test::decode(*codec, tensor, encoded);
          for (std::size_t i = 0; i < values.size(); ++i) {
            const float finite =
                std::isnan(values[i]) ? 0.0f : std::clamp(values[i], -expected.absmax[i], expected.absmax[i]);
            const float quotient = finite / expected.scale[i];
            const float number = reference::fp8(quotient, format.mantissa_bits, format.bias, format.largest);
            ASSERT_EQ(decoded[i], number * expected.scale[i]) << i << " of " << to_string(shape);
          }
          for (const std::uint64_t limit : {4096U, 8192U, 20000U}) {
            EXPECT_EQ(test::encode(*codec, tensor, stored, limit), encoded) << limit;
            EXPECT_EQ(test::encode(*codec, tensor, stored, {.limit = limit, .order = test::backwards}), encoded)
                << limit;
          }
        }
    }
  }
}

// As other tools store them.
TEST(Fp8, ScalesOf16BitWeightsMayBeFp32) {
  const TensorInfo tensor{"m.weight", DType::bf16, {2, 3}};
  const Bytes codes = codes_of(e4m3, DType::f32, bytes_of(std::vector<float>{1, 2, 3, 4, 5, 6}));
  const Encoded wide{{codes, bytes_of(std::vector<float>{0.3f, 0.7f})}, {}};
  EXPECT_EQ(test::decode(*make_codec("fp8"), tensor, wide),
            (std::vector<float>{0.3f, 2 * 0.3f, 3 * 0.3f, 4 * 0.7f, 5 * 0.7f, 6 * 0.7f}));
}

// The sums that encoding reports are those of the decoded weights, and the same for all chunks.
TEST(Fp8, ErrorsAreThoseOfWhatIsDecoded) {
  for (const Shape& shape : {Shape{300, 20}, Shape{260, 1300}, Shape{3, 10000}, Shape{5000, 1}})
    for (const DType source : {DType::f64, DType::bf16}) {
      const TensorInfo tensor{"m.weight", source, shape};
      const Bytes stored = test::stored_as(source, test::normal_weights(tensor.elements(), 8, 0.02f));
      const std::vector<double> numbers = test::numbers_of(source, stored);
      for (const Granularity granularity : granularities) {
        const auto codec = codec_of(e4m3, granularity);
        std::vector<ErrorSums> whole;
        const Encoded encoded = test::encode(*codec, tensor, stored, {.errors = &whole});
        const std::vector<float> decoded = test::decode(*codec, tensor, encoded);
        ErrorSums expected, sums;
        for (std::size_t i = 0; i < numbers.size(); ++i) {
          const double w = static_cast<float>(numbers[i]), t = decoded[i];
          expected.add({1, (t - w) * (t - w), w * t, w * w, t * t});
        }
        for (const ErrorSums& piece : whole) sums.add(piece);
        EXPECT_EQ(sums.count, expected.count);
        EXPECT_NEAR(sums.square, expected.square, 1e-6 * expected.square);
        EXPECT_NEAR(sums.product, expected.product, 1e-6 * expected.product);
        EXPECT_LE(whole.size(), 2 * tensor.elements() / tile_weights + 2 * shape[0] / 128 + 3 * shape[0] / 4096 + 4);
        for (const std::uint64_t limit : {4096U, 10000U, 200000U}) {
          std::vector<ErrorSums> pieces;
          (void)test::encode(*codec, tensor, stored, {.limit = limit, .errors = &pieces});
          EXPECT_EQ(pieces, whole) << to_string(shape) << ' ' << limit;
        }
      }
    }
}

TEST(Fp8, TheSpreadOfAbsmaxIsReported) {
  std::vector<float> weights(256 * 128, 0.5f);
  weights[0] = -3;
  const TensorInfo tensor{"m.weight", DType::f32, {256, 128}};
  for (const std::uint64_t limit : {4096U, 1U << 20}) {
    EncodingError late;
    (void)test::encode(*codec_of(e4m3, Granularity::tile), tensor, bytes_of(weights), {.limit = limit, .late = &late});
    EXPECT_EQ(late.absmax.count, 2U);
    EXPECT_EQ(late.absmax.max, 3.0f);
    EXPECT_EQ(late.absmax.min, 0.5f);
  }
}

TEST(Fp8, NormalWeightsHaveTheSqnrThatIsExpected) {
  constexpr std::size_t count = std::size_t{1} << 20;
  const std::vector<float> weights = test::normal_weights(count, 3);
  for (const Format& format : formats)
    for (const Granularity granularity : granularities)
      for (const std::size_t columns : {16U, 64U, 256U, 1024U, 16384U}) {
        const auto codec = codec_of(format, granularity);
        const TensorInfo tensor{"w.weight", DType::f32, {count / columns, columns}};
        const double db = compare(weights, test::round_trip(*codec, weights, tensor.shape)).sqnr_db();
        EXPECT_NEAR(codec->normal_sqnr_db(tensor), db, columns == 16 ? 0.1 : 0.06) << columns;
      }
  EXPECT_TRUE(std::isnan(make_codec("fp8")->normal_sqnr_db({"w.weight", DType::f32, {4, 8}})));
  EXPECT_TRUE(std::isnan(make_codec("fp8")->normal_sqnr_db({"w.weight", DType::f32, {4}})));
}

// The functions of the public header, for one region of fp32 weights: with absmax = 2 * largest, the scale is 2.
TEST(Fp8, ARegionIsEncodedWithItsOwnScale) {
  const auto encoded = [](fp8::Format format, const std::vector<float>& weights) {
    std::vector<std::uint8_t> codes(weights.size());
    const float scale = fp8::encode(format, weights, codes);
    return std::pair(scale, codes);
  };
  using Codes = std::vector<std::uint8_t>;
  test::for_each_target([&](const std::string& target) {
    EXPECT_EQ(encoded(fp8::Format::e4m3, {896, 2, -1, 0}), std::pair(2.0f, Codes{0x7E, 0x38, 0xB0, 0})) << target;
    EXPECT_EQ(encoded(fp8::Format::e5m2, {2, -114688, -1, 0}), std::pair(2.0f, Codes{0x3C, 0xFB, 0xB8, 0})) << target;
    EXPECT_EQ(encoded(fp8::Format::e4m3, {infinity, 2, nan, -infinity, 896}),
              std::pair(2.0f, Codes{0x7E, 0x38, 0, 0xFE, 0x7E}))
        << target;
    EXPECT_EQ(encoded(fp8::Format::e5m2, {0, 0}), std::pair(0x1p-23f, Codes{0, 0})) << target;
    std::vector<float> many(700, 1.0f);
    many.back() = nan;
    Codes ones(700, 0x7E);
    ones.back() = 0;
    EXPECT_EQ(encoded(fp8::Format::e4m3, many), std::pair(1.0f / 448, ones)) << target;
  });
  EXPECT_EQ(encoded(fp8::Format::e4m3, {}).second, Codes());
}

// As the codec encodes a matrix with one scale.
TEST(Fp8, RegionsEqualTheCodecs) {
  const std::vector<float> weights = test::normal_weights(1000, 3);
  const Bytes bytes = bytes_of(weights);
  for (const auto& [format, own] : {std::pair(e4m3, fp8::Format::e4m3), std::pair(e5m2, fp8::Format::e5m2)}) {
    EXPECT_EQ(fp8::largest(own), format.largest);
    std::vector<std::uint8_t> codes(weights.size());
    const float scale = fp8::encode(own, weights, codes);
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(codes)), codes_of(format, DType::f32, bytes, scale)));
    std::vector<std::uint8_t> again(weights.size());
    fp8::encode(own, weights, scale, again);
    EXPECT_EQ(again, codes);
    std::vector<float> decoded(weights.size()), expected(weights.size());
    fp8::decode(own, codes, scale, decoded);
    decode(format, std::as_bytes(std::span(codes)), scale, expected);
    EXPECT_EQ(decoded, expected);
  }
}

TEST(Fp8, SizesThatDisagreeAreRefused) {
  Bytes codes(2);
  std::vector<std::uint8_t> own_codes(2);
  std::vector<float> weights(3), infinite(3, infinity);
  for (const auto& call : {std::function<void()>([&] { encode(e4m3, DType::f32, bytes_of(weights), 1, codes); }),
                           std::function<void()>([&] { decode(e4m3, codes, 1, weights); }),
                           std::function<void()>([&] { (void)fp8::encode(fp8::Format::e4m3, weights, own_codes); }),
                           std::function<void()>([&] { (void)fp8::encode(fp8::Format::e4m3, infinite, own_codes); }),
                           std::function<void()>([&] { fp8::encode(fp8::Format::e4m3, weights, 1, own_codes); }),
                           std::function<void()>([&] { fp8::decode(fp8::Format::e5m2, own_codes, 1, weights); })}) {
    try {
      call();
      FAIL() << "was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::usage);
      EXPECT_STREQ(error.what(), "fp8: 3 weights do not fit 2 codes");
    }
  }
}

}  // namespace
}  // namespace nibble::fp8_test
