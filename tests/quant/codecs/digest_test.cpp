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

constexpr std::array dtypes_in_order = {DType::f32, DType::bf16, DType::f16, DType::f64};

class Digests : public testing::TestWithParam<test::CodecDigests> {};

TEST_P(Digests, AreTheSameOnEveryMachine) {
  const auto codec = make_codec(GetParam().codec);
  for (std::size_t d = 0; d < dtypes_in_order.size(); ++d) {
    const Input input = make_input(dtypes_in_order[d]);
    test::for_each_target([&](const std::string& target) {
      const Encoded encoded =
          test::encode(*codec, input.tensor, input.bytes, {.quantizer = {.on_overflow = GetParam().on_overflow}});
      Digest stored;
      for (const Bytes& plane : encoded.planes) stored.add(plane);
      EXPECT_EQ(stored.hex(), GetParam().encoded[d]) << target << ", " << traits(dtypes_in_order[d]).name;
      Digest weights;
      weights.add(test::bytes_of(test::decode(*codec, input.tensor, encoded)));
      EXPECT_EQ(weights.hex(), GetParam().decoded[d]) << target << ", " << traits(dtypes_in_order[d]).name;
    });
  }
}

TEST(Digest, EveryCodecHasOne) {
  for (const std::string_view name : codec_names())
    EXPECT_TRUE(std::ranges::any_of(test::all_digests(), [&](const auto& each) { return each.codec.name() == name; }))
        << "no test has CodecDigests of " << name;
}

INSTANTIATE_TEST_SUITE_P(Codecs, Digests, testing::ValuesIn(test::all_digests()),
                         [](const auto& each) { return each.param.id; });

}  // namespace
}  // namespace nibble::digest_test
