#include "nibble/bf16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/codecs/reference.hpp"

namespace nibble::bf16_test {
namespace {

// Half a step of the format.
const test::CodecFacts facts("bf16", [](double weight, double) { return std::abs(weight) * 0x1p-8; });

const test::GiveDigests digests({{"bf16",
                                  "bf16",
                                  OnOverflow::automatic,
                                  {"6f9f4d12f4d87dbeb2fb12ace0a46230", "34674b6c4508e00706f09d461fee9b43",
                                   "a82a3ff82154a052d39d0c93642054f5", "ba650a365e3730acf4a239bd6e66f553"},
                                  {"e1738f0b3e6aeaf488d587fb775b4265", "bc68a346a450d5246a3bd0c667d43771",
                                   "b79667c99f6f5e1ead4a2d30a2073b87", "b7b912fb1ec4f227258b77568c4f4b0c"}}});

TEST(Bf16, EveryPatternDecodesToItsUpperHalfAndBack) {
  std::vector<std::uint16_t> patterns(65536), back(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  std::vector<float> values(65536);
  test::for_each_target([&](const std::string& target) {
    bf16::decode(patterns, values);
    bf16::encode(values, back);
    for (std::size_t i = 0; i < 65536; ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), i << 16) << target;
      ASSERT_EQ(back[i], std::isnan(values[i]) ? (i | 0x40) : i) << target;  // NaN becomes quiet
    }
  });
}

TEST(Bf16, RoundingFollowsTheDefinitionOnEveryTarget) {
  std::vector<float> weights;
  for (std::uint32_t upper = 0; upper < 65536; ++upper)
    for (const std::uint32_t lower : {0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      weights.push_back(std::bit_cast<float>(upper << 16 | lower));
  std::vector<std::uint16_t> out(weights.size());
  test::for_each_target([&](const std::string& target) {
    bf16::encode(weights, out);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      ASSERT_EQ(out[i], bf16::from_float(weights[i])) << target << " " << weights[i];
      if (std::isnan(weights[i])) continue;
      ASSERT_EQ(std::bit_cast<std::uint32_t>(bf16::to_float(out[i])),
                std::bit_cast<std::uint32_t>(reference::bf16(weights[i])))
          << target << " " << weights[i];
    }
  });
}

TEST(Bf16, EqualsTorch) {
  const test::Golden golden;
  const auto encoded = test::encode(*make_codec("bf16"), golden.info("cast.input"), golden.bytes("cast.input"));
  EXPECT_EQ(encoded.planes[0], golden.bytes("cast.bf16"));
}

TEST(Bf16, NanIsQuietAndKeepsSignAndPayload) {
  EXPECT_EQ(bf16::from_float(std::numeric_limits<float>::quiet_NaN()), 0x7FC0);
  EXPECT_EQ(bf16::from_float(std::bit_cast<float>(0xFFFFFFFFu)), 0xFFFF);  // rounding up would make it 0
  EXPECT_EQ(bf16::from_float(std::bit_cast<float>(0x7F800001u)), 0x7FC0);
}

TEST(Bf16, FindingsCountWhatDoesNotFit) {
  const std::vector<float> weights{1.0f,      0x1.FFp127f, -0x1.FEFFFEp127f, 0x1p-126f,
                                   0x1p-127f, 0x1p-134f,   0x1p-149f,        0.0f};
  std::vector<std::uint16_t> out(weights.size());
  const Findings findings = bf16::encode(weights, out);
  EXPECT_EQ(findings, (Findings{.overflow = 1, .underflow = 2, .subnormal = 1, .first_nonfinite = 1}));
  EXPECT_EQ(out, (std::vector<std::uint16_t>{0x3F80, 0x7F80, 0xFF7F, 0x0080, 0x0040, 0x0000, 0x0000, 0x0000}));
}

TEST(Bf16, Fp64IsRoundedOnce) {
  const std::vector<double> weights{1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8 - 0x1p-40, 1e300, 1e-300};
  const auto encoded = test::encode(*make_codec("bf16"), {"w", DType::f64, {weights.size()}}, test::bytes_of(weights));
  EXPECT_EQ(test::values_of<std::uint16_t>(encoded.planes[0]), (std::vector<std::uint16_t>{0x3F81, 0x3F80, 0x7F80, 0}));
  EXPECT_EQ(encoded.findings.overflow, 1u);
  EXPECT_EQ(encoded.findings.underflow, 1u);
}

// In several tiles; infinities that were there stay.
TEST(Bf16, OverflowIsClampedOnRequest) {
  std::vector<double> weights(5000, 1);
  weights[3] = 1e300;
  weights[4097] = -0x1.FFp127;
  weights[4098] = -std::numeric_limits<double>::infinity();
  for (const DType source : {DType::f64, DType::f32}) {
    const auto bytes =
        source == DType::f64 ? test::bytes_of(weights) : test::stored_as(source, {weights.begin(), weights.end()});
    const auto encoded = [&](OnOverflow policy) {
      const auto codec = make_codec("bf16");
      return test::values_of<std::uint16_t>(
          test::encode(*codec, {"w", source, {weights.size()}}, bytes, {.quantizer = {.on_overflow = policy}})
              .planes[0]);
    };
    const auto clamped = encoded(OnOverflow::clamp), kept = encoded(OnOverflow::keep);
    EXPECT_EQ(clamped[0], 0x3F80);
    EXPECT_EQ(clamped[3], source == DType::f64 ? 0x7F7F : 0x7F80);  // 1e300 is infinite in fp32
    EXPECT_EQ(clamped[4097], 0xFF7F);
    EXPECT_EQ(clamped[4098], 0xFF80);
    EXPECT_EQ(kept[3], 0x7F80);
    EXPECT_EQ(kept[4097], 0xFF80);
    EXPECT_EQ(encoded(OnOverflow::automatic), kept);
  }
}

}  // namespace
}  // namespace nibble::bf16_test
