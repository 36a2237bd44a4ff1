#include "quant/matmul/words/tile.hpp"

#include <gtest/gtest.h>

#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/matmul/exact.hpp"

namespace nibble::matmul {
namespace {

using exact::Codes;
using exact::Matrix;

void for_each_tile_kernel(const std::function<void(const TileKernel&, const std::string&)>& check) {
  test::for_each_target([&](const std::string& target) {
    check(tile_f32(), target + ", fp32");
    if (const auto bf16 = tile_bf16()) check(*bf16, target + ", bf16");
  });
}

// Word p of column c is from weights[c].
Lines<std::uint32_t> panel_of(const TileKernel& kernel, const Matrix& weights) {
  const std::size_t words = weights.columns / kernel.per_word;
  Lines<std::uint32_t> panel(words * kernel.width);
  for (std::size_t c = 0; c < kernel.width; ++c)
    for (std::size_t p = 0; p < words; ++p)
      panel.data()[p * kernel.width + c] = exact::word(kernel.per_word, weights(c, p * kernel.per_word),
                                                       weights(c, p * kernel.per_word + kernel.per_word - 1));
  return panel;
}

// Rows of a that are longer than what counts, at an odd address.
TEST(Tile, MultipliesAsALoopDoes) {
  for_each_tile_kernel([](const TileKernel& kernel, const std::string& what) {
    for (const std::size_t depth : {2u, 126u, 258u})
      for (std::size_t rows = 1; rows <= 14; ++rows) {
        const Matrix a = exact::integers(rows, depth, 1), weights = exact::integers(kernel.width, depth, 2);
        const std::size_t words = depth / kernel.per_word, stride = words * 4 + 6, sums_stride = kernel.width + 64;
        const Lines<std::uint32_t> a_words = exact::words(kernel.per_word, a);
        std::vector<std::byte> moved(1 + (rows - 1) * stride + words * 4);
        for (std::size_t r = 0; r < rows; ++r)
          std::memcpy(moved.data() + 1 + r * stride, a_words.data() + r * words, words * 4);
        Lines<float> sums(rows * sums_stride);
        std::fill_n(sums.data(), rows * sums_stride, 3.0f);
        kernel.multiply(moved.data() + 1, stride, rows, words, panel_of(kernel, weights).data(), sums.data(),
                        sums_stride, {moved.data(), 5});
        for (std::size_t r = 0; r < rows; ++r)
          for (std::size_t c = 0; c < sums_stride; ++c)
            ASSERT_EQ(sums.data()[r * sums_stride + c], c < kernel.width ? 3 + exact::product(a, r, weights, c) : 3.0f)
                << what << ", row " << r << " of " << rows << ", column " << c << ", depth " << depth;
      }
  });
}

TEST(Tile, NumbersBecomeWords) {
  for_each_tile_kernel([](const TileKernel& kernel, const std::string& what) {
    for (const std::size_t n : {1u, 2u, 31u, 32u, 33u, 64u}) {
      const Matrix numbers = exact::integers(2, n, 1);
      const auto at = [&](std::size_t i) { return i < n ? numbers(0, i) : 0; };
      const std::size_t words = (n + kernel.per_word - 1) / kernel.per_word;
      std::vector<std::uint32_t> along(words), across(n), first_alone(n);
      kernel.to_words(numbers.values.data(), n, along.data());
      kernel.side_by_side(numbers.values.data(), numbers.values.data() + n, n, across.data());
      kernel.side_by_side(numbers.values.data(), nullptr, n, first_alone.data());
      for (std::size_t i = 0; i < words; ++i)
        ASSERT_EQ(along[i], exact::word(kernel.per_word, at(i * kernel.per_word), at(i * kernel.per_word + 1)))
            << what << ", word " << i << " of " << n << " numbers";
      for (std::size_t i = 0; i < n; ++i) {
        ASSERT_EQ(across[i], exact::word(kernel.per_word, numbers(0, i), numbers(1, i))) << what << ", column " << i;
        ASSERT_EQ(first_alone[i], exact::word(kernel.per_word, numbers(0, i))) << what << ", column " << i;
      }
    }
  });
}

TEST(Tile, PairsOfFourBitRowsGoIntoAPanel) {
  for_each_tile_kernel([](const TileKernel& kernel, const std::string& what) {
    if (!kernel.decoder) return;
    for (std::size_t blocksize = kernel.width; blocksize <= 4 * kernel.width; blocksize *= 2) {
      const Codes codes(2, 4 * kernel.width, blocksize, 7);
      const std::size_t columns = codes.weights.columns, group_stride = 3 * kernel.width;
      Lines<std::uint32_t> panel(columns * 3);
      kernel.decoder->four_bit(codes.rows(), panel.data(), group_stride);
      for (std::size_t c = 0; c < columns; ++c)
        ASSERT_EQ(panel.data()[c / kernel.width * group_stride + c % kernel.width],
                  exact::word(2, codes.weights(0, c), codes.weights(1, c)))
            << what << ", column " << c << ", blocksize " << blocksize;
    }
  });
}

TEST(Tile, PairsOfInt8RowsGoIntoAPanel) {
  for_each_tile_kernel([](const TileKernel& kernel, const std::string& what) {
    if (!kernel.decoder) return;
    const std::size_t columns = 2 * kernel.width, group_stride = 3 * kernel.width;
    std::vector<std::int8_t> codes(2 * columns);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::int8_t>(static_cast<int>(i) % 255 - 127);
    Lines<std::uint32_t> panel(2 * group_stride);
    kernel.decoder->int8({codes.data(), codes.data() + columns, 0.75f, 3.0f, 0}, columns, panel.data(), group_stride);
    for (std::size_t c = 0; c < columns; ++c)
      ASSERT_EQ(panel.data()[c / kernel.width * group_stride + c % kernel.width],
                exact::word(2, static_cast<float>(codes[c]) * 0.75f * (1.0f / 127),
                            static_cast<float>(codes[columns + c]) * 3.0f * (1.0f / 127)))
          << what << ", column " << c;
  });
}

TEST(Tile, FourRowsAreTransposed) {
  test::for_each_target([](const std::string& target) {
    for (const std::size_t words : {1u, 4u, 7u, 128u}) {
      std::vector<std::uint32_t> rows(4 * words), panel(words * 6, 9);
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint32_t>(i + 100);
      transpose_four(rows.data(), words, panel.data(), 6);
      for (std::size_t p = 0; p < words; ++p)
        for (std::size_t c = 0; c < 6; ++c)
          ASSERT_EQ(panel[p * 6 + c], c < 4 ? rows[c * words + p] : 9) << target << ", word " << p << ", column " << c;
    }
  });
}

}  // namespace
}  // namespace nibble::matmul
