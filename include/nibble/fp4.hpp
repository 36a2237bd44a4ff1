#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// FP4: a 4-bit floating-point number (sign, 2 bits of exponent, 1 of mantissa) with one absmax per block.
///
///   weight = codebook[code] * absmax[block]
///
/// Source: bitsandbytes 0.50 on the CPU, which defines the values and the bytes.
namespace nibble::fp4 {

/// The values of the 16 codes in [-1, 1]: the sign is bit 3. Codes 0 and 8 are both +0.
struct Codebook {
  float value[16];  // a plain array, so that device code can hold one too
};
inline constexpr Codebook codebook{{0.0f, 0.0625f / 12, 8.0f / 12, 1.0f, 4.0f / 12, 0.5f, 2.0f / 12, 0.25f,  //
                                    0.0f, -0.0625f / 12, -8.0f / 12, -1.0f, -4.0f / 12, -0.5f, -2.0f / 12, -0.25f}};

/// Encodes n weights in row-major order; the last block may be short, as if it were filled with zeros.
///
///   packed  ceil(n / 2) bytes; weight 2i is the high nibble of byte i; if n is odd, the last nibble is the code of 0
///   absmax  ceil(n / blocksize) values, in weight units
///
///   v = weight * (1 / max(absmax, 1e-38)), code = the i-th in ascending order, i = number of midpoints less than v
///
/// (from 0). Code 0 comes before code 8, and the midpoint of these two is 0: 0 < v <= 0.0026 gets code 8, zeros get
/// code 0. One rounding per operation. Weights that are not finite, CPU targets, thread safety, errors and the result
/// are as for nf4::encode().
std::size_t encode(std::span<const float> weights, std::size_t blocksize, std::span<std::uint8_t> packed,
                   std::span<float> absmax);

/// Decodes weights.size() weights: codebook[code] * absmax, rounded once. Sizes and errors as for encode().
void decode(std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
            std::span<float> weights);

}  // namespace nibble::fp4
