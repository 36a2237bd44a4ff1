#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "quant/matmul/words/row_kernel.hpp"
#include "quant/matmul/words/tile.hpp"

namespace nibble::matmul {

/// Of an AMX tile: 16 rows of 16 words. A word is an fp32 number, or a pair of bf16 numbers that follow each other
/// along the depth, the dimension that is summed over.
inline constexpr std::size_t amx_rows = 16, amx_words = 16, amx_depth = 2 * amx_words;

/// What is multiplied, in words of bf16.
struct AmxOperands {
  const std::uint32_t* left;  ///< its rows, a multiple of amx_rows
  std::size_t left_rows;
  std::size_t left_stride;     ///< words from row to row
  const std::uint32_t* right;  ///< its columns, in groups of amx_words: word p of column c of a group is at
                               ///< p * amx_words + c
  std::size_t right_groups;
  std::size_t right_stride;  ///< words from group to group
  std::size_t words;         ///< along the depth, a multiple of amx_words
};

/// As PairDecoder, for groups of amx_words columns, but four_bit() takes any even number of rows, and asks for half of
/// the lines meanwhile. Neither of the two asks for the codes `ahead` bytes later.
struct AmxPairDecoder {
  std::size_t multiple;  ///< of columns, and of blocks
  void (*four_bit)(const CodeRows& weights, LinesAhead& ahead, std::uint32_t* panel, std::size_t group_stride);
  void (*int8)(const Int8Pair& weights, std::size_t columns, std::uint32_t* panel, std::size_t group_stride);
};

/// Products in AMX tiles, and how weights are decoded for them.
struct AmxKernel {
  /// A thread calls begin() before multiply(), and end() afterwards.
  void (*begin)();
  void (*end)();

  /// sums[r][c] = the product of row r and column c, to which the sum before is added unless `is_first`. For every
  /// amx_words words of the depth, products of the first numbers of words are summed up in order, so are those of the
  /// second numbers, and both are added up, then added to the sum. Subnormal numbers count as 0 (Intel's manual,
  /// TDPBF16PS). The lines that are left are asked for meanwhile.
  void (*multiply)(const AmxOperands& operands, bool is_first, float* sums, std::size_t sums_stride, LinesAhead& ahead);

  RowDecoder rows;  ///< of whole groups of 64 numbers
  AmxPairDecoder pairs;
};

/// Nothing unless the processor and the CPU target have AMX tiles of bf16.
[[nodiscard]] std::optional<AmxKernel> amx_kernel();

/// The decoders of an AmxKernel alone; nothing unless the processor and the CPU target multiply bf16.
[[nodiscard]] std::optional<RowDecoder> amx_row_decoder();
[[nodiscard]] std::optional<AmxPairDecoder> amx_pair_decoder();

/// For tests: another kernel takes the place of amx_kernel() in products, or none. No product may run meanwhile.
void replace_amx_kernel(std::optional<std::optional<AmxKernel>> kernel);

}  // namespace nibble::matmul
