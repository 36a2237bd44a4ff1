#include "nibble/nested.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

#include "nibble/error.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/codecs/reference.hpp"

namespace nibble::nested_test {
namespace {

reference::Vector vector_of(std::span<const float> values) { return as_xtensor<1>(values, {values.size()}); }

void expect_definition(const std::vector<float>& absmax, float offset) {
  std::vector<std::uint8_t> codes(absmax.size());
  std::vector<float> nested_absmax((absmax.size() + 255) / 256), decoded(absmax.size());
  test::for_each_target([&](const std::string& target) {
    nested::encode(absmax, offset, codes, nested_absmax);
    nested::decode(codes, nested_absmax, nested::codebook, offset, decoded);
    for (std::size_t first = 0; first < absmax.size(); first += 256) {
      const auto block = std::span(absmax).subspan(first, std::min<std::size_t>(256, absmax.size() - first));
      const auto expected = reference::nested(vector_of(block), offset, vector_of(nested::codebook));
      EXPECT_EQ(nested_absmax[first / 256], expected.absmax) << target;
      for (std::size_t i = 0; i < block.size(); ++i) {
        ASSERT_EQ(codes[first + i], expected.code(i)) << target << ", " << first + i << ": " << block[i];
        const float product = nested::codebook[codes[first + i]] * expected.absmax;
        EXPECT_EQ(decoded[first + i], product + offset) << target;
      }
    }
  });
}

TEST(Nested, RandomValuesFollowTheDefinition) {
  for (const float scale : {1e-6f, 1.0f, 1e6f}) {
    std::vector<float> absmax = test::normal_weights(3000, 1, scale);
    for (float& value : absmax) value = std::abs(value);
    expect_definition(absmax, nested::offset(absmax));
    expect_definition(absmax, 0.0f);
  }
}

TEST(Nested, EveryMidpointAndItsNeighboursFollowTheDefinition) {
  std::vector<float> values;
  for (const float midpoint : reference::midpoints(vector_of(nested::codebook)))
    for (const float value : {midpoint, std::nextafter(midpoint, 9.0f), std::nextafter(midpoint, -9.0f)}) {
      if (values.size() % 256 == 0) values.push_back(1.0f);  // so that the nested absmax is 1
      values.push_back(value);
    }
  expect_definition(values, 0.0f);
}

// Values between -scale and scale in whole blocks whose nested absmax is scale, of one sign and the other. Most of a
// block is far from any midpoint, as in a model.
void expect_definition_of(const std::vector<float>& values, float scale) {
  for (const float largest : {scale, -scale}) {
    std::vector<float> absmax;
    for (auto next = values.begin(); next != values.end() || absmax.size() % 256 != 0;) {
      const std::size_t at = absmax.size() % 256;
      const bool has_value = at % 16 < 5 && at > 0 && next != values.end();
      absmax.push_back(at == 0 ? largest : has_value ? *next++ : 0.3f * scale);
    }
    expect_definition(absmax, 0.0f);
  }
}

TEST(Nested, ValuesNearEveryMidpointFollowTheDefinition) {
  for (const float scale : {1.0f, 0.7f, 0.013f, 1234.5f, 1e-30f, 1e30f, 3e-38f, 3e38f}) {
    std::vector<float> values;
    for (const float midpoint : reference::midpoints(vector_of(nested::codebook)))
      for (const std::int32_t ulps : {-300, -30, -3, -2, -1, 0, 1, 2, 3, 30, 300}) {
        const auto bits = std::bit_cast<std::int32_t>(std::abs(midpoint * scale));
        values.push_back(std::copysign(std::bit_cast<float>(std::max(bits + ulps, 0)), midpoint));
      }
    expect_definition_of(values, scale);
  }
}

// Powers of 2 and what is between them: exponent and upper bits of the mantissa choose a bucket.
TEST(Nested, ValuesOfEveryExponentFollowTheDefinition) {
  std::vector<float> values{0.0f, -0.0f};
  for (int exponent = -149; exponent < 0; ++exponent)
    for (int k = 0; k < (exponent < -24 ? 4 : 128); ++k)
      for (const float sign : {1.0f, -1.0f})
        values.push_back(sign * std::ldexp(1.0f + static_cast<float>(k) / (exponent < -24 ? 4 : 128), exponent));
  expect_definition_of(values, 1.0f);
}

TEST(Nested, ValuesBetweenDecadesFollowTheDefinition) {
  std::vector<float> values;
  for (const float decade : {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f})
    for (int k = -400; k <= (decade < 1 ? 800 : 0); ++k)
      for (const float sign : {decade, -decade}) values.push_back(sign * (1 + static_cast<float>(k) / 1024));
  expect_definition_of(values, 1.0f);
}

TEST(Nested, ShortBlocksFollowTheDefinition) {
  const reference::Vector midpoints = reference::midpoints(vector_of(nested::codebook));
  constexpr std::size_t sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 255, 257, 271, 2047, 2304, 2305, 4351};
  for (const std::size_t size : sizes) {
    std::vector<float> values(size, 1.0f);
    for (std::size_t i = 1; i < size; ++i) values[i] = i % 3 == 0 ? 0.3f : midpoints((i * 7) % 255);
    expect_definition(values, 0.0f);
    expect_definition(values, 1e-3f);
  }
}

TEST(Nested, BlocksOfTinyValuesFollowTheDefinition) {
  std::vector<float> values = test::normal_weights(1024, 2, 1e-7f);
  for (std::size_t i = 0; i < values.size(); i += 256) values[i + i / 10] = 1.0f;
  expect_definition(values, 0.0f);
}

// Codes are written a vector at a time, but not past the last.
TEST(Nested, NothingIsWrittenPastTheEnd) {
  const std::vector<float> absmax = test::normal_weights(600, 3);
  test::for_each_target([&](const std::string& target) {
    std::vector<std::uint8_t> codes(640, 77);
    std::vector<float> nested_absmax(3);
    nested::encode(absmax, 0.0f, std::span(codes).first(600), nested_absmax);
    EXPECT_EQ(std::vector<std::uint8_t>(codes.begin() + 600, codes.end()), std::vector<std::uint8_t>(40, 77)) << target;
  });
}

TEST(Nested, TiesGoToTheEvenCode) {
  std::vector<float> values{1.0f};
  for (std::size_t i = 0; i < 255; ++i) values.push_back(0.5f * (nested::codebook[i] + nested::codebook[i + 1]));
  std::vector<std::uint8_t> codes(256);
  std::vector<float> nested_absmax(1);
  nested::encode(values, 0.0f, codes, nested_absmax);
  for (std::size_t i = 0; i < 255; ++i) EXPECT_EQ(codes[i + 1], i + i % 2) << i;
}

TEST(Nested, ValuesThatAreAllEqualDecodeToTheOffsetExactly) {
  for (const float value : {0.0f, 1e-40f, 0.1f, 3e38f}) {
    const std::vector<float> absmax(300, value);
    const float offset = nested::offset(absmax);
    EXPECT_EQ(offset, value);
    std::vector<std::uint8_t> codes(300);
    std::vector<float> nested_absmax(2), decoded(300);
    nested::encode(absmax, offset, codes, nested_absmax);
    nested::decode(codes, nested_absmax, nested::codebook, offset, decoded);
    EXPECT_EQ(codes, std::vector<std::uint8_t>(300, nested::code_of_zero));
    EXPECT_EQ(decoded, absmax);
  }
}

TEST(Nested, SubnormalDifferencesStayFinite) {
  const std::vector<float> absmax{0.0f, 1e-44f, 2e-44f};  // 1 / nested_absmax is infinite
  std::vector<std::uint8_t> codes(3);
  std::vector<float> nested_absmax(1), decoded(3);
  nested::encode(absmax, 1e-44f, codes, nested_absmax);
  nested::decode(codes, nested_absmax, nested::codebook, 1e-44f, decoded);
  EXPECT_EQ(codes, (std::vector<std::uint8_t>{0, 127, 255}));
  EXPECT_EQ(decoded, absmax);
}

TEST(Nested, SlicesMayBeginAndEndAnywhere) {
  const std::vector<float> absmax = test::normal_weights(700, 5);
  std::vector<std::uint8_t> codes(700);
  std::vector<float> nested_absmax(3), decoded(700);
  nested::encode(absmax, 0.25f, codes, nested_absmax);
  nested::decode(codes, nested_absmax, nested::codebook, 0.25f, decoded);
  for (const std::size_t first : {0U, 1U, 255U, 256U, 511U, 699U, 700U})
    for (const std::size_t n : {0U, 1U, 2U, 257U, 700U}) {
      std::vector<float> slice(std::min<std::size_t>(n, 700 - first));
      nested::decode_slice(first, codes, nested_absmax, nested::codebook, 0.25f, slice);
      EXPECT_THAT(slice, testing::ElementsAreArray(std::span(decoded).subspan(first, slice.size()))) << first;
    }
}

TEST(Nested, ValuesNearTheLimitOfFp32MayDecodeToInfinity) {
  constexpr float largest = std::numeric_limits<float>::max();
  const std::vector<std::uint8_t> codes{127, 255};
  EXPECT_TRUE(nested::decodes_to_finite(codes, std::vector{largest}, 0.0f));
  EXPECT_FALSE(nested::decodes_to_finite(codes, std::vector{largest}, largest / 8));
  EXPECT_FALSE(nested::decodes_to_finite(codes, std::vector{largest / 8}, largest));
  EXPECT_TRUE(nested::decodes_to_finite(codes, std::vector{largest / 8}, largest / 2));
  // In the second block alone.
  std::vector<std::uint8_t> two_blocks(257, 127);
  two_blocks.back() = 255;
  EXPECT_FALSE(nested::decodes_to_finite(two_blocks, std::vector{1.0f, largest}, largest / 8));
}

TEST(Nested, OffsetIsTheMeanInDoublePrecision) {
  EXPECT_EQ(nested::offset({}), 0.0f);
  std::vector<float> values = test::normal_weights((1 << 20) + 3, 4);
  values.push_back(1000.0f);
  EXPECT_EQ(nested::offset(values), reference::mean(values));
}

TEST(Nested, CodebookIsTheDynamicMapOfBitsandbytes) {
  const test::Golden golden;
  EXPECT_EQ(test::bytes_of(std::vector<float>(nested::codebook.begin(), nested::codebook.end())),
            golden.bytes("nf4.nested.nested_quant_map"));
  EXPECT_EQ(nested::codebook[nested::code_of_zero], 0.0f);
}

TEST(Nested, SizesThatDisagreeAreRefused) {
  std::vector<float> absmax(257), nested_absmax(1);
  std::vector<std::uint8_t> codes(257);
  try {
    nested::encode(absmax, 0.0f, codes, nested_absmax);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::usage);
    EXPECT_STREQ(error.what(), "257 absmax values do not fit 257 codes and 1 nested absmax values");
  }
}

}  // namespace
}  // namespace nibble::nested_test
