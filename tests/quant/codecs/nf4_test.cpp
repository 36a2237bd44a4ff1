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
                                  {"0106559be29ff2a82a58332752f26daa", "c92113d7f61aa7063fb08854bdd78a4c",
                                   "fb4a56487dfa6455dc20da8ece943e52", "8183b72c294ee57d689a2a74a2a0aab8"},
                                  {"1bd5878240d2f293e09620e9338f4a5d", "09a2f5f29c85d15d08f646723acd8a4e",
                                   "4d6c340dac0a5ed6b389c4f6499290c5", "b24fefe8a3ae1880e7d526dc3fa8f195"}},
                                 {"nf4_search_positive_256",
                                  "nf4:block-size=256,double-quant=no,absmax=search-positive",
                                  OnOverflow::automatic,
                                  {"c4b4b73f581b2c3cb8bc23d3a2c7191a", "b39e616be2664368c395c22e9b228f9b",
                                   "ed03cff08014e6d2d82c1fafd0eb7bff", "b1f8a848d5963aa6fe4ad9f1820cfa02"},
                                  {"6350ce0c4f42322dba2a0389dc9d4ed6", "3396054767237ae640b831c65bdb6b49",
                                   "ddb794b1b19be2679bd8bdc316dabb3f", "049d176f5bf4eb9786f404d38454854e"}}});

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
