#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

/// NF4: 4-bit NormalFloat with one absmax per block.
///
///   weight = codebook[code] * absmax[block]
///
/// Source: Dettmers et al., "QLoRA", 2023, section 3 and appendix E. Bytes: bitsandbytes 0.50 on the CPU.
namespace nibble::nf4 {

/// The values of the 16 codes, ascending, in [-1, 1]; value[7] is exactly 0.
struct Codebook {
  float value[16];  // a plain array, so that device code can hold one too
};
inline constexpr Codebook codebook{
    {-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
     -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
     0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f}};

/// Encodes n weights in row-major order; the last block may be short, as if it were filled with zeros.
///
///   packed  ceil(n / 2) bytes; weight 2i is the high nibble of byte i; if n is odd, the last nibble is the code of 0
///   absmax  ceil(n / blocksize) values, in weight units
///
///   v = weight * (1 / max(absmax, 1e-38)), code = number of midpoints of the codebook that are less than v
///
/// with one rounding per operation, so a tie goes to the lower code. A block of zeros has absmax 0 and decodes to
/// exact zeros. In a block with a NaN or infinity, and only there, NaN counts as 0 and an infinity as the largest
/// finite magnitude of the block.
///
/// Returns the number of such blocks. Every CPU target writes the same bytes. Thread-safe, allocates nothing.
/// Throws Error(usage) if blocksize is not one of 32, 64, ..., 4096 or a size disagrees.
std::size_t encode(std::span<const float> weights, std::size_t blocksize, std::span<std::uint8_t> packed,
                   std::span<float> absmax);

/// Decodes weights.size() weights: codebook[code] * absmax, rounded once. Sizes and errors as for encode().
void decode(std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
            std::span<float> weights);

}  // namespace nibble::nf4
