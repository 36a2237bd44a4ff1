#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace nibble {
struct FourBitTables;
}

namespace nibble::matmul {

/// Decodes parts of rows of a weight into 32-bit words, as in a TileKernel: an fp32 number, or a pair of bf16 numbers.
///
/// n is a multiple of `multiple` everywhere.
struct RowDecoder {
  /// n weights from whole blocks. The codes `ahead` bytes later are asked for from memory.
  void (*four_bit)(const FourBitTables& tables, const std::uint8_t* packed, const float* absmax, std::size_t blocksize,
                   std::size_t n, std::size_t ahead, std::uint32_t* words);
  void (*int8)(const std::int8_t* codes, float absmax, std::size_t n, std::size_t ahead, std::uint32_t* words);

  /// n numbers of x, in fp32 or bf16 as the words are, in the order of four_bit(); null if that order is the usual one.
  void (*arrange_four_bit)(const void* x, std::size_t n, std::uint32_t* words);

  std::size_t multiple = 32;
};

/// Products of few rows of x with rows of a weight that were decoded a moment ago. Numbers follow each other along the
/// depth in both; x and weights have to be in the same order.
struct RowKernel {
  std::size_t per_word;  ///< numbers in a word
  RowDecoder decoder;

  /// sums[row * m + i] += the product of weights[row] and x[i] for rows <= max_rows. Strides are in words, and `words`
  /// is a multiple of 16.
  void (*multiply)(const std::uint32_t* weights, std::size_t stride, std::size_t rows, const std::uint32_t* x,
                   std::size_t x_stride, std::size_t m, std::size_t words, float* sums);

  static constexpr std::size_t max_rows = 4;
};

/// sums[i][c] += x[i][0] * weights[0][c] + x[i][1] * weights[1][c] + ... for up to max_added_rows rows of fp32 weights,
/// i < m and c < columns, a multiple of 32. Strides are in numbers.
void add_rows(const float* weights, std::size_t stride, std::size_t rows, std::size_t columns, const float* x,
              std::size_t x_stride, std::size_t m, float* sums, std::size_t sums_stride);
inline constexpr std::size_t max_added_rows = 8;

/// Undoes RowDecoder::arrange_four_bit() of row_kernel_f32().
void restore_four_bit(const float* arranged, std::size_t n, float* numbers);

[[nodiscard]] RowKernel row_kernel_f32();
/// Nothing unless the processor and the CPU target multiply bf16.
[[nodiscard]] std::optional<RowKernel> row_kernel_bf16();

}  // namespace nibble::matmul
