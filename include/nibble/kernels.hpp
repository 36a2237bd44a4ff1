#pragma once

#include <cstddef>
#include <cstdint>

#include "nibble/error.hpp"
#include "nibble/kernels.h"

/// Operations on quantized weights in device memory. Everything here wraps the C interface of nibble/kernels.h, which
/// documents shapes, layouts, alignment and sources, and throws instead of returning error codes: Error(usage) for
/// an invalid argument, Error(internal) if CUDA fails. Programs that use it link nibble::cuda and nibble::core.
///
/// The stream is a cudaStream_t. Nothing here synchronizes or allocates, except that the first product of many rows may
/// load cuBLASLt (nibble_matmul); work can be captured into a CUDA graph.
namespace nibble::cuda {

using Stream = nibble_stream;
using FourBitWeight = nibble_four_bit;
using FourBitOutput = nibble_four_bit_output;
using Int8Weight = nibble_int8;
using Matrix = nibble_matrix;
using FourBitProduct = nibble_four_bit_product;
using Int8Product = nibble_int8_product;
using Matmul = nibble_matmul;

/// Throws an Error with the library's message if a result is not NIBBLE_OK.
inline void check(int status) {
  if (status != NIBBLE_OK) throw Error(static_cast<Errc>(status), nibble_last_error());
}

inline void dequantize(const FourBitWeight& weight, std::uint64_t first_row, const Matrix& out, Stream stream) {
  check(nibble_dequantize_four_bit(&weight, first_row, &out, stream));
}
inline void dequantize(const Int8Weight& weight, std::uint64_t first_row, const Matrix& out, Stream stream) {
  check(nibble_dequantize_int8(&weight, first_row, &out, stream));
}

[[nodiscard]] inline std::size_t quantize_workspace_bytes(std::uint64_t size, std::uint32_t blocksize, bool nested) {
  std::size_t bytes = 0;
  check(nibble_quantize_four_bit_workspace(size, blocksize, nested, &bytes));
  return bytes;
}
inline void quantize(const void* weights, nibble_dtype dtype, std::uint64_t size, const FourBitOutput& out,
                     std::uint64_t* nonfinite_blocks, void* workspace, std::size_t workspace_bytes, Stream stream) {
  check(nibble_quantize_four_bit(weights, dtype, size, &out, nonfinite_blocks, workspace, workspace_bytes, stream));
}
inline void quantize(const Matrix& weights, std::int8_t* codes, float* absmax, std::uint64_t* nonfinite_rows,
                     Stream stream) {
  check(nibble_quantize_int8(&weights, codes, absmax, nonfinite_rows, stream));
}

[[nodiscard]] inline std::size_t workspace_bytes(const Matmul& matmul) {
  std::size_t bytes = 0;
  check(nibble_matmul_four_bit_workspace(&matmul, &bytes));
  return bytes;
}
inline void run(const Matmul& matmul, void* workspace, std::size_t workspace_bytes, Stream stream) {
  check(nibble_matmul_four_bit(&matmul, workspace, workspace_bytes, stream));
}

[[nodiscard]] inline std::size_t workspace_bytes(const Matmul& matmul, const Int8Product& product) {
  std::size_t bytes = 0;
  check(nibble_matmul_int8_workspace(&matmul, &product, &bytes));
  return bytes;
}
inline void run(const Matmul& matmul, const Int8Product& product, void* workspace, std::size_t workspace_bytes,
                Stream stream) {
  check(nibble_matmul_int8(&matmul, &product, workspace, workspace_bytes, stream));
}

}  // namespace nibble::cuda
