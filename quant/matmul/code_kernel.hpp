#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace nibble {
struct FourBitTables;
}

namespace nibble::matmul {

/// Rows of 4-bit codes, from whole blocks.
struct CodeRows {
  const FourBitTables& tables;
  const std::uint8_t* packed;  ///< of the first row
  std::size_t packed_stride;   ///< bytes from row to row
  const float* absmax;         ///< of the first row
  std::size_t absmax_stride;
  std::size_t blocksize;
  std::size_t rows, n;  ///< rows, and weights of each that count
  std::size_t ahead;    ///< the codes so many bytes later are asked for from memory
};

/// Products of one to four rows of x with rows of codes, which are decoded in registers: weights are multiplied without
/// being stored before. More rows of x would not fit the registers.
struct CodeKernel {
  std::size_t per_word;       ///< numbers of x in a 32-bit word: one in fp32, or two in bf16
  std::size_t max_m;          ///< rows of x
  std::size_t min_blocksize;  ///< of weights

  /// n numbers of x, a multiple of min_blocksize, in the order in which they are multiplied. They are in fp32 or bf16,
  /// and need no alignment.
  void (*arrange)(const void* x, std::size_t n, std::uint32_t* words);

  /// sums[row * m + i] += the product of the row of weights and x[i]. A row of x has x_stride words.
  void (*multiply)(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m, float* sums);
};

[[nodiscard]] CodeKernel code_kernel_f32();
/// Nothing unless the processor and the CPU target multiply bf16.
[[nodiscard]] std::optional<CodeKernel> code_kernel_bf16();

/// sums[i][c] += x[i][0] * weights[0][c] + x[i][1] * weights[1][c] + ... in fp32, for i < m, which is at most max_m of
/// code_kernel_f32(). The sums of a row are in the order of RowKernel::arrange_four_bit(). Strides are in numbers.
void add_code_rows(const CodeRows& weights, const float* x, std::size_t x_stride, std::size_t m, float* sums,
                   std::size_t sums_stride);

}  // namespace nibble::matmul
