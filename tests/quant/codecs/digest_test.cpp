// Every codec's bytes for a fixed input, as hashes: machines of another architecture, other compilers and other CPU
// targets are compared with these constants and so with each other. That the bytes are right is for the other tests.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <random>

#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::digest_test {
namespace {

using test::Bytes;
using test::Encoded;

const Shape shape_of_f32 = {1021, 1027};  // 1,048,567 weights, an odd number
const Shape shape_of_others = {127, 1033};

// Integers and powers of two only: functions of the C library may round differently elsewhere.
std::vector<float> make_weights() {
  constexpr int exponents[] = {-22, -24, -20, -26, -16, -2, 0, -60, -120, -142, -150, 90};
  std::mt19937_64 random(20231114);
  std::vector<float> weights(shape_of_f32[0] * shape_of_f32[1]);
  const std::size_t patterns_from = weights.size() / 8 * 7;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::uint64_t bits = random();
    if (i >= patterns_from) {  // anything, of which one in 128 is not finite
      weights[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
      continue;
    }
    // The sum of four uniform numbers is nearly normal. Most blocks are those of a model.
    const std::size_t run = i / 1000;
    const int exponent = run % 8 == 7 ? exponents[run / 8 % std::size(exponents)] : -22;
    const auto sum =
        static_cast<std::int32_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) + (bits >> 32 & 0xFFFF) + (bits >> 48)) -
        131070;
    weights[i] = static_cast<float>(std::ldexp(sum, exponent));
    if (run % 16 == 3 && i % 100 < 70) weights[i] = 0.0f;  // whole blocks of zeros
    if (run % 512 == 5 && i % 333 == 0) weights[i] = std::bit_cast<float>(0x7F800000u);
    if (run % 512 == 6 && i % 333 == 0) weights[i] = std::bit_cast<float>(0xFFC12345u);
  }
  return weights;
}

struct Input {
  TensorInfo tensor;
  Bytes bytes;
};

Input make_input(DType dtype) {
  const std::vector<float> all = make_weights();
  if (dtype == DType::f32) return {{"m.weight", dtype, shape_of_f32}, test::bytes_of(all)};
  const TensorInfo tensor{"m.weight", dtype, shape_of_others};
  std::mt19937_64 random(7);
  std::vector<std::uint16_t> halves;
  std::vector<double> doubles;
  for (std::size_t i = 0; i < tensor.elements(); ++i) {
    // Of the 16-bit types every pattern; of fp64 what lies near fp32 and between its numbers.
    const float weight = all[i * 7 % all.size()];
    halves.push_back(static_cast<std::uint16_t>(i % 1024 < 512 && dtype == DType::bf16
                                                    ? std::bit_cast<std::uint32_t>(weight) >> 16
                                                    : random() & (i < 60000 ? 0xBFFF : 0xFFFF)));
    doubles.push_back(std::bit_cast<double>(std::bit_cast<std::uint64_t>(static_cast<double>(weight)) ^
                                            (random() >> (i % 2 == 0 ? 34 : 63))));
  }
  return {tensor, dtype == DType::f64 ? test::bytes_of(doubles) : test::bytes_of(halves)};
}

class Digest {
 public:
  Digest() : state_(XXH3_createState()) { XXH3_128bits_reset(state_); }
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;
  ~Digest() { XXH3_freeState(state_); }

  void add(std::span<const std::byte> bytes) { XXH3_128bits_update(state_, bytes.data(), bytes.size()); }
  std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_);
    std::array<char, 33> text{};
    std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                  static_cast<unsigned long long>(hash.low64));
    return text.data();
  }

 private:
  XXH3_state_t* state_;
};

struct Case {
  std::string_view id;
  std::string_view codec;
  CodecOptions options;
  std::array<std::string_view, 4> encoded;  // all parts, from F32, BF16, F16, F64
  std::array<std::string_view, 4> decoded;  // the weights that come back

  friend void PrintTo(const Case& each, std::ostream* out) { *out << each.id; }
};

constexpr std::array dtypes_in_order = {DType::f32, DType::bf16, DType::f16, DType::f64};

const Case cases[] = {
    {"fp32",
     "fp32",
     {},
     {"fe3a7202f4389f702d99331159f6f2b0", "bc68a346a450d5246a3bd0c667d43771", "1e5efe63ca5ee30f91cd7c28415564e8",
      "7808e4db0725763a165458347c37afc2"},
     {"fe3a7202f4389f702d99331159f6f2b0", "bc68a346a450d5246a3bd0c667d43771", "1e5efe63ca5ee30f91cd7c28415564e8",
      "7808e4db0725763a165458347c37afc2"}},
    {"fp16",
     "fp16",
     {},
     {"6952e24e8d23633a841cf39966731172", "58f56355225256ea2037308563c35296", "b126494b78a5c82600c4cfd41d10305d",
      "ff9e84d939f500c661444b087e078798"},
     {"8b3824268ca746b710962c0a5577fbbb", "50e1465a5189a22b28b00b07a27809c6", "1e5efe63ca5ee30f91cd7c28415564e8",
      "25a9003192e913d7566d6972b8741bd6"}},
    {"fp16_clamp",
     "fp16",
     {.on_overflow = OnOverflow::clamp},
     {"35bde732aadf4c804ca49e8264b7d541", "4bb3ca0900698dd5d4446cb592df3928", "b126494b78a5c82600c4cfd41d10305d",
      "9cbe023b410dea81d5e0a30cfdf7801b"},
     {"98a60c1da74e9e21cbe4d76c2dfb3845", "905ed4f8d0e70d38da84d14667b11ff2", "1e5efe63ca5ee30f91cd7c28415564e8",
      "423c0079c212dd756972edd5349fa7d7"}},
    {"bf16",
     "bf16",
     {},
     {"6f9f4d12f4d87dbeb2fb12ace0a46230", "34674b6c4508e00706f09d461fee9b43", "a82a3ff82154a052d39d0c93642054f5",
      "ba650a365e3730acf4a239bd6e66f553"},
     {"e1738f0b3e6aeaf488d587fb775b4265", "bc68a346a450d5246a3bd0c667d43771", "b79667c99f6f5e1ead4a2d30a2073b87",
      "b7b912fb1ec4f227258b77568c4f4b0c"}},
    {"int8",
     "int8",
     {},
     {"d1cad0c52269207fefa0343021afa2d1", "fc52fd9e05fbf432eed49cc3a3e18482", "7afad6787d98f957fcd32a5714dc996f",
      "a97109e2291e03382df84733a61b1820"},
     {"8cc9fb86c438a8e2baebb3aa6ea891cd", "40b23943ff6b2ef7262664be2a251f45", "03af6b770435512efe0f3d34d40f1b69",
      "854bc2eada6b8a850152d0cb13d34485"}},
    {"nf4",
     "nf4",
     {},
     {"6c04d5d8c91b6ef5a266a0f2d5adcfe4", "f63ecd83b2233477260a03d8b2be022d", "c099dae701cb36e8792c0dc4dfaa7a4a",
      "33570e30afae0d9c53fba3c5a414810d"},
     {"795b636082fa4493f63eee480fa97c7e", "ffacbc3294423a8bccc2b6ee29121684", "8373bdd87f8c24e08b3da36c88affa79",
      "31b66930718ec3f19adb47cfd8eb3f88"}},
    {"nf4_32",
     "nf4",
     {.blocksize = 32, .double_quant = false},
     {"93f8f5cf566942e0cdc243668501f2df", "0a95669ce1946d6bac5cf7660f120900", "92de121a9d0abd09de108e1edda3bc58",
      "a166c84f4230a38b0f67b7e63f64305c"},
     {"448825350ddb5519fcc948aa2e664fcf", "da4ec8176bdde4bd24ebc1a1fdca48e2", "2b521788740b85467f1bbb2951fb6eb2",
      "e01362921333fac33e7d38f18721258a"}},
    {"nf4_4096",
     "nf4",
     {.blocksize = 4096},
     {"2d1dec64bb4e849a9007cb8f7bf2729a", "bed88844ff512408774554f6179bb377", "2625c936d0af0c4d2bb8b0a6661f9485",
      "e1cc25eaafbb5e8f2a7de30323638734"},
     {"f28b178f9ac71753b506e11eb13f54da", "20ceaaa5f373389f0e6bceb24d2b38be", "794af0258c722d8daf9af0182246a2bf",
      "e106042fa24e5b74b221daca0b153962"}},
    {"fp4",
     "fp4",
     {},
     {"d86e2a654905d831dc7e734a20f1956b", "cf32a4f2845e0c01d6d40d53e1553ebd", "5e6cf46c08512dd7b19afa06fce1ec47",
      "5820e311d71ecb6e3d38feb48e5385eb"},
     {"544a02c43895de5fc0bbd3af1e1af272", "dfc92f3af5527f6a22e4b30326d026b8", "17e2c9fdd0d3bb1d1cfb85f6c661de0a",
      "28e6d456803a688df9ff16a64ce726b6"}},
    {"fp4_128",
     "fp4",
     {.blocksize = 128, .double_quant = false},
     {"cabfeded1c7437f006562ec85e23a90d", "6a65406f00a2233a1a31666a2ecbf5ac", "f7e0e740bb9a9e0af264a0d4efa2bf33",
      "d9d277ac42d818d91a261a9432daedce"},
     {"3db16638c4ce411ed713f4f3b1d118b2", "69669025557ea8d5a0852771de5a5aeb", "dcef1ac5288d74557473ba485f130d1f",
      "5a3e820a119718c690beb4e0a97b166c"}},
    {"keep",
     "keep",
     {},
     {"fe3a7202f4389f702d99331159f6f2b0", "34674b6c4508e00706f09d461fee9b43", "b126494b78a5c82600c4cfd41d10305d",
      "6122f901e63634d07c502bbfbf41d92c"},
     {"fe3a7202f4389f702d99331159f6f2b0", "bc68a346a450d5246a3bd0c667d43771", "1e5efe63ca5ee30f91cd7c28415564e8",
      "7808e4db0725763a165458347c37afc2"}},
};

class Digests : public testing::TestWithParam<Case> {};

TEST_P(Digests, AreTheSameOnEveryMachine) {
  const auto codec = make_codec(GetParam().codec, GetParam().options);
  for (std::size_t d = 0; d < dtypes_in_order.size(); ++d) {
    const Input input = make_input(dtypes_in_order[d]);
    test::for_each_target([&](const std::string& target) {
      const Encoded encoded = test::encode(*codec, input.tensor, input.bytes);
      Digest stored;
      for (const Bytes& part : encoded.parts) stored.add(part);
      EXPECT_EQ(stored.hex(), GetParam().encoded[d]) << target << ", " << traits(dtypes_in_order[d]).name;
      Digest weights;
      weights.add(test::bytes_of(test::decode(*codec, input.tensor, encoded)));
      EXPECT_EQ(weights.hex(), GetParam().decoded[d]) << target << ", " << traits(dtypes_in_order[d]).name;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Digests, testing::ValuesIn(cases),
                         [](const auto& each) { return std::string(each.param.id); });

}  // namespace
}  // namespace nibble::digest_test
