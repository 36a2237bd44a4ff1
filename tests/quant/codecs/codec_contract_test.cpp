// What every codec owes its callers. A format joins by being registered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nibble/error.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::codec_contract_test {
namespace {

using test::bytes_of;
using test::Encoded;
using test::facts_of;
using test::normal_weights;
using test::stored_as;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t columns[] = {1, 2, 63, 64, 65, 127, 4096, 4099};  // around the block, where tails go wrong
constexpr DType sources[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

class CodecContract : public testing::TestWithParam<std::string_view> {
 protected:
  const std::unique_ptr<const Codec> codec = make_codec(GetParam());
};

// Of the planes of a tensor. Scales may have the type of the weights: these are then not the same for all types.
std::vector<DType> types_of(const Codec& codec, const TensorInfo& tensor) {
  std::vector<DType> types;
  for (const Plane& plane : codec.planes(tensor)) types.push_back(plane.dtype);
  return types;
}

TEST_P(CodecContract, NamesItself) { EXPECT_EQ(codec->name(), GetParam()); }

TEST_P(CodecContract, ZerosStayExactZeros) {
  for (const std::size_t n : columns) {
    const std::vector<float> zeros(3 * n, 0.0f);
    const auto out = test::round_trip(*codec, zeros, {3, n});
    EXPECT_EQ(bytes_of(out), bytes_of(zeros)) << n << " columns";
  }
}

TEST_P(CodecContract, ZerosAmongWeightsStayZeros) {
  std::vector<float> weights = normal_weights(8 * 128, 1);
  for (std::size_t i = 0; i < weights.size(); i += 3) weights[i] = 0.0f;
  const auto out = test::round_trip(*codec, weights, {8, 128});
  for (std::size_t i = 0; i < weights.size(); i += 3) EXPECT_EQ(out[i], 0.0f) << i;
}

TEST_P(CodecContract, PlanesHaveTheBytesTheyPromise) {
  for (const DType source : sources) {
    for (const std::size_t n : columns) {
      const TensorInfo tensor{"m.weight", source, {3, n}};
      const auto planes = codec->planes(tensor);
      const Encoded encoded = test::encode(*codec, tensor, stored_as(source, normal_weights(3 * n, 2)));
      ASSERT_EQ(encoded.planes.size(), planes.size());
      for (std::size_t i = 0; i < planes.size(); ++i)
        EXPECT_EQ(encoded.planes[i].size(), planes[i].bytes()) << to_string(planes[i].role);
      EXPECT_EQ(planes[0].role, PlaneRole::codes);
      EXPECT_EQ(planes[0].bytes(), codec->code_bytes(tensor, tensor.elements()));
    }
  }
}

TEST_P(CodecContract, EmptyTensorsPass) {
  for (const Shape& shape : {Shape{0, 5}, Shape{5, 0}}) {
    const TensorInfo tensor{"m.weight", DType::f32, shape};
    const Encoded encoded = test::encode(*codec, tensor, {});
    const auto planes = codec->planes(tensor);
    ASSERT_EQ(encoded.planes.size(), planes.size());
    for (std::size_t i = 0; i < planes.size(); ++i) EXPECT_EQ(encoded.planes[i].size(), planes[i].bytes());
    EXPECT_TRUE(test::decode(*codec, tensor, encoded).empty());
  }
}

TEST_P(CodecContract, ChunksMakeTheSameBytesAsTheWhole) {
  for (const DType source : sources) {
    const TensorInfo tensor{"m.weight", source, {7, 4099}};
    std::vector<float> weights = normal_weights(7 * 4099, 3, 1e-3f);
    weights[5000] = nan;
    weights[20000] = -infinity;
    weights[28000] = 1e-42f;
    const auto bytes = stored_as(source, weights);
    const Encoded whole = test::encode(*codec, tensor, bytes);
    for (const std::uint64_t limit : {1u, 2u, 63u, 64u, 100u, 1000u, 4096u, 4099u, 5000u, 10000u}) {
      if (limit < 63 && source != DType::f32) continue;
      const Encoded chunked = test::encode(*codec, tensor, bytes, limit);
      EXPECT_EQ(chunked, whole) << limit;
      EXPECT_EQ(test::encode(*codec, tensor, bytes, {.limit = limit, .order = test::backwards}), whole)
          << limit << " backwards";
      EXPECT_EQ(bytes_of(test::decode(*codec, tensor, chunked, limit)), bytes_of(test::decode(*codec, tensor, whole)));
    }
  }
}

// 16-bit weights are read straight into registers: every bit pattern, and blocks of every size and of tiny numbers.
TEST_P(CodecContract, SixteenBitSourcesAreEncodedAsTheirFp32Values) {
  if (GetParam() == "keep") return;
  for (const DType source : {DType::bf16, DType::f16}) {
    const auto widened = source == DType::bf16 ? bf16::to_float : fp16::to_float;
    std::vector<std::uint16_t> halves(1 << 16);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i * 40503);  // every one
    for (const float scale : {1.0f, 1e-3f, 1e-7f, 1e-33f, 1e-39f})
      for (const float weight : normal_weights(3 * 4099, 7, scale))
        halves.push_back(source == DType::bf16 ? bf16::from_float(weight) : fp16::from_float(weight));
    std::vector<float> weights(halves.size());
    std::transform(halves.begin(), halves.end(), weights.begin(), widened);
    const TensorInfo narrow{"m.weight", source, {1, halves.size()}};
    const TensorInfo wide{"m.weight", DType::f32, {1, halves.size()}};
    test::for_each_target([&](const std::string& target) {
      const Encoded from_narrow = test::encode(*codec, narrow, bytes_of(halves));
      const Encoded from_wide = test::encode(*codec, wide, bytes_of(weights));
      if (types_of(*codec, narrow) == types_of(*codec, wide) && codec->planes(narrow)[0].dtype != source) {
        EXPECT_EQ(from_narrow.planes[0], from_wide.planes[0]) << target;  // its own type keeps NaN as they are
      }
      EXPECT_EQ(from_narrow.findings, from_wide.findings) << target;
    });
  }
}

TEST_P(CodecContract, DecodingTo16BitsIsDecodingToFp32AndRounding) {
  const TensorInfo tensor{"m.weight", DType::f32, {5, 4099}};
  std::vector<float> weights = normal_weights(5 * 4099, 8, 0.02f);
  std::fill_n(weights.begin() + 300, 200, 1e-42f);
  std::fill_n(weights.begin() + 900, 200, codec->cast_type() == DType::f16 ? 6e4f : 3e38f);
  for (const CodecSpec& variant : test::variants(GetParam())) {
    const auto blocks = make_codec(variant);
    const Encoded encoded = test::encode(*blocks, tensor, bytes_of(weights));
    const auto decoder = blocks->decoder(tensor, encoded.rest());
    test::for_each_target([&](const std::string& target) {
      const std::vector<float> exact = test::decode(*blocks, tensor, encoded);
      for (const DType to : {DType::f32, DType::bf16, DType::f16}) {
        test::Bytes out(weights.size() * traits(to).bits / 8 + 1);
        for (const std::size_t skew : {0u, 1u}) {
          const auto bytes = std::span(out).subspan(skew, out.size() - 1);
          decoder->decode(0, encoded.planes[0], to, bytes);
          EXPECT_EQ(test::Bytes(bytes.begin(), bytes.end()), stored_as(to, exact))
              << target << ", " << traits(to).name << ", " << variant.text();
        }
      }
    });
  }
}

TEST_P(CodecContract, WeightsAreDecodedToThreeTypesOnly) {
  const TensorInfo tensor{"m.weight", DType::f32, {2, 64}};
  const Encoded encoded = test::encode(*codec, tensor, bytes_of(normal_weights(128, 9)));
  test::Bytes out(128 * 8);
  EXPECT_THROW(codec->decoder(tensor, encoded.rest())->decode(0, encoded.planes[0], DType::f64, out), Error);
}

TEST_P(CodecContract, ChunksKeepToTheLimit) {
  const TensorInfo tensor{"m.weight", DType::f32, {1000, 4099}};
  for (const std::uint64_t limit : {1u, 64u, 4096u, 4099u, 5000u, 1u << 20}) {
    const Chunking chunking = make_quantizer(*codec)->chunking(tensor, limit);
    EXPECT_GE(chunking.weights, 1u);
    EXPECT_LE(chunking.weights, std::max<std::uint64_t>(limit, 64)) << limit;
  }
}

TEST_P(CodecContract, RoundTripKeepsToTheBoundOfTheFormat) {
  for (const float scale : {1e-3f, 1.0f, 30.0f}) {
    const std::vector<float> weights = normal_weights(16 * 512, 4, scale);
    double absmax = 0;
    for (const float weight : weights) absmax = std::max<double>(absmax, std::abs(weight));
    const auto out = test::round_trip(*codec, weights, {16, 512});
    for (std::size_t i = 0; i < weights.size(); ++i)
      ASSERT_LE(std::abs(out[i] - weights[i]), facts_of(GetParam()).bound(weights[i], absmax))
          << i << ": " << weights[i];
  }
}

TEST_P(CodecContract, SourceTypesThatHoldTheSameValuesGiveTheSameBytes) {
  std::vector<float> weights = normal_weights(5 * 333, 5);
  for (float& weight : weights) weight = bf16::to_float(bf16::from_float(weight));
  for (float& weight : weights) weight = fp16::to_float(fp16::from_float(weight));
  if (GetParam() == "keep") return;
  const auto encode_as = [&](DType source) {
    const TensorInfo tensor{"m.weight", source, {5, 333}};
    Encoded encoded = test::encode(*codec, tensor, stored_as(source, weights));
    encoded.findings = {};
    return encoded;
  };
  const Encoded expected = encode_as(DType::f32);
  for (const DType source : {DType::f64, DType::bf16, DType::f16})
    if (types_of(*codec, {"w", source, {5, 333}}) == types_of(*codec, {"w", DType::f32, {5, 333}})) {
      EXPECT_EQ(encode_as(source), expected) << traits(source).name;
    }
}

TEST_P(CodecContract, EveryTargetWritesTheSameBytes) {
  std::vector<float> weights = normal_weights(9 * 777, 6, 1e-4f);
  for (std::size_t i = 0; i < weights.size(); i += 7) weights[i] *= 1e-4f;
  for (std::size_t i = 0; i < weights.size(); i += 501) weights[i] *= 1e9f;
  weights[100] = infinity;
  weights[1000] = nan;
  weights[3000] = 1e-40f;
  weights[3001] = -0.0f;
  for (const CodecSpec& variant : test::variants(GetParam())) {
    const auto sized = make_codec(variant);
    for (const DType source : sources) {
      const TensorInfo tensor{"m.weight", source, {9, 777}};
      const auto bytes = stored_as(source, weights);
      const Encoded expected = test::encode(*sized, tensor, bytes);
      const auto decoded = bytes_of(test::decode(*sized, tensor, expected));
      test::for_each_target([&](const std::string& target) {
        EXPECT_EQ(test::encode(*sized, tensor, bytes), expected) << target << ", " << traits(source).name;
        EXPECT_EQ(bytes_of(test::decode(*sized, tensor, expected)), decoded) << target << ", " << traits(source).name;
      });
    }
  }
}

TEST_P(CodecContract, UnalignedBytesAreWelcome) {
  for (const DType source : sources) {
    const TensorInfo tensor{"m.weight", source, {5, 333}};
    const auto bytes = stored_as(source, normal_weights(5 * 333, 7));
    const Encoded expected = test::encode(*codec, tensor, bytes);
    for (const std::size_t shift : {1u, 2u, 3u}) {
      test::Bytes shifted(bytes.size() + shift);
      std::copy(bytes.begin(), bytes.end(), shifted.begin() + static_cast<std::ptrdiff_t>(shift));
      EXPECT_EQ(test::encode(*codec, tensor, std::span(shifted).subspan(shift)), expected);
    }
    // Output and input of the decoder as well.
    test::Bytes out(expected.planes[0].size() + 1);
    const auto quantizer = make_quantizer(*codec);
    MemoryScratch scratch(quantizer->scratch_bytes(tensor));
    const auto encoder = quantizer->encoder(tensor, {bytes.size(), false}, scratch);
    if (quantizer->chunking(tensor, 1 << 20).scan) continue;
    encoder->encode(0, bytes, std::span(out).subspan(1), nullptr);
    EXPECT_TRUE(std::equal(expected.planes[0].begin(), expected.planes[0].end(), out.begin() + 1));
    std::vector<float> decoded(tensor.elements());
    codec->decoder(tensor, expected.rest())->decode(0, std::span<const std::byte>(out).subspan(1), decoded);
    EXPECT_EQ(decoded, test::decode(*codec, tensor, expected));
  }
}

// A transposed tensor is decoded in short pieces of its rows.
TEST_P(CodecContract, DecodersBeginAtAnyStep) {
  const TensorInfo tensor{"m.weight", DType::f32, {3, 3000}};
  const Encoded encoded = test::encode(*codec, tensor, bytes_of(normal_weights(9000, 11)));
  const std::vector<float> all = test::decode(*codec, tensor, encoded);
  const auto decoder = codec->decoder(tensor, encoded.rest());
  const std::uint64_t step = decoder->step();
  ASSERT_EQ(4096 % step, 0u);
  for (std::uint64_t first = 0; first < 9000; first += step * (step < 64 ? 37 : 1)) {
    const std::uint64_t end = std::min<std::uint64_t>(first + 100 * step, 9000);
    const std::uint64_t begin = codec->code_bytes(tensor, first);
    const auto codes =
        std::span<const std::byte>(encoded.planes[0]).subspan(begin, codec->code_bytes(tensor, end) - begin);
    std::vector<float> piece(end - first);
    decoder->decode(first, codes, piece);
    EXPECT_TRUE(std::equal(piece.begin(), piece.end(), all.begin() + static_cast<std::ptrdiff_t>(first))) << first;
  }
}

TEST_P(CodecContract, NonFiniteWeightsAreCountedAndTouchOnlyTheirBlock) {
  if (GetParam() == "keep") return;
  const CodecSpec spec(GetParam());
  const auto plain_codec = make_codec(spec.has("double-quant") ? spec.with("double-quant", "no") : spec);
  for (const DType source : sources) {
    const TensorInfo tensor{"m.weight", source, {8, 64}};  // a block is a row
    std::vector<float> weights = normal_weights(8 * 64, 8);
    const auto before =
        test::decode(*plain_codec, tensor, test::encode(*plain_codec, tensor, stored_as(source, weights)));
    weights[2 * 64 + 5] = nan;
    weights[2 * 64 + 6] = -nan;
    weights[4 * 64 + 9] = -infinity;
    const Encoded encoded = test::encode(*plain_codec, tensor, stored_as(source, weights));
    EXPECT_EQ(encoded.findings.nan, 2u);
    EXPECT_EQ(encoded.findings.inf, 1u);
    EXPECT_EQ(encoded.findings.overflow, 0u);
    EXPECT_EQ(encoded.findings.first_nonfinite, 2u * 64 + 5);
    const auto after = test::decode(*plain_codec, tensor, encoded);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (i / 64 == 2 || i / 64 == 4) continue;
      EXPECT_EQ(after[i], before[i]) << i;
    }
    if (codec->cast_type()) {
      EXPECT_TRUE(std::isnan(after[2 * 64 + 5]));
      EXPECT_EQ(after[4 * 64 + 9], -infinity);
      continue;
    }
    float largest = 0;
    for (std::size_t i = 4 * 64; i < 5 * 64; ++i)
      if (i != 4 * 64 + 9) largest = std::max(largest, std::abs(after[i]));
    EXPECT_EQ(after[2 * 64 + 5], 0.0f);
    EXPECT_EQ(after[4 * 64 + 9], -largest);
  }
}

TEST_P(CodecContract, BlocksOfNothingButNonFiniteWeightsAreZeros) {
  if (GetParam() == "keep" || codec->cast_type()) return;
  std::vector<float> weights(3 * 64, infinity);
  std::fill_n(weights.begin() + 64, 64, nan);
  EXPECT_EQ(test::round_trip(*codec, weights, {3, 64}), std::vector<float>(3 * 64, 0.0f));
}

TEST_P(CodecContract, FindingsOfPlainWeightsAreEmpty) {
  const TensorInfo tensor{"m.weight", DType::f32, {4, 100}};
  std::vector<float> weights = normal_weights(400, 9);
  for (float& weight : weights) weight += std::copysign(0.01f, weight);
  EXPECT_EQ(test::encode(*codec, tensor, bytes_of(weights)).findings, Findings{});
}

TEST_P(CodecContract, AcceptsAndRefusesTypes) {
  for (const DType source : sources) EXPECT_TRUE(codec->accepts({"w", source, {2, 2}}));
  EXPECT_EQ(codec->accepts({"w", DType::i64, {2, 2}}), GetParam() == "keep");
}

TEST_P(CodecContract, DecoderRefusesPlanesOfTheWrongSize) {
  const TensorInfo tensor{"m.weight", DType::f32, {4, 64}};
  Encoded encoded = test::encode(*codec, tensor, bytes_of(normal_weights(256, 10)));
  if (encoded.planes.size() == 1) return;
  encoded.planes[1].pop_back();
  try {
    test::decode(*codec, tensor, encoded);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::bad_input);
    EXPECT_THAT(
        error.what(),
        testing::HasSubstr("tensor 'm.weight': " + std::string(to_string(codec->planes(tensor)[1].role)) + " has "));
    EXPECT_THAT(error.what(), testing::HasSubstr("bytes, not "));
  }
  encoded.planes.erase(encoded.planes.begin() + 1);
  EXPECT_THROW(test::decode(*codec, tensor, encoded), Error);
}

// Bytes of the first weights: what chunks and readers go by.
TEST_P(CodecContract, CodesOfTheFirstWeightsTakeTheirBytes) {
  for (const DType source : sources)
    for (const std::uint64_t n : {1u, 7u, 8u, 4096u, 4099u}) {
      const TensorInfo tensor{"w", source, {1, n}}, longer{"w", source, {1, n + 8192}};
      EXPECT_EQ(codec->code_bytes(tensor, 0), 0u);
      EXPECT_EQ(codec->code_bytes(tensor, n), codec->planes(tensor)[0].bytes()) << n;
      if (n % 8 != 0) continue;
      EXPECT_EQ(codec->code_bytes(longer, n), codec->code_bytes(tensor, n)) << n;
    }
}

TEST_P(CodecContract, TraitsAgree) {
  const TensorInfo tensor{"w", DType::f32, {3, 64}};
  EXPECT_EQ(codec->quantizes(), codec->planes(tensor).size() > 1);
  EXPECT_EQ(codec->quantizes(), codec->granularity() != Granularity::none);
  EXPECT_FALSE(codec->quantizes() && codec->cast_type());
  if (codec->cast_type()) {
    EXPECT_EQ(codec->range(), *codec->cast_type());
    EXPECT_EQ(codec->planes(tensor)[0].dtype, *codec->cast_type());
  }
}

INSTANTIATE_TEST_SUITE_P(Registered, CodecContract, testing::ValuesIn(codec_names()),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace nibble::codec_contract_test
