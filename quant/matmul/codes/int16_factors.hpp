#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/words/row_kernel.hpp"

namespace nibble::matmul {

/// absmax[r] * x[r] of eight rows of codes as integers of 16 bits, with a power of two for each block.
///
/// A column of dx needs the sum of w[r] * absmax[r] * x[r] over rows r. Values of a codebook are integers, too
/// (Int16Codebook), so the sum over eight rows is exact in integers of 32 bits.
struct Int16Factors {
  static constexpr std::size_t rows = max_added_rows, pairs = rows / 2, min_blocksize = 64,
                               max_blocks = max_columns_of_added_integers / min_blocksize;

  /// Of rows 2 i and 2 i + 1 in the lower and the upper half of a word, by block.
  alignas(64) std::array<std::array<std::uint32_t, max_blocks>, pairs> of_pair;
  /// What 1 is worth in the integer sums of a block, whose weights are in units of Int16Codebook.
  alignas(64) std::array<float, max_blocks> unit;
};

/// The factors of Int16Factors::rows rows in blocks of at least min_blocksize. False if the factors of a block differ
/// too much, or are too small or not finite: products in fp32 have to take their place.
[[nodiscard]] bool make_int16_factors(const CodeRows& weights, const float* x, Int16Factors& factors);

}  // namespace nibble::matmul
