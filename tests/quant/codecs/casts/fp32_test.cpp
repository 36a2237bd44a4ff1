#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::fp32_test {
namespace {

const test::CodecFacts facts("fp32", [](double, double) { return 0.0; });

const test::GiveDigests digests({{"fp32",
                                  "fp32",
                                  OnOverflow::automatic,
                                  {"fe3a7202f4389f702d99331159f6f2b0", "bc68a346a450d5246a3bd0c667d43771",
                                   "1e5efe63ca5ee30f91cd7c28415564e8", "7808e4db0725763a165458347c37afc2"},
                                  {"fe3a7202f4389f702d99331159f6f2b0", "bc68a346a450d5246a3bd0c667d43771",
                                   "1e5efe63ca5ee30f91cd7c28415564e8", "7808e4db0725763a165458347c37afc2"}}});

TEST(Fp32, Fp64IsRoundedToNearestAndCounted) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> weights{1 + 0x1p-24, 1 + 3 * 0x1p-24, 1e300,           -infinity,
                                    1e-300,      1e-40,           0x1.fffffefp127, std::nan("")};
  const auto encoded = test::encode(*make_codec("fp32"), {"w", DType::f64, {weights.size()}}, test::bytes_of(weights));
  const auto values = test::values_of<float>(encoded.planes[0]);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 1.0f + 0x1p-22f);
  EXPECT_EQ(values[2], std::numeric_limits<float>::infinity());
  EXPECT_EQ(values[4], 0.0f);
  EXPECT_EQ(values[5], 1e-40f);
  EXPECT_TRUE(std::isnan(values[7]));
  EXPECT_EQ(encoded.findings, (Findings{.nan = 1,
                                        .inf = 1,
                                        .overflow = 1,
                                        .overflow_fp32 = 1,
                                        .underflow = 1,
                                        .subnormal = 1,
                                        .first_nonfinite = 2}));
}

TEST(Fp32, OverflowIsClampedOnRequest) {
  constexpr float largest = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  const std::vector<double> weights{1, 1e300, -1e300, -std::numeric_limits<double>::infinity()};
  const auto encoded = [&](OnOverflow policy) {
    const auto codec = make_codec("fp32");
    return test::values_of<float>(test::encode(*codec, {"w", DType::f64, {weights.size()}}, test::bytes_of(weights),
                                               {.quantizer = {.on_overflow = policy}})
                                      .planes[0]);
  };
  EXPECT_EQ(encoded(OnOverflow::clamp), (std::vector<float>{1, largest, -largest, -infinity}));
  EXPECT_EQ(encoded(OnOverflow::keep), (std::vector<float>{1, infinity, -infinity, -infinity}));
}

TEST(Fp32, SixteenBitsAreWidenedExactly) {
  std::vector<std::uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<std::uint16_t>(i);
  const auto widened = [&](DType source) {
    const auto encoded = test::encode(*make_codec("fp32"), {"w", source, {65536}}, test::bytes_of(patterns));
    return test::values_of<std::uint32_t>(encoded.planes[0]);
  };
  const auto from_bf16 = widened(DType::bf16), from_fp16 = widened(DType::f16);
  for (std::size_t i = 0; i < 65536; ++i) {
    EXPECT_EQ(from_bf16[i], i << 16);
    EXPECT_EQ(from_fp16[i], std::bit_cast<std::uint32_t>(fp16::to_float(patterns[i])));
  }
}

}  // namespace
}  // namespace nibble::fp32_test
