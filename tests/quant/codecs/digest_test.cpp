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
  CodecSpec codec;
  OnOverflow on_overflow;
  std::array<std::string_view, 4> encoded;  // all planes, from F32, BF16, F16, F64
  std::array<std::string_view, 4> decoded;  // the weights that come back

  friend void PrintTo(const Case& each, std::ostream* out) { *out << each.id; }
};

constexpr std::array dtypes_in_order = {DType::f32, DType::bf16, DType::f16, DType::f64};

const Case cases[] = {
    {"fp32",
     "fp32",
     OnOverflow::automatic,
     {"fe3a7202f4389f702d99331159f6f2b0", "bc68a346a450d5246a3bd0c667d43771", "1e5efe63ca5ee30f91cd7c28415564e8",
      "7808e4db0725763a165458347c37afc2"},
     {"fe3a7202f4389f702d99331159f6f2b0", "bc68a346a450d5246a3bd0c667d43771", "1e5efe63ca5ee30f91cd7c28415564e8",
      "7808e4db0725763a165458347c37afc2"}},
    {"fp16",
     "fp16",
     OnOverflow::automatic,
     {"6952e24e8d23633a841cf39966731172", "58f56355225256ea2037308563c35296", "b126494b78a5c82600c4cfd41d10305d",
      "ff9e84d939f500c661444b087e078798"},
     {"8b3824268ca746b710962c0a5577fbbb", "50e1465a5189a22b28b00b07a27809c6", "1e5efe63ca5ee30f91cd7c28415564e8",
      "25a9003192e913d7566d6972b8741bd6"}},
    {"fp16_clamp",
     "fp16",
     OnOverflow::clamp,
     {"35bde732aadf4c804ca49e8264b7d541", "4bb3ca0900698dd5d4446cb592df3928", "b126494b78a5c82600c4cfd41d10305d",
      "9cbe023b410dea81d5e0a30cfdf7801b"},
     {"98a60c1da74e9e21cbe4d76c2dfb3845", "905ed4f8d0e70d38da84d14667b11ff2", "1e5efe63ca5ee30f91cd7c28415564e8",
      "423c0079c212dd756972edd5349fa7d7"}},
    {"bf16",
     "bf16",
     OnOverflow::automatic,
     {"6f9f4d12f4d87dbeb2fb12ace0a46230", "34674b6c4508e00706f09d461fee9b43", "a82a3ff82154a052d39d0c93642054f5",
      "ba650a365e3730acf4a239bd6e66f553"},
     {"e1738f0b3e6aeaf488d587fb775b4265", "bc68a346a450d5246a3bd0c667d43771", "b79667c99f6f5e1ead4a2d30a2073b87",
      "b7b912fb1ec4f227258b77568c4f4b0c"}},
    {"int8",
     "int8",
     OnOverflow::automatic,
     {"37540d429fe327fd810e4584d14f8b1d", "255b95d3dffc00d56d6fcb7a2f59c6e8", "06306da51552cc3e01ddc6551eee423c",
      "68d5021d4abc9f53464d474625948ff0"},
     {"8cc9fb86c438a8e2baebb3aa6ea891cd", "40b23943ff6b2ef7262664be2a251f45", "03af6b770435512efe0f3d34d40f1b69",
      "854bc2eada6b8a850152d0cb13d34485"}},
    {"nf4",
     "nf4",
     OnOverflow::automatic,
     {"41eea61f426541348236d2664555df51", "233a2bca9d2b595db5ffc659e3901404", "4f87d12ab1cabf9fc3ea5f6b1218bbcc",
      "b07582473a96b290e36211a84e5ed3f3"},
     {"795b636082fa4493f63eee480fa97c7e", "ffacbc3294423a8bccc2b6ee29121684", "8373bdd87f8c24e08b3da36c88affa79",
      "31b66930718ec3f19adb47cfd8eb3f88"}},
    {"nf4_32",
     "nf4:block-size=32,double-quant=no",
     OnOverflow::automatic,
     {"cc06464453f641184db40d98ef50be6a", "d5588f7eb91870c4b023f16918e2316d", "5e4b115feeb7b7c9c31b02910eae0179",
      "03cefe07ee3d12b188a6e2de7deb4f32"},
     {"448825350ddb5519fcc948aa2e664fcf", "da4ec8176bdde4bd24ebc1a1fdca48e2", "2b521788740b85467f1bbb2951fb6eb2",
      "e01362921333fac33e7d38f18721258a"}},
    {"nf4_4096",
     "nf4:block-size=4096",
     OnOverflow::automatic,
     {"0315f22164815835548788a6c76bad27", "1a12d695074a04b577ba4c6e70af550a", "e9cb22932c051c47c29185999ef5ebad",
      "f0c294c35dbe14cbab78da94eff0dceb"},
     {"f28b178f9ac71753b506e11eb13f54da", "20ceaaa5f373389f0e6bceb24d2b38be", "794af0258c722d8daf9af0182246a2bf",
      "e106042fa24e5b74b221daca0b153962"}},
    {"fp4",
     "fp4",
     OnOverflow::automatic,
     {"459acd7460d7de91d91ac33c0eede260", "75a3f865ffb6c1feeafdb0f6a451dc70", "cbded47cae5d151dd8f29357b7a8bb23",
      "4e10c9fcec916c287575d8f2cf3f8fce"},
     {"544a02c43895de5fc0bbd3af1e1af272", "dfc92f3af5527f6a22e4b30326d026b8", "17e2c9fdd0d3bb1d1cfb85f6c661de0a",
      "28e6d456803a688df9ff16a64ce726b6"}},
    {"fp4_128",
     "fp4:block-size=128,double-quant=no",
     OnOverflow::automatic,
     {"95a881fc0000a28c48e8bb792a348e8e", "087eeebd4b7b9a53b19402243e46aeda", "820d74365d701b85051da806525d2830",
      "afe5fa877f757bb4fa72ff643af39f37"},
     {"3db16638c4ce411ed713f4f3b1d118b2", "69669025557ea8d5a0852771de5a5aeb", "dcef1ac5288d74557473ba485f130d1f",
      "5a3e820a119718c690beb4e0a97b166c"}},
    {"keep",
     "keep",
     OnOverflow::automatic,
     {"fe3a7202f4389f702d99331159f6f2b0", "34674b6c4508e00706f09d461fee9b43", "b126494b78a5c82600c4cfd41d10305d",
      "6122f901e63634d07c502bbfbf41d92c"},
     {"fe3a7202f4389f702d99331159f6f2b0", "bc68a346a450d5246a3bd0c667d43771", "1e5efe63ca5ee30f91cd7c28415564e8",
      "7808e4db0725763a165458347c37afc2"}},
};

class Digests : public testing::TestWithParam<Case> {};

TEST_P(Digests, AreTheSameOnEveryMachine) {
  const auto codec = make_codec(GetParam().codec);
  for (std::size_t d = 0; d < dtypes_in_order.size(); ++d) {
    const Input input = make_input(dtypes_in_order[d]);
    test::for_each_target([&](const std::string& target) {
      const Encoded encoded = test::encode(*codec, input.tensor, input.bytes, {.on_overflow = GetParam().on_overflow});
      Digest stored;
      for (const Bytes& plane : encoded.planes) stored.add(plane);
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
