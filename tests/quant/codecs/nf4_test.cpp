#include "nibble/nf4.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::nf4_test {
namespace {

// Half the widest gap, and the nested absmax.
const test::CodecFacts facts("nf4", [](double, double absmax) { return absmax * (0.1520 + 0.02); });

const test::GiveDigests digests({{"nf4",
                                  "nf4",
                                  OnOverflow::automatic,
                                  {"41eea61f426541348236d2664555df51", "233a2bca9d2b595db5ffc659e3901404",
                                   "4f87d12ab1cabf9fc3ea5f6b1218bbcc", "b07582473a96b290e36211a84e5ed3f3"},
                                  {"795b636082fa4493f63eee480fa97c7e", "ffacbc3294423a8bccc2b6ee29121684",
                                   "8373bdd87f8c24e08b3da36c88affa79", "31b66930718ec3f19adb47cfd8eb3f88"}},
                                 {"nf4_32",
                                  "nf4:block-size=32,double-quant=no",
                                  OnOverflow::automatic,
                                  {"cc06464453f641184db40d98ef50be6a", "d5588f7eb91870c4b023f16918e2316d",
                                   "5e4b115feeb7b7c9c31b02910eae0179", "03cefe07ee3d12b188a6e2de7deb4f32"},
                                  {"448825350ddb5519fcc948aa2e664fcf", "da4ec8176bdde4bd24ebc1a1fdca48e2",
                                   "2b521788740b85467f1bbb2951fb6eb2", "e01362921333fac33e7d38f18721258a"}},
                                 {"nf4_4096",
                                  "nf4:block-size=4096",
                                  OnOverflow::automatic,
                                  {"0315f22164815835548788a6c76bad27", "1a12d695074a04b577ba4c6e70af550a",
                                   "e9cb22932c051c47c29185999ef5ebad", "f0c294c35dbe14cbab78da94eff0dceb"},
                                  {"f28b178f9ac71753b506e11eb13f54da", "20ceaaa5f373389f0e6bceb24d2b38be",
                                   "794af0258c722d8daf9af0182246a2bf", "e106042fa24e5b74b221daca0b153962"}},
                                 {"nf4_search",
                                  "nf4:absmax=search",
                                  OnOverflow::automatic,
                                  {"94e43c85066f85070956a3307feb0d8a", "b42d2b8d599908eab2d15df8d87758cf",
                                   "3a813dba6ed2e87f7f1f65dcd0681fff", "edac0c5ca0f5ace5570200a2f5f293e2"},
                                  {"10e3947763ad2fa39a706258bd6f7410", "6443d4afd4ebba15b2a3e92a7f72e769",
                                   "b461307ce997bfaf2b2f5dfc4aae68ac", "b7cd8a78f3fcaa85ac8e12c63e953466"}},
                                 {"nf4_search_positive_256",
                                  "nf4:block-size=256,double-quant=no,absmax=search-positive",
                                  OnOverflow::automatic,
                                  {"2789ed15d72e5591aebb1ecf1562725d", "73738fc08e0b6495e4a7a9c5b0a030ef",
                                   "9c80f96d84124726c58ebec09408b4d3", "35e8c52278d776c853f6efeb571cc1ec"},
                                  {"d0ba07f141e56cfb234022a587c21024", "a7c6446b98f2deb9f730de010fbc4d3e",
                                   "c9f3c4ed9bce1a453790ea6fb2faf44d", "34220a1710906e119b73017e7efd79b8"}}});

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
