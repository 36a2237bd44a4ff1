#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "quant/matmul/arranged.hpp"

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

/// Products of few rows of x with rows of codes, which are decoded in registers: weights are multiplied without being
/// stored before.
struct CodeKernel {
  Arrangement x;               ///< for a multiple of depth_multiple numbers
  std::size_t max_m;           ///< rows of x
  std::size_t min_blocksize;   ///< of weights
  std::size_t depth_multiple;  ///< CodeRows::n is a multiple of it

  /// sums[row * m + i] += the product of the row of weights and x[i]. x is all m rows, each with x_stride words of a
  /// part. Where an absmax or a number of x is not finite, neither is the sum, but it may be another infinity or NaN
  /// than that of the products.
  void (*multiply)(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m, float* sums);
};

[[nodiscard]] CodeKernel code_kernel_f32();
/// For x in bf16, by integers of 16 bits; nothing where the CPU target does not have them, or has AVX-512.
[[nodiscard]] std::optional<CodeKernel> code_kernel_int16();
/// The same by AVX512_VNNI; nothing unless the processor and the CPU target have it.
[[nodiscard]] std::optional<CodeKernel> code_kernel_vnni();
/// The same by AVX512_VNNI and AVX512_VBMI; nothing unless the processor and the CPU target have both.
[[nodiscard]] std::optional<CodeKernel> code_kernel_vbmi();
/// Nothing unless the processor and the CPU target multiply bf16.
[[nodiscard]] std::optional<CodeKernel> code_kernel_bf16();

/// The most rows of x that add_code_rows() takes.
[[nodiscard]] std::size_t max_m_of_add_code_rows();

/// sums[i][c] += x[i][0] * weights[0][c] + x[i][1] * weights[1][c] + ... in fp32, for i < m, which is at most
/// max_m_of_add_code_rows(). The sums of a row are in the order of RowDecoder::arrange_four_bit(). Strides are in
/// numbers.
void add_code_rows(const CodeRows& weights, const float* x, std::size_t x_stride, std::size_t m, float* sums,
                   std::size_t sums_stride);

/// add_code_rows() for one row of x in integers of 16 bits, for x in bf16 and at most so many columns. It takes 8 rows
/// of codes in blocks of 64 or more. It adds nothing and returns false for others, and where integers would lose more
/// than products in bf16 do.
using AddIntegers = bool (*)(const CodeRows& weights, const float* x, float* sums);
inline constexpr std::size_t max_columns_of_added_integers = 8192;
/// For x86 without AVX-512; null on other CPU targets, and where SSSE3 is missing.
[[nodiscard]] AddIntegers add_code_rows_int16();
/// By AVX512_VNNI, for columns in multiples of 128; null unless the processor and the CPU target have it.
[[nodiscard]] AddIntegers add_code_rows_vnni();
/// By AVX512_VNNI and AVX512_VBMI, for columns in multiples of 128; null unless the processor and the CPU target have
/// both.
[[nodiscard]] AddIntegers add_code_rows_vbmi();

}  // namespace nibble::matmul
