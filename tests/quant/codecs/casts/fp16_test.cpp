#include "nibble/fp16.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nibble/error.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/codecs/reference.hpp"

namespace nibble::fp16_test {
namespace {

// Half a step of the format.
const test::CodecFacts facts("fp16",
                             [](double weight, double) { return std::max(std::abs(weight) * 0x1p-11, 0x1p-25); });

const test::GiveDigests digests({{"fp16",
                                  "fp16",
                                  OnOverflow::automatic,
                                  {"6952e24e8d23633a841cf39966731172", "58f56355225256ea2037308563c35296",
                                   "b126494b78a5c82600c4cfd41d10305d", "ff9e84d939f500c661444b087e078798"},
                                  {"8b3824268ca746b710962c0a5577fbbb", "50e1465a5189a22b28b00b07a27809c6",
                                   "1e5efe63ca5ee30f91cd7c28415564e8", "25a9003192e913d7566d6972b8741bd6"}},
                                 {"fp16_clamp",
                                  "fp16",
                                  OnOverflow::clamp,
                                  {"35bde732aadf4c804ca49e8264b7d541", "4bb3ca0900698dd5d4446cb592df3928",
                                   "b126494b78a5c82600c4cfd41d10305d", "9cbe023b410dea81d5e0a30cfdf7801b"},
                                  {"98a60c1da74e9e21cbe4d76c2dfb3845", "905ed4f8d0e70d38da84d14667b11ff2",
                                   "1e5efe63ca5ee30f91cd7c28415564e8", "423c0079c212dd756972edd5349fa7d7"}}});

constexpr float infinity = std::numeric_limits<float>::infinity();

// Every 16-bit pattern as the upper half, with lower halves on both sides of every sort of rounding.
std::vector<float> roundings() {
  std::vector<float> weights;
  for (std::uint32_t upper = 0; upper < 65536; ++upper)
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x3000u, 0x7FFFu, 0x8000u, 0xFFFFu})
      weights.push_back(std::bit_cast<float>(upper << 16 | lower));
  return weights;
}

TEST(Fp16, EveryPatternDecodesToItsValueAndBack) {
  std::vector<std::uint16_t> patterns(65536), back(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  std::vector<float> values(65536);
  test::for_each_target([&](const std::string& target) {
    fp16::decode(patterns, values);
    for (std::size_t i = 0; i < 65536; ++i) {
      const int exponent = static_cast<int>(i >> 10 & 31), mantissa = static_cast<int>(i & 1023);
      const bool negative = i >> 15 != 0;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(fp16::to_float(patterns[i])))
          << target << " " << i;
      ASSERT_EQ(std::signbit(values[i]), negative);
      if (exponent == 31 && mantissa != 0) {
        ASSERT_TRUE(std::isnan(values[i]));
      } else {
        const double magnitude = exponent == 31  ? static_cast<double>(infinity)
                                 : exponent == 0 ? std::ldexp(mantissa, -24)
                                                 : std::ldexp(1024 + mantissa, exponent - 25);
        ASSERT_EQ(values[i], negative ? -magnitude : magnitude) << target << " " << i;
      }
    }
    fp16::encode(values, back);
    for (std::size_t i = 0; i < 65536; ++i)
      ASSERT_EQ(back[i], std::isnan(values[i]) ? (i | 0x200) : i) << target;  // NaN becomes quiet
  });
}

TEST(Fp16, RoundingFollowsTheDefinitionOnEveryTarget) {
  const std::vector<float> weights = roundings();
  std::vector<std::uint16_t> out(weights.size());
  test::for_each_target([&](const std::string& target) {
    fp16::encode(weights, out);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      ASSERT_EQ(out[i], fp16::from_float(weights[i])) << target << " " << weights[i];
      if (std::isnan(weights[i])) continue;
      const float expected = reference::fp16(weights[i]);
      ASSERT_EQ(std::bit_cast<std::uint32_t>(fp16::to_float(out[i])), std::bit_cast<std::uint32_t>(expected))
          << target << " " << weights[i];
    }
  });
}

TEST(Fp16, NanIsQuietAndKeepsSignAndPayload) {
  EXPECT_EQ(fp16::from_float(std::bit_cast<float>(0x7FC00001u)), 0x7E00);
  EXPECT_EQ(fp16::from_float(std::bit_cast<float>(0xFFA00001u)), 0xFF00);
  EXPECT_EQ(fp16::from_float(std::bit_cast<float>(0x7F800001u)), 0x7E00);
}

TEST(Fp16, FindingsCountWhatDoesNotFit) {
  const std::vector<float> weights{1.0f,     65519.0f, 65520.0f,   -1e30f, infinity, std::nanf(""), 0x1p-14f,
                                   0x1p-15f, 0x1p-25f, 0x1.1p-25f, 1e-40f, 0.0f,     -0.0f};
  for (const OnOverflow policy : {OnOverflow::error, OnOverflow::clamp, OnOverflow::keep}) {
    std::vector<std::uint16_t> out(weights.size());
    const Findings findings = fp16::encode(weights, out, policy);
    EXPECT_EQ(findings,
              (Findings{.nan = 1, .inf = 1, .overflow = 2, .underflow = 2, .subnormal = 2, .first_nonfinite = 2}));
    const bool clamp = policy == OnOverflow::clamp;
    EXPECT_EQ(out, (std::vector<std::uint16_t>{0x3C00, 0x7BFF, clamp ? std::uint16_t{0x7BFF} : std::uint16_t{0x7C00},
                                               clamp ? std::uint16_t{0xFBFF} : std::uint16_t{0xFC00}, 0x7C00, 0x7E00,
                                               0x0400, 0x0200, 0x0000, 0x0001, 0x0000, 0x0000, 0x8000}));
  }
}

TEST(Fp16, EqualsTorch) {
  const test::Golden golden;
  const auto encoded = test::encode(*make_codec("fp16"), golden.info("cast.input"), golden.bytes("cast.input"));
  EXPECT_EQ(encoded.planes[0], golden.bytes("cast.fp16"));
}

// torch rounds to fp32 in between: 1.0 for the first.
TEST(Fp16, Fp64IsRoundedOnce) {
  const std::vector<double> weights{
      1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-11 - 0x1p-40, 0x1p-25 + 0x1p-60, 0x1p-25, 65520 - 0x1p-30, 1e300, -1e-300};
  const auto codec = make_codec("fp16");
  const auto encoded = test::encode(*codec, {"w", DType::f64, {weights.size()}}, test::bytes_of(weights));
  EXPECT_EQ(test::values_of<std::uint16_t>(encoded.planes[0]),
            (std::vector<std::uint16_t>{0x3C01, 0x3C00, 0x0001, 0x0000, 0x7BFF, 0x7C00, 0x8000}));
  EXPECT_EQ(encoded.findings.overflow, 1u);
  EXPECT_EQ(encoded.findings.inf, 0u);
  EXPECT_EQ(encoded.findings.underflow, 2u);
}

TEST(Fp16, WhatIsFp16AlreadyKeepsItsBytes) {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  const auto encoded = test::encode(*make_codec("fp16"), {"w", DType::f16, {65536}}, test::bytes_of(patterns));
  EXPECT_EQ(encoded.planes[0], test::bytes_of(patterns));
  EXPECT_EQ(encoded.findings, (Findings{.nan = 2046, .inf = 2, .subnormal = 2046, .first_nonfinite = 0x7C00}));
}

TEST(Fp16, SizesThatDisagreeAreRefused) {
  std::vector<std::uint16_t> out(2);
  try {
    fp16::encode(std::vector<float>(3), out);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "fp16: 3 weights do not fit 2 stored values");
  }
}

}  // namespace
}  // namespace nibble::fp16_test
