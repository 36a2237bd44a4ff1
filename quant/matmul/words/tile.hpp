#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/lines.hpp"

namespace nibble::matmul {

/// Two rows of a weight in 8 bits. The codes `ahead` bytes later are asked for from memory.
struct Int8Pair {
  const std::int8_t *first, *second;
  float first_absmax, second_absmax;
  std::size_t ahead;
};

/// Decodes two rows of a weight into words of two bf16 numbers, of which the first row has the lower one, for a
/// multiple of `multiple` columns. Columns are in groups of a panel, as in a TileKernel: a group is group_stride words
/// after the one before.
struct PairDecoder {
  std::size_t multiple;  ///< of columns, and of blocks

  void (*four_bit)(const CodeRows& weights, std::uint32_t* panel, std::size_t group_stride);
  void (*int8)(const Int8Pair& weights, std::size_t columns, std::uint32_t* panel, std::size_t group_stride);
};

/// A product of tiles that fit the caches, and the layout that it needs.
///
/// Both operands consist of 32-bit words along the depth, the dimension that is summed over: a word is an fp32 number,
/// or a pair of bf16 numbers, the first in the lower half. A panel is the right operand in groups of `width` columns:
/// word p of column c of a group is panel[p * width + c].
struct TileKernel {
  std::size_t width;     ///< columns of a group, a multiple of 4 or less than 4
  std::size_t per_word;  ///< numbers in a word

  /// sums[r][c] += sum over p < words of a[r][p] * panel[p][c] for all rows and columns of a group, without any other
  /// number: a sum of its own starts at 0. A row of `a` has a_stride bytes, and its words need no alignment; one of
  /// `sums` has sums_stride numbers. The lines `ahead` are asked for from memory meanwhile.
  void (*multiply)(const std::byte* a, std::size_t a_stride, std::size_t rows, std::size_t words,
                   const std::uint32_t* panel, float* sums, std::size_t sums_stride, CacheLines ahead);

  /// Numbers that follow each other along the depth, to words. The last word may be filled with zero.
  void (*to_words)(const float* numbers, std::size_t n, std::uint32_t* words);

  /// Numbers of one depth (or two, if a word has two) side by side, to one word for each column. `second` may be null.
  void (*side_by_side)(const float* first, const float* second, std::size_t columns, std::uint32_t* words);

  std::optional<PairDecoder> decoder;  ///< of weights, into a panel; none for fp32
};

/// Multiplies fp32 numbers, with the best instructions of the CPU target.
[[nodiscard]] TileKernel tile_f32();
/// Multiplies bf16 numbers; nothing unless the processor and the CPU target can.
[[nodiscard]] std::optional<TileKernel> tile_bf16();

/// Whether the kernels in bf16 exist and take less time than those in fp32: 0.5 to 0.8 times on AMD (Zen 5), but 1.1 to
/// 1.7 times on Intel (Emerald Rapids; docs/cpu-matmul.md), where torch's products, without AMX, take longer in bf16
/// too.
[[nodiscard]] bool prefers_bf16();
/// For tests: overrides the answer where the kernels exist; nullopt restores it. No product may run meanwhile.
void prefer_bf16(std::optional<bool> answer);

/// panel[p * stride + c] = rows[c * words + p] for c < 4 and p < words.
void transpose_four(const std::uint32_t* rows, std::size_t words, std::uint32_t* panel, std::size_t stride);

}  // namespace nibble::matmul
