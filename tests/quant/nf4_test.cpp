#include "nibble/nf4.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "nibble/fp4.hpp"
#include "tests/quant/codec_support.hpp"

namespace nibble {
namespace {

// Errors on N(0, 1) as bitsandbytes publishes them in its own tests (means over 200 draws of a million weights).
struct Published {
  std::uint32_t blocksize;
  double nf4_absolute, nf4_relative, fp4_absolute, fp4_relative;
};
constexpr Published published[] = {
    {32, 0.067746, 0.189726, 0.088925, 0.242443},   {64, 0.072798, 0.203339, 0.096543, 0.260125},
    {128, 0.076831, 0.215237, 0.102969, 0.275817},  {256, 0.080337, 0.226105, 0.108684, 0.289831},
    {512, 0.083547, 0.236079, 0.114115, 0.302881},  {1024, 0.086610, 0.245370, 0.119333, 0.315000},
    {2048, 0.089592, 0.254163, 0.124556, 0.326607}, {4096, 0.092547, 0.262473, 0.129536, 0.337169},
};

struct Errors {
  double absolute = 0, relative = 0;
};

Errors errors(const std::vector<float>& weights, const std::vector<float>& decoded) {
  Errors sum;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double error = std::abs(static_cast<double>(weights[i]) - decoded[i]);
    sum.absolute += error;
    sum.relative += error / (std::abs(weights[i]) + 1e-8);
  }
  return {sum.absolute / static_cast<double>(weights.size()), sum.relative / static_cast<double>(weights.size())};
}

const std::vector<float>& million() {
  static const std::vector<float> weights = test::normal_weights(1 << 20, 1);
  return weights;
}

class PublishedErrors : public testing::TestWithParam<Published> {};

// One draw is within 5 standard deviations of theirs: 0.4 % covers the largest, 360e-6 of 0.0925.
TEST_P(PublishedErrors, AreMet) {
  const auto errors_of = [&](std::string_view name) {
    const auto codec = make_codec(name, {.blocksize = GetParam().blocksize, .double_quant = false});
    return errors(million(), test::round_trip(*codec, million(), {1024, 1024}));
  };
  const double tolerance = GetParam().blocksize <= 256 ? 0.006 : 0.02;
  const Errors nf4 = errors_of("nf4"), fp4 = errors_of("fp4");
  EXPECT_NEAR(nf4.absolute, GetParam().nf4_absolute, tolerance * GetParam().nf4_absolute);
  EXPECT_NEAR(nf4.relative, GetParam().nf4_relative, tolerance * GetParam().nf4_relative);
  EXPECT_NEAR(fp4.absolute, GetParam().fp4_absolute, tolerance * GetParam().fp4_absolute);
  EXPECT_NEAR(fp4.relative, GetParam().fp4_relative, tolerance * GetParam().fp4_relative);
}

INSTANTIATE_TEST_SUITE_P(Blocksizes, PublishedErrors, testing::ValuesIn(published),
                         [](const auto& each) { return std::to_string(each.param.blocksize); });

TEST(Nf4, DoubleQuantizationAddsLessThanAThousandthToTheError) {
  const auto error = [&](bool double_quant) {
    const auto codec = make_codec("nf4", {.double_quant = double_quant});
    return errors(million(), test::round_trip(*codec, million(), {1024, 1024})).absolute;
  };
  EXPECT_LT(error(true), 1.001 * error(false));
}

TEST(Nf4, CodesCarry3Point885Bits) {
  std::vector<std::uint8_t> packed(million().size() / 2);
  std::vector<float> absmax(million().size() / 64);
  nf4::encode(million(), 64, packed, absmax);
  double count[16] = {};
  for (const std::uint8_t byte : packed) ++count[byte >> 4], ++count[byte & 15];
  double entropy = 0;
  for (const double n : count) entropy -= n / (1 << 20) * std::log2(n / (1 << 20));
  EXPECT_NEAR(entropy, 3.885, 0.001);
}

TEST(Nf4, CodebookIsThatOfThePaper) {
  EXPECT_EQ(nf4::codebook.value[0], -1.0f);
  EXPECT_EQ(nf4::codebook.value[7], 0.0f);
  EXPECT_EQ(nf4::codebook.value[15], 1.0f);
  EXPECT_TRUE(std::is_sorted(std::begin(nf4::codebook.value), std::end(nf4::codebook.value)));
}

TEST(Nf4, FirstWeightIsTheHighNibbleAndAnOddEndHasTheCodeOfZero) {
  std::vector<std::uint8_t> packed(2);
  std::vector<float> absmax(1);
  nf4::encode(std::vector<float>{-2.0f, 2.0f, 2.0f}, 64, packed, absmax);
  EXPECT_EQ(packed, (std::vector<std::uint8_t>{0x0F, 0xF7}));
  EXPECT_EQ(absmax[0], 2.0f);
}

}  // namespace
}  // namespace nibble
