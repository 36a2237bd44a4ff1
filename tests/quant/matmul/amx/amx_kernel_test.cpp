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

// A weight whose values are not exact in bf16.
struct Inexact {
  Codes codes;
  Matrix terms[2];

  explicit Inexact(std::size_t rows, std::size_t columns, std::size_t blocksize)
      : codes(rows, columns, blocksize, 5), terms{Matrix(rows, columns), Matrix(rows, columns)} {
    for (std::size_t i = 0; i < 16; ++i) codes.tables.codebook[i] = static_cast<float>(i) * 0.13f - 0.9f;
    for (float& value : codes.absmax) value *= 0.7f;
    for (std::size_t i = 0; i < codes.weights.values.size(); ++i) {
      const std::size_t code = codes.packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15;
      float rest = codes.tables.codebook[code] * codes.absmax[i / blocksize];
      for (Matrix& term : terms) {
        term.values[i] = bf16::to_float(bf16::from_float(rest));
        rest -= term.values[i];
      }
    }
  }
};

// x goes through arrange_four_bit(), so its order is that of the weights.
TEST(AmxKernel, RowsAreDecodedInTheOrderOfX) {
  const std::optional<AmxRowDecoder> decoder = amx_row_decoder();
  if (!decoder) GTEST_SKIP() << "this processor has no AVX512_BF16";
  for (std::size_t blocksize = 32; blocksize <= 256; blocksize *= 2) {
    const Inexact weight(1, 256, blocksize);
    const Codes& codes = weight.codes;
    for (const std::size_t term : {0u, 1u}) {
      const Lines<std::uint32_t> natural = exact::words(2, weight.terms[term]);
      Lines<std::uint32_t> words(128), expected(128);
      decoder->four_bit(codes.tables, codes.packed.data(), codes.absmax.data(), blocksize, 256, term, words.data());
      decoder->arrange_four_bit(natural.data(), 256, expected.data());
      for (std::size_t i = 0; i < 128; ++i)
        ASSERT_EQ(words.data()[i], expected.data()[i])
            << "word " << i << ", blocksize " << blocksize << ", term " << term;
      EXPECT_NE(std::memcmp(natural.data(), expected.data(), 512), 0);
    }
  }
}

TEST(AmxKernel, PairsOfFourBitRowsGoIntoAPanel) {
  const std::optional<AmxPairDecoder> decoder = amx_pair_decoder();
  if (!decoder) GTEST_SKIP() << "this processor has no AVX512_BF16";
  for (std::size_t blocksize = 32; blocksize <= 256; blocksize *= 2) {
    const Inexact weight(6, 256, blocksize);
    const std::size_t group_stride = 3 * amx_words + 16;
    for (const std::size_t term : {0u, 1u}) {
      Lines<std::uint32_t> panel(256 / amx_words * group_stride);
      LinesAhead ahead(weight.codes.packed.data(), 6, 128, 128);
      decoder->four_bit(weight.codes.rows(), term, ahead, panel.data(), group_stride);
      EXPECT_EQ(ahead.left(), 6);
      for (std::size_t r = 0; r < 6; r += 2)
        for (std::size_t c = 0; c < 256; ++c)
          ASSERT_EQ(panel.data()[c / amx_words * group_stride + r / 2 * amx_words + c % amx_words],
                    exact::word(2, weight.terms[term](r, c), weight.terms[term](r + 1, c)))
              << "row " << r << ", column " << c << ", blocksize " << blocksize << ", term " << term;
    }
  }
}

// Two rows of 128 codes, with all codes there are.
std::vector<std::int8_t> int8_codes() {
  std::vector<std::int8_t> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::int8_t>(i * 37);
  return codes;
}

TEST(AmxKernel, Int8RowsAreExact) {
  const std::optional<AmxRowDecoder> decoder = amx_row_decoder();
  if (!decoder) GTEST_SKIP() << "this processor has no AVX512_BF16";
  const std::vector<std::int8_t> codes = int8_codes();
  Lines<std::uint32_t> words(128);
  decoder->int8(codes.data(), 256, words.data());
  for (std::size_t i = 0; i < 128; ++i)
    ASSERT_EQ(words.data()[i], exact::word(2, codes[2 * i], codes[2 * i + 1])) << "word " << i;
}

TEST(AmxKernel, PairsOfInt8RowsGoIntoAPanel) {
  const std::optional<AmxPairDecoder> decoder = amx_pair_decoder();
  if (!decoder) GTEST_SKIP() << "this processor has no AVX512_BF16";
  const std::vector<std::int8_t> codes = int8_codes();
  Lines<std::uint32_t> panel(8 * 48);
  decoder->int8(codes.data(), codes.data() + 128, 128, panel.data(), 48);
  for (std::size_t c = 0; c < 128; ++c)
    ASSERT_EQ(panel.data()[c / amx_words * 48 + c % amx_words], exact::word(2, codes[c], codes[128 + c]))
        << "column " << c;
}

TEST(LinesAhead, AreAskedForOnce) {
  std::vector<std::byte> memory(1000);
  LinesAhead ahead(memory.data(), 3, 65, 200);
  EXPECT_EQ(ahead.left(), 6);
  ahead.ask(4);
  EXPECT_EQ(ahead.left(), 2);
  ahead.append({memory.data() + 600, 3});
  EXPECT_EQ(ahead.left(), 5);
  EXPECT_EQ(ahead.left_of_rows(), 2);
  ahead.ask(4);
  EXPECT_EQ(ahead.left_of_rows(), 0);
  EXPECT_EQ(ahead.left(), 1);
  ahead.ask(100);
  EXPECT_EQ(ahead.left(), 0);
  LinesAhead().ask(1);
}

}  // namespace
}  // namespace nibble::matmul
