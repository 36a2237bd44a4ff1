#pragma once

#include <cstdint>
#include <span>

/// FP8: 8-bit floating point with one scale per region, which is a row, a tile or a whole matrix.
///
///   weight = code * scale
///
/// Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022. Bytes as torch casts them, scales as
/// compressed-tensors 0.20 computes them from fp32 weights.
namespace nibble::fp8 {

enum class Format : std::uint8_t {
  e4m3,  ///< 4 bits of exponent, 3 of mantissa, as torch.float8_e4m3fn: 0x7F is NaN, and there is no infinity
  e5m2,  ///< 5 bits of exponent, 2 of mantissa, as torch.float8_e5m2: 0x7C is infinity, and what is above is NaN
};

/// The largest finite number of a format.
[[nodiscard]] constexpr float largest(Format format) noexcept { return format == Format::e4m3 ? 448.0f : 57344.0f; }

/// Encodes the n weights of a region, one code for each.
///
///   scale = absmax / largest(format), code = weight / scale rounded to the format
///
/// with one rounding per operation, halves to even. A scale of 0 becomes the machine epsilon of fp32, so a region of
/// zeros decodes to exact zeros. In a region with a NaN or infinity, and only there, NaN counts as 0 and an infinity as
/// the largest finite magnitude of the region.
///
/// Returns the scale. Every CPU target writes the same bytes. Thread-safe, allocates nothing. Throws Error(usage) if
/// the sizes disagree.
float encode(Format format, std::span<const float> weights, std::span<std::uint8_t> codes);

/// Encodes (a part of) a region whose scale is known. Weights have to be finite; those beyond largest(format) * scale
/// become the largest code.
void encode(Format format, std::span<const float> weights, float scale, std::span<std::uint8_t> codes);

/// Decodes (a part of) a region: code * scale, rounded once to fp32. Throws as encode().
void decode(Format format, std::span<const std::uint8_t> codes, float scale, std::span<float> weights);

}  // namespace nibble::fp8
