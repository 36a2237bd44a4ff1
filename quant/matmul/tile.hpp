#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace nibble::matmul {

/// A product of tiles that fit the caches, and the layout that it needs.
///
/// Both operands consist of 32-bit words along the depth, the dimension that is summed over: a word is an fp32 number,
/// or a pair of bf16 numbers, the first in the lower half. A panel is the right operand in groups of `width` columns:
/// word p of column c of a group is panel[p * width + c].
struct TileKernel {
  std::size_t width;     ///< columns of a group, a multiple of 4 or less than 4
  std::size_t per_word;  ///< numbers in a word

  /// sums[r][c] += sum over p < words of a[r][p] * panel[p][c] for all rows and columns of a group, without any other
  /// number: a sum of its own starts at 0. A row of `a` has a_stride words, one of `sums` sums_stride numbers.
  void (*multiply)(const std::uint32_t* a, std::size_t a_stride, std::size_t rows, std::size_t words,
                   const std::uint32_t* panel, float* sums, std::size_t sums_stride);

  /// Numbers that follow each other along the depth, to words. The last word may be filled with zero.
  void (*to_words)(const float* numbers, std::size_t n, std::uint32_t* words);

  /// Numbers of one depth (or two, if a word has two) side by side, to one word for each column. `second` may be null.
  void (*side_by_side)(const float* first, const float* second, std::size_t columns, std::uint32_t* words);

  /// The same of rows in the words of row_kernel_bf16(), for a multiple of 32 columns; null for fp32.
  void (*pair_words)(const std::uint32_t* first, const std::uint32_t* second, std::size_t columns,
                     std::uint32_t* words);
};

/// Multiplies fp32 numbers, with the best instructions of the CPU target.
[[nodiscard]] TileKernel tile_f32();
/// Multiplies bf16 numbers; nothing unless the processor and the CPU target can.
[[nodiscard]] std::optional<TileKernel> tile_bf16();

/// panel[p * stride + c] = rows[c * words + p] for c < 4 and p < words.
void transpose_four(const std::uint32_t* rows, std::size_t words, std::uint32_t* panel, std::size_t stride);

/// Whether the CPU target is AVX-512.
[[nodiscard]] bool target_has_avx512();

}  // namespace nibble::matmul
