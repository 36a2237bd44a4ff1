// The definition of decoding, for any codebook: weight = codebook[code] * absmax[block].

#include <gtest/gtest.h>

#include <array>

#include "nibble/error.hpp"
#include "nibble/fp4.hpp"
#include "nibble/nf4.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::four_bit_decode_test {
namespace {

// Of every sign and size, so that a code that is mistaken for another one shows.
FourBitTables make_codebook() {
  FourBitTables tables{};
  tables.codebook = {-1.0f,   -0.69f, 0x1.abcdefp-3f, -0x1p-20f, 1.0f,   0.33f,      -0.0f, 0x1p-60f,
                     1 / 3.f, 2.5f,   -7.25f,         0x1p-126f, 1e-30f, -0x1p-149f, 1.5f,  -0x1.000002p0f};
  return tables;
}
const FourBitTables tables = make_codebook();

// Everything that fp32 has: what overflows on the way to fp16, what becomes subnormal there, and signed zeros.
constexpr float scales[] = {0.7f, -3.0f, 1e-40f, 65504.0f, 0.0f, -0.0f, 1e38f, 6e-8f, 0.02f, 1e5f, 3e38f, -1e-5f};

struct Encoded {
  Encoded(std::size_t blocksize, std::size_t weights) : packed((weights + 1) / 2) {
    for (std::size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<std::uint8_t>(i * 73 + i / 256 + 5);
    for (std::size_t b = 0; b < (weights + blocksize - 1) / blocksize; ++b)
      absmax.push_back(scales[(b + b / std::size(scales)) % std::size(scales)]);
    for (std::size_t i = 0; i < weights; ++i) {
      const std::size_t code = i % 2 == 0 ? packed[i / 2] >> 4 : packed[i / 2] & 15;
      decoded.push_back(tables.codebook[code] * absmax[i / blocksize]);
    }
  }

  std::vector<std::uint8_t> packed;
  std::vector<float> absmax, decoded;
};

// Around vectors of any length and around blocks, and more blocks than are prepared at a time.
std::vector<std::size_t> lengths(std::size_t blocksize) {
  return {0,
          1,
          2,
          15,
          31,
          32,
          33,
          63,
          64,
          65,
          96 + 5,
          blocksize - 1,
          blocksize,
          blocksize + 1,
          2 * blocksize + 7,
          blocksize <= 128 ? 70 * blocksize + 3 : 3 * blocksize};
}

// Runs f for every blocksize, length and CPU target, with what the weights are to be, at an odd address.
template <class T, class F> void for_each_size(DType type, F&& f) {
  constexpr std::size_t margin = 64;
  const T untouched = static_cast<T>(123);
  for (std::size_t blocksize = 32; blocksize <= 4096; blocksize *= 2)
    for (const std::size_t n : lengths(blocksize)) {
      const Encoded encoded(blocksize, n);
      const std::vector<T> expected = test::values_of<T>(test::stored_as(type, encoded.decoded));
      std::vector<std::uint8_t> shifted(1);
      shifted.insert(shifted.end(), encoded.packed.begin(), encoded.packed.end());
      test::for_each_target([&](const std::string& target) {
        std::vector<T> out(n + 1 + margin, untouched);
        const auto weights = std::span(out).subspan(1, n);
        f(std::span(shifted).subspan(1), encoded.absmax, blocksize, weights);
        EXPECT_EQ(test::bytes_of(std::vector<T>(weights.begin(), weights.end())), test::bytes_of(expected))
            << target << ", " << n << " weights in blocks of " << blocksize;
        EXPECT_EQ(out.front(), untouched) << target;
        EXPECT_EQ(std::vector<T>(out.end() - margin, out.end()), std::vector<T>(margin, untouched))
            << target << ", " << n << " weights in blocks of " << blocksize;
      });
    }
}

TEST(FourBitDecode, IsOneMultiplication) {
  for_each_size<float>(DType::f32, [](auto packed, const auto& absmax, std::size_t blocksize, auto weights) {
    decode_four_bit(tables, packed, absmax, blocksize, weights);
  });
}

TEST(FourBitDecode, To16BitsIsTheProductRounded) {
  for (const DType to : {DType::bf16, DType::f16})
    for_each_size<std::uint16_t>(to, [&](auto packed, const auto& absmax, std::size_t blocksize, auto weights) {
      decode_four_bit(tables, packed, absmax, blocksize, to, weights);
    });
}

// Ties of both types go to the even one: the codebook is exact, and the absmax is 1.
TEST(FourBitDecode, TiesGoToEven) {
  FourBitTables ties{};
  ties.codebook = {0x1.01p0f, 0x1.03p0f, -0x1.01p0f, -0x1.03p0f, 0x1.002p0f, 0x1.006p0f, 0x1p-25f, 0x1.8p-24f};
  const std::vector<std::uint8_t> packed{0x01, 0x23, 0x45, 0x67};
  const std::vector<float> one{1.0f};
  test::for_each_target([&](const std::string& target) {
    std::vector<std::uint16_t> weights(8);
    decode_four_bit(ties, packed, one, 32, DType::bf16, weights);
    EXPECT_EQ(std::vector(weights.begin(), weights.begin() + 4),
              (std::vector<std::uint16_t>{0x3F80, 0x3F82, 0xBF80, 0xBF82}))
        << target;
    decode_four_bit(ties, packed, one, 32, DType::f16, weights);
    EXPECT_EQ(std::vector(weights.begin() + 4, weights.end()),
              (std::vector<std::uint16_t>{0x3C00, 0x3C02, 0x0000, 0x0002}))
        << target;
  });
}

TEST(FourBitDecode, FormatsHaveTheirCodebooks) {
  std::vector<std::uint8_t> packed(16);
  for (std::size_t i = 0; i < 8; ++i) packed[i] = static_cast<std::uint8_t>(2 * i << 4 | (2 * i + 1));
  for (std::size_t i = 0; i < 8; ++i) packed[8 + i] = packed[i];
  const std::vector<float> absmax{0.7f};
  const auto expect = [&](auto&& decode, const float(&codebook)[16]) {
    std::vector<float> weights(32);
    decode(packed, absmax, 32, weights);
    for (std::size_t i = 0; i < 32; ++i) EXPECT_EQ(weights[i], codebook[i % 16] * 0.7f) << i;
  };
  expect(nf4::decode, nf4::codebook.value);
  expect(fp4::decode, fp4::codebook.value);
}

TEST(FourBitDecode, SizesThatDisagreeAreRefused) {
  const std::vector<std::uint8_t> packed(51);
  const std::vector<float> absmax(3);
  const auto errors_of = [&](std::size_t blocksize, std::size_t bytes, std::size_t blocks) {
    std::vector<float> weights(100);
    std::vector<std::uint16_t> halves(100);
    std::vector<std::string> errors;
    const auto try_one = [&](auto&& decode) {
      try {
        decode(std::span(packed).first(bytes), std::span(absmax).first(blocks));
        errors.emplace_back();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::usage);
        errors.emplace_back(error.what());
      }
    };
    try_one([&](auto p, auto a) { decode_four_bit(tables, p, a, blocksize, weights); });
    try_one([&](auto p, auto a) { decode_four_bit(tables, p, a, blocksize, DType::bf16, halves); });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  };
  EXPECT_EQ(errors_of(64, 50, 2), "");
  EXPECT_EQ(errors_of(16, 50, 3), "blocksize is 16, not one of 32, 64, ..., 4096");
  EXPECT_EQ(errors_of(8192, 50, 1), "blocksize is 8192, not one of 32, 64, ..., 4096");
  EXPECT_EQ(errors_of(64, 51, 2), "100 weights in blocks of 64 do not fit 51 packed bytes and 2 absmax values");
  EXPECT_EQ(errors_of(64, 50, 3), "100 weights in blocks of 64 do not fit 50 packed bytes and 3 absmax values");
}

}  // namespace
}  // namespace nibble::four_bit_decode_test
