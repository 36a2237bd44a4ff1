#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::matmul {

/// Rows of int8 codes.
struct Int8CodeRows {
  const std::int8_t* codes;  ///< of the first row
  std::size_t stride;        ///< bytes from row to row
  std::size_t rows, n;       ///< rows, and weights of each that count: a multiple of 32
  std::size_t ahead;         ///< the codes so many bytes later are asked for from memory
};

/// `value` as a factor of codes or of sums of their products. NaN unless it is 0 or from 1e-30 to 1e30 in magnitude: a
/// product might be infinite or lose bits, so weights have to be multiplied.
[[nodiscard]] float factor_of_int8_codes(float value);

/// sums[row * m + i] += codes[row][0] * x[i][0] + codes[row][1] * x[i][1] + ..., without absmax, with x in fp32. Codes
/// are multiplied in registers, without being stored as fp32 before.
void multiply_int8_codes(const Int8CodeRows& weights, const float* x, std::size_t x_stride, std::size_t m, float* sums);

/// sums[i][c] += factors[i][0] * codes[0][c] + factors[i][1] * codes[1][c] + ... for i < m and c < n. Strides are in
/// numbers.
void add_int8_code_rows(const Int8CodeRows& weights, const float* factors, std::size_t factors_stride, std::size_t m,
                        float* sums, std::size_t sums_stride);

}  // namespace nibble::matmul
