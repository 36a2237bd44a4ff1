#include "quant/matmul/amx/amx_kernel.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/matmul/amx/emulated.hpp"
#include "tests/quant/matmul/exact.hpp"

namespace nibble::matmul {
namespace {

using exact::Codes;
using exact::Matrix;

Lines<std::uint32_t> random_words(std::size_t n, std::uint32_t exponents, unsigned seed) {
  std::mt19937 random(seed);
  Lines<std::uint32_t> words(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto bf16 = [&] { return random() % 128 | (100 + random() % exponents) << 7 | random() % 2 << 15; };
    words.data()[i] = static_cast<std::uint32_t>(bf16() | bf16() << 16);
  }
  return words;
}

// Bit for bit, whatever the number of tiles. Exponents from 100 on give products that are subnormal, and up to 255
// infinities and NaN.
TEST(AmxKernel, MultipliesAsTheManualSays) {
  const std::optional<AmxKernel> kernel = amx_kernel();
  if (!kernel) GTEST_SKIP() << "this processor has no AMX tiles, or the system does not permit them";
  for (const std::uint32_t exponents : {40u, 156u})
    for (std::size_t rows = 16; rows <= 112; rows += 16)
      for (std::size_t groups = 1; groups <= 6; ++groups)
        for (const std::size_t words : {16u, 48u}) {
          const std::size_t left_stride = words + 5, right_stride = words * amx_words + 32, stride = groups * 16 + 3;
          const Lines<std::uint32_t> left = random_words(rows * left_stride, exponents, 1);
          const Lines<std::uint32_t> right = random_words(groups * right_stride, exponents, 2);
          const AmxOperands operands{left.data(), rows, left_stride, right.data(), groups, right_stride, words};
          std::vector<float> sums(rows * stride, 3.0f), expected = sums;
          LinesAhead ahead(left.data(), 3, 100, 128), none;
          kernel->begin();
          kernel->multiply(operands, true, sums.data(), stride, ahead);
          kernel->multiply(operands, false, sums.data(), stride, none);
          kernel->end();
          emulated::multiply(operands, true, expected.data(), stride, none);
          emulated::multiply(operands, false, expected.data(), stride, none);
          EXPECT_EQ(ahead.left(), 0);
          for (std::size_t i = 0; i < sums.size(); ++i) {
            if (std::isnan(sums[i]) && std::isnan(expected[i])) continue;
            ASSERT_EQ(std::bit_cast<std::uint32_t>(sums[i]), std::bit_cast<std::uint32_t>(expected[i]))
                << sums[i] << " and " << expected[i] << ", row " << i / stride << " of " << rows << ", column "
                << i % stride << " of " << groups << " groups, " << words << " words";
          }
        }
}

// x goes through arrange_four_bit(), so its order is that of the weights.
TEST(AmxKernel, RowsAreDecodedInTheOrderOfX) {
  const std::optional<RowDecoder> decoder = amx_row_decoder();
  if (!decoder) GTEST_SKIP() << "this processor has no AVX512_BF16";
  for (std::size_t blocksize = 32; blocksize <= 256; blocksize *= 2) {
    const Codes codes(1, 256, blocksize, 5);
    const Lines<std::uint32_t> natural = exact::words(2, codes.weights);
    Lines<std::uint32_t> words(128), expected(128);
    decoder->four_bit(codes.tables, codes.packed.data(), codes.absmax.data(), blocksize, 256, 0, words.data());
    decoder->arrange_four_bit(natural.data(), 256, expected.data());
    for (std::size_t i = 0; i < 128; ++i)
      ASSERT_EQ(words.data()[i], expected.data()[i]) << "word " << i << ", blocksize " << blocksize;
    EXPECT_NE(std::memcmp(natural.data(), expected.data(), 512), 0);
  }
}

TEST(AmxKernel, PairsOfFourBitRowsGoIntoAPanel) {
  const std::optional<AmxPairDecoder> decoder = amx_pair_decoder();
  if (!decoder) GTEST_SKIP() << "this processor has no AVX512_BF16";
  for (std::size_t blocksize = 32; blocksize <= 256; blocksize *= 2) {
    const Codes codes(6, 256, blocksize, 7);
    const std::size_t group_stride = 3 * amx_words + 16;
    Lines<std::uint32_t> panel(256 / amx_words * group_stride);
    LinesAhead ahead(codes.packed.data(), 6, 128, 128);
    decoder->four_bit(codes.rows(), ahead, panel.data(), group_stride);
    EXPECT_EQ(ahead.left(), 6);
    for (std::size_t r = 0; r < 6; r += 2)
      for (std::size_t c = 0; c < 256; ++c)
        ASSERT_EQ(panel.data()[c / amx_words * group_stride + r / 2 * amx_words + c % amx_words],
                  exact::word(2, codes.weights(r, c), codes.weights(r + 1, c)))
            << "row " << r << ", column " << c << ", blocksize " << blocksize;
  }
}

TEST(AmxKernel, PairsOfInt8RowsGoIntoAPanel) {
  const std::optional<AmxPairDecoder> decoder = amx_pair_decoder();
  if (!decoder) GTEST_SKIP() << "this processor has no AVX512_BF16";
  std::vector<std::int8_t> codes(128);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<std::int8_t>(static_cast<int>(i * 7 % 255) - 127);
  Lines<std::uint32_t> panel(4 * 48);
  decoder->int8({codes.data(), codes.data() + 64, 0.75f, 3.0f, 0}, 64, panel.data(), 48);
  for (std::size_t c = 0; c < 64; ++c)
    ASSERT_EQ(panel.data()[c / amx_words * 48 + c % amx_words],
              exact::word(2, static_cast<float>(codes[c]) * 0.75f * (1.0f / 127),
                          static_cast<float>(codes[64 + c]) * 3.0f * (1.0f / 127)))
        << "column " << c;
}

TEST(LinesAhead, AreAskedForOnce) {
  std::vector<std::byte> memory(1000);
  LinesAhead ahead(memory.data(), 3, 65, 200);
  EXPECT_EQ(ahead.left(), 6);
  ahead.ask(4);
  EXPECT_EQ(ahead.left(), 2);
  ahead.ask(100);
  EXPECT_EQ(ahead.left(), 0);
  LinesAhead().ask(1);
}

}  // namespace
}  // namespace nibble::matmul
