#include "nibble/nf4.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::nf4_test {
namespace {

const std::vector<float>& million() {
  static const std::vector<float> weights = test::normal_weights(1 << 20, 1);
  return weights;
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
}  // namespace nibble::nf4_test
