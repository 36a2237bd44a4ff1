// Encoding to NF4 and FP4 against the definition, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nibble/error.hpp"
#include "nibble/fp4.hpp"
#include "nibble/nf4.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/codecs/reference.hpp"

namespace nibble::four_bit_encode_test {
namespace {

struct Format {
  std::string name;
  std::array<float, 16> codebook;  // by code
  std::array<int, 16> ascending;   // codes in the order of their values
  decltype(&nf4::encode) encode;
};

const Format formats[] = {
    {"nf4", std::to_array(nf4::codebook.value), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, nf4::encode},
    {"fp4", std::to_array(fp4::codebook.value), {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3}, fp4::encode},
};

class FourBit : public testing::TestWithParam<Format> {
 protected:
  const Format& format = GetParam();

  reference::Vector ascending() const {
    reference::Vector values = xt::zeros<float>({16});
    for (std::size_t i = 0; i < 16; ++i) values(i) = format.codebook[static_cast<std::size_t>(format.ascending[i])];
    return values;
  }

  // Every target must write what the definition says.
  void expect_definition(const std::vector<float>& weights, std::size_t blocksize) const {
    const std::size_t n = weights.size(), blocks = (n + blocksize - 1) / blocksize;
    std::vector<float> padded = weights;
    padded.resize(blocks * blocksize);  // the end of a short block counts as zeros
    const auto expected = reference::four_bit(as_xtensor<2>(padded, {blocks, blocksize}), ascending());
    std::vector<std::uint8_t> packed((n + 1) / 2);
    std::vector<float> absmax(blocks);
    test::for_each_target([&](const std::string& target) {
      EXPECT_EQ(format.encode(weights, blocksize, packed, absmax), 0u);
      for (std::size_t b = 0; b < blocks; ++b)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(absmax[b]), std::bit_cast<std::uint32_t>(expected.absmax(b)))
            << target << ", block " << b;
      for (std::size_t i = 0; i < 2 * packed.size(); ++i) {
        const int code = i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 15;
        ASSERT_EQ(code, format.ascending[expected.number.flat(i)]) << target << ", weight " << i << ": " << padded[i];
      }
    });
  }
};

TEST_P(FourBit, RandomWeightsOfEveryLengthAndBlocksize) {
  for (std::size_t blocksize = 32; blocksize <= 4096; blocksize *= 2)
    for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{31}, std::size_t{65}, blocksize - 1,
                                blocksize, blocksize + 1, 3 * blocksize, std::size_t{9999}})
      expect_definition(test::normal_weights(n, static_cast<unsigned>(n), 0.02f), blocksize);
}

TEST_P(FourBit, EveryMidpointAndItsNeighboursAtEveryScale) {
  std::vector<float> points{0.0f, -0.0f, 1e-30f, -1e-30f, 1e-9f, -1e-9f, 1.0f, -1.0f};
  for (const float midpoint : reference::midpoints(ascending())) {
    float down = midpoint, up = midpoint;
    points.push_back(midpoint);
    for (int i = 0; i < 3; ++i) {
      points.push_back(down = std::nextafter(down, -9.0f));
      points.push_back(up = std::nextafter(up, 9.0f));
    }
  }
  std::vector<std::vector<float>> at_scale;
  for (const float scale : {1.0f, 0.37f, 3.0f, 1e-20f, 3e38f, 1e-37f, 1.1e-38f, 0.99e-38f, 5e-39f, 1e-44f, 0.0f}) {
    std::vector<float>& weights = at_scale.emplace_back();
    for (std::size_t i = 0; i < points.size(); i += 31) {
      weights.push_back(i % 2 == 0 ? scale : -scale);  // the absmax of a block of 32
      for (std::size_t j = i; j < std::min(i + 31, points.size()); ++j) weights.push_back(points[j] * scale);
    }
    weights.resize((weights.size() + 127) / 128 * 128);
    expect_definition(weights, 32);
    expect_definition(weights, 128);
  }
  // Blocks of all scales beside each other, which are encoded together.
  std::vector<float> mixed;
  for (std::size_t first = 0; first < at_scale.front().size(); first += 32)
    for (const std::vector<float>& weights : at_scale)
      mixed.insert(mixed.end(), weights.begin() + static_cast<std::ptrdiff_t>(first),
                   weights.begin() + static_cast<std::ptrdiff_t>(first + 32));
  expect_definition(mixed, 32);
}

// Codes for an absmax that is given: weights at midpoints, at their neighbours and beyond the ends.
TEST_P(FourBit, EncodesForAnAbsmaxOfEitherSign) {
  const FourBitTables& tables = dynamic_cast<const FourBitCodec&>(*make_codec(format.name)).tables();
  const auto midpoints = reference::midpoints(ascending());
  std::vector<float> points{0.0f, -0.0f, 1.0f, -1.0f, 1.5f, -1.5f, 90.0f, -90.0f, 1e-9f, -1e-9f};
  for (const float midpoint : midpoints)
    for (const float to : {-9.0f, midpoint, 9.0f}) points.push_back(std::nextafter(midpoint, to));
  points.resize(96, 0.4f);

  for (const DType source : {DType::f32, DType::bf16, DType::f16, DType::f64})
    for (const std::size_t blocksize : {32U, 64U, 4096U}) {
      std::vector<float> weights, absmax;
      for (const float scale : {1.0f, -1.0f, 0.37f, -3.0f, 1e-20f, -3e38f, 1e-37f, -5e-39f, 1e-44f, 0.0f, -0.0f})
        for (std::size_t b = 0; b < 2; ++b) {
          absmax.push_back(scale);
          for (std::size_t i = 0; i < blocksize; ++i) {
            const float weight = points[(b * blocksize + i) % points.size()] * (scale == 0 ? 1.0f : scale);
            weights.push_back(std::clamp(weight, -3e38f, 3e38f));
          }
        }
      weights.resize(weights.size() - 13);  // a short block with an odd end
      if (source == DType::bf16 || source == DType::f16)
        for (float& w : weights)
          w = source == DType::bf16 ? bf16::to_float(bf16::from_float(w)) : fp16::to_float(fp16::from_float(w));
      const test::Bytes stored = test::stored_as(source, weights);
      test::for_each_target([&](const std::string& target) {
        std::vector<std::uint8_t> packed(ceil_div(weights.size(), 2), 0xEE);
        encode_four_bit_for(tables, source, stored, blocksize, absmax, packed);
        for (std::size_t i = 0; i < 2 * packed.size(); ++i) {
          const float scale = absmax[i / blocksize];
          const float inverse = scale == 0 ? 0 : 1.0f / std::copysign(std::max(std::abs(scale), 1e-38f), scale);
          const float v = i < weights.size() ? weights[i] * inverse : 0.0f;
          const auto number = std::ranges::count_if(midpoints, [&](float midpoint) { return midpoint < v; });
          const int code = i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 15;
          ASSERT_EQ(code, format.ascending[static_cast<std::size_t>(number)])
              << target << traits(source).name << blocksize << ", weight " << i << ", absmax " << scale << ": " << v;
        }
      });
    }
}

// Every bf16 weight from which a code depends, at every mantissa of absmax; also where absmax or its inverse is
// subnormal or nearly so, and where the processor's table of steps begins and ends (four_bit_bf16.hpp).
TEST_P(FourBit, EveryBf16WeightAtEveryAbsmax) {
  constexpr std::size_t blocksize = 32;
  const auto codec = make_codec(four_bit_spec(format.name, blocksize, false));
  for (const int exponent : {0, 1, 5, 6, 7, 10, 127, 251, 252, 253, 254}) {
    std::vector<std::uint16_t> bits;
    for (int absmax = exponent << 7; absmax < (exponent + 1) << 7; ++absmax) {
      for (int magnitude = std::max(absmax - (9 << 7), 0); magnitude <= absmax; ++magnitude)
        for (const int sign : {0, 0x8000}) {
          if (bits.size() % blocksize == 0) bits.push_back(static_cast<std::uint16_t>(absmax | (absmax & 1) << 15));
          bits.push_back(static_cast<std::uint16_t>(sign | magnitude));
        }
      while (bits.size() % blocksize != 0) bits.push_back(static_cast<std::uint16_t>(bits.size() % 2 * 0x8000 + 1));
    }
    std::vector<float> weights(bits.size());
    std::transform(bits.begin(), bits.end(), weights.begin(), bf16::to_float);
    const auto expected =
        reference::four_bit(as_xtensor<2>(weights, {bits.size() / blocksize, blocksize}), ascending());
    test::for_each_target([&](const std::string& target) {
      const TensorInfo tensor{"w", DType::bf16, {bits.size()}};
      const auto packed = test::values_of<std::uint8_t>(test::encode(*codec, tensor, test::bytes_of(bits)).planes[0]);
      for (std::size_t i = 0; i < bits.size(); ++i) {
        const int code = i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 15;
        ASSERT_EQ(code, format.ascending[expected.number.flat(i)])
            << target << ", weight " << weights[i] << " of a block with " << weights[i / blocksize * blocksize];
      }
    });
  }
}

TEST_P(FourBit, NonFiniteWeightsStayInTheirBlock) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> weights = test::normal_weights(5 * 64 + 3, 3);
  std::vector<float> repaired = weights;
  const float largest = std::abs(*std::max_element(weights.begin() + 64, weights.begin() + 127,
                                                   [](float a, float b) { return std::abs(a) < std::abs(b); }));
  weights[127] = -infinity, repaired[127] = -largest;
  weights[200] = nan, repaired[200] = 0;
  weights[322] = -nan, repaired[322] = 0;  // the last weight, in a short block
  const auto encoded = [&](const std::vector<float>& from, std::size_t nonfinite) {
    std::vector<std::uint8_t> packed((from.size() + 1) / 2);
    std::vector<float> absmax(6);
    EXPECT_EQ(format.encode(from, 64, packed, absmax), nonfinite);
    return std::pair(packed, absmax);
  };
  const auto expected = encoded(repaired, 0);
  test::for_each_target([&](const std::string& target) { EXPECT_EQ(encoded(weights, 3), expected) << target; });
}

TEST_P(FourBit, SizesThatDisagreeAreRefused) {
  std::vector<float> weights(100), absmax(2);
  std::vector<std::uint8_t> packed(50);
  const auto error_of = [&](std::size_t blocksize, std::size_t bytes, std::size_t blocks) {
    try {
      format.encode(weights, blocksize, std::span(packed).first(bytes), std::span(absmax).first(blocks));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::usage);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(error_of(64, 50, 2), "");
  EXPECT_EQ(error_of(48, 50, 2), "blocksize is 48, not one of 32, 64, ..., 4096");
  EXPECT_EQ(error_of(64, 49, 2), "100 weights in blocks of 64 do not fit 49 packed bytes and 2 absmax values");
  EXPECT_EQ(error_of(64, 50, 1), "100 weights in blocks of 64 do not fit 50 packed bytes and 1 absmax values");
}

INSTANTIATE_TEST_SUITE_P(Formats, FourBit, testing::ValuesIn(formats),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace nibble::four_bit_encode_test
