#include "nibble/fp4.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::fp4_test {
namespace {

// Half the widest gap, and the nested absmax.
const test::CodecFacts facts("fp4", [](double, double absmax) { return absmax * (1.0 / 6 + 0.02); });

const test::GiveDigests digests({{"fp4",
                                  "fp4",
                                  OnOverflow::automatic,
                                  {"459acd7460d7de91d91ac33c0eede260", "75a3f865ffb6c1feeafdb0f6a451dc70",
                                   "cbded47cae5d151dd8f29357b7a8bb23", "4e10c9fcec916c287575d8f2cf3f8fce"},
                                  {"544a02c43895de5fc0bbd3af1e1af272", "dfc92f3af5527f6a22e4b30326d026b8",
                                   "17e2c9fdd0d3bb1d1cfb85f6c661de0a", "28e6d456803a688df9ff16a64ce726b6"}},
                                 {"fp4_128",
                                  "fp4:block-size=128,double-quant=no",
                                  OnOverflow::automatic,
                                  {"95a881fc0000a28c48e8bb792a348e8e", "087eeebd4b7b9a53b19402243e46aeda",
                                   "820d74365d701b85051da806525d2830", "afe5fa877f757bb4fa72ff643af39f37"},
                                  {"3db16638c4ce411ed713f4f3b1d118b2", "69669025557ea8d5a0852771de5a5aeb",
                                   "dcef1ac5288d74557473ba485f130d1f", "5a3e820a119718c690beb4e0a97b166c"}},
                                 {"fp4_search",
                                  "fp4:absmax=search",
                                  OnOverflow::automatic,
                                  {"a6aa0bcf1ab54f4f14ae5ce14b45608e", "6ee9330599f162ee5ec7869c331d24c6",
                                   "22c4b069e58f037b5abb92d7c575e8e5", "8aea2c03f59b1c2cb5b7b20ce73981f6"},
                                  {"b4d55ae79055f34924e6d007ba7ae596", "7323aafac545e3463c125b11062d03c7",
                                   "07c4258f78e7d2ff7b9d5989c877dc35", "f38c5dbdd4751f0d085cc2eef90d857a"}}});

TEST(Fp4, BothZerosAndTheirNeighboursHaveTheCodesOfBitsandbytes) {
  // Of two neighbours in ascending order, 9 0 8 1, a tie takes the first.
  const float tie = 0.0625f / 12 / 2;
  std::vector<float> weights{1.0f, -1.0f, 0.0f, -0.0f, 1e-9f, -1e-9f, tie, -tie, 2 * tie, -2 * tie, 0.5f};
  std::vector<std::uint8_t> packed(6);
  std::vector<float> absmax(1);
  fp4::encode(weights, 64, packed, absmax);
  EXPECT_EQ(packed, (std::vector<std::uint8_t>{0x3B, 0x00, 0x80, 0x89, 0x19, 0x50}));
}

TEST(Fp4, ValuesAreTheTwelfthsOfBitsandbytes) {
  const std::vector<float> expected{0, 0.0052083335f, 0.6666667f, 1, 0.33333334f, 0.5f, 0.16666667f, 0.25f};
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(fp4::codebook.value[i], expected[i]);
    EXPECT_EQ(fp4::codebook.value[i + 8], -expected[i]);
  }
}

}  // namespace
}  // namespace nibble::fp4_test
