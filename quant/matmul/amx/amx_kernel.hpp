#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "quant/matmul/arranged.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/lines.hpp"

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

/// Decodes parts of rows of a weight into words, as AmxOperands::left has them. Of a 4-bit weight, these are its first
/// or its second term (terms.hpp). An int8 code is exact in bf16; absmax is no part of the words.
struct AmxRowDecoder {
  std::size_t multiple;  ///< n is a multiple of it

  /// n weights from whole blocks.
  void (*four_bit)(const FourBitTables& tables, const std::uint8_t* packed, const float* absmax, std::size_t blocksize,
                   std::size_t n, std::size_t term, std::uint32_t* words);
  void (*int8)(const std::int8_t* codes, std::size_t n, std::uint32_t* words);

  /// n numbers of x in bf16, in the order of four_bit(). That of int8() is the usual one.
  Arrange arrange_four_bit;
};

/// The same for pairs of rows side by side, as AmxOperands::right has them, with words of the two rows of a pair.
struct AmxPairDecoder {
  std::size_t multiple;  ///< of columns, and of blocks

  /// An even number of rows. Half of the lines of rows are asked for meanwhile.
  void (*four_bit)(const CodeRows& weights, std::size_t term, LinesAhead& ahead, std::uint32_t* panel,
                   std::size_t group_stride);
  void (*int8)(const std::int8_t* first, const std::int8_t* second, std::size_t columns, std::uint32_t* panel,
               std::size_t group_stride);
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

  AmxRowDecoder rows;
  AmxPairDecoder pairs;
};

/// Nothing unless the processor and the CPU target have AMX tiles of bf16.
[[nodiscard]] std::optional<AmxKernel> amx_kernel();

/// The decoders of an AmxKernel alone; nothing unless the processor and the CPU target multiply bf16.
[[nodiscard]] std::optional<AmxRowDecoder> amx_row_decoder();
[[nodiscard]] std::optional<AmxPairDecoder> amx_pair_decoder();

/// For tests: another kernel takes the place of amx_kernel() in products, or none, until it is restored. No product may
/// run meanwhile.
void replace_amx_kernel(const std::optional<AmxKernel>& kernel);
void restore_amx_kernel();

}  // namespace nibble::matmul
