#include "quant/matmul/words/row_kernel.hpp"

#include <gtest/gtest.h>

#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/matmul/exact.hpp"

namespace nibble::matmul {
namespace {

using exact::Codes;
using exact::Matrix;

void for_each_row_kernel(const std::function<void(const RowKernel&, const std::string&)>& check) {
  test::for_each_target([&](const std::string& target) {
    check(row_kernel_f32(), target + ", fp32");
    if (const auto bf16 = row_kernel_bf16()) check(*bf16, target + ", bf16");
  });
}

// x goes through arrange_four_bit(), so its order is that of the weights.
TEST(RowKernel, DecodesFourBitWeightsInTheOrderOfX) {
  for_each_row_kernel([](const RowKernel& kernel, const std::string& what) {
    for (const std::size_t blocksize : {32u, 64u, 256u}) {
      const Codes codes(1, 3 * blocksize, blocksize, 7);
      const std::size_t n = codes.weights.columns;
      const Lines<std::uint32_t> decoded(n / kernel.per_word);
      kernel.decoder.four_bit(codes.tables, codes.packed.data(), codes.absmax.data(), blocksize, n, 0, decoded.data());
      Lines<std::uint32_t> expected = exact::words(kernel.per_word, codes.weights);
      if (kernel.decoder.arrange_four_bit != nullptr)
        kernel.decoder.arrange_four_bit(codes.weights.values.data(), n, expected.data());
      for (std::size_t i = 0; i < n / kernel.per_word; ++i)
        ASSERT_EQ(decoded.data()[i], expected.data()[i]) << what << ", word " << i << ", blocksize " << blocksize;
    }
  });
}

TEST(RowKernel, RestoresWhatItArranged) {
  test::for_each_target([](const std::string& target) {
    const Matrix x = exact::integers(1, 96, 3);
    Lines<std::uint32_t> arranged(96);
    row_kernel_f32().decoder.arrange_four_bit(x.values.data(), 96, arranged.data());
    std::vector<float> restored(96);
    restore_four_bit(reinterpret_cast<const float*>(arranged.data()), 96, restored.data());
    EXPECT_EQ(restored, x.values) << target;
  });
}

TEST(RowKernel, DecodesInt8WeightsByTheirFormula) {
  for_each_row_kernel([](const RowKernel& kernel, const std::string& what) {
    std::vector<std::int8_t> codes(96);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::int8_t>(static_cast<int>(i) * 5 - 127);
    const Lines<std::uint32_t> decoded(codes.size() / kernel.per_word);
    kernel.decoder.int8(codes.data(), 0.75f, codes.size(), 0, decoded.data());
    const auto weight = [&](std::size_t i) { return static_cast<float>(codes[i]) * 0.75f * (1.0f / 127); };
    for (std::size_t i = 0; i < codes.size(); i += kernel.per_word)
      ASSERT_EQ(decoded.data()[i / kernel.per_word],
                exact::word(kernel.per_word, weight(i), weight(i + kernel.per_word - 1)))
          << what << ", weight " << i;
  });
}

TEST(RowKernel, MultipliesAsALoopDoes) {
  for_each_row_kernel([](const RowKernel& kernel, const std::string& what) {
    for (std::size_t rows = 1; rows <= RowKernel::max_rows; ++rows)
      for (std::size_t m = 1; m <= 15; ++m) {
        const Matrix weights = exact::integers(rows, 160, 1), x = exact::integers(m, 160, 2);
        const std::size_t words = 160 / kernel.per_word;
        std::vector<float> sums(rows * m, 3.0f);
        kernel.multiply(exact::words(kernel.per_word, weights).data(), words, rows,
                        exact::words(kernel.per_word, x).data(), words, m, words, sums.data());
        for (std::size_t r = 0; r < rows; ++r)
          for (std::size_t i = 0; i < m; ++i)
            ASSERT_EQ(sums[r * m + i], 3 + exact::product(weights, r, x, i))
                << what << ", row " << r << " of " << rows << ", x " << i << " of " << m;
      }
  });
}

TEST(RowKernel, AddsRowsAsALoopDoes) {
  test::for_each_target([](const std::string& target) {
    for (std::size_t rows = 1; rows <= max_added_rows; ++rows)
      for (const std::size_t m : {1u, 5u, 16u}) {
        const Matrix weights = exact::integers(rows, 96, 1), x = exact::integers(m, rows + 2, 2);
        Lines<float> sums(m * 96);
        std::fill_n(sums.data(), m * 96, 3.0f);
        const Lines<std::uint32_t> words = exact::words(1, weights);
        add_rows(reinterpret_cast<const float*>(words.data()), 96, rows, 96, x.values.data(), x.columns, m, sums.data(),
                 96);
        for (std::size_t i = 0; i < m; ++i)
          for (std::size_t c = 0; c < 96; ++c) {
            float expected = 3;
            for (std::size_t r = 0; r < rows; ++r) expected += x(i, r) * weights(r, c);
            ASSERT_EQ(sums.data()[i * 96 + c], expected) << target << ", rows " << rows << ", column " << c;
          }
      }
  });
}

}  // namespace
}  // namespace nibble::matmul
