#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "nibble/findings.hpp"

/// IEEE binary16: 1 sign, 5 exponent and 10 mantissa bits; largest finite value 65504, smallest normal 2^-14.
namespace nibble::fp16 {

inline constexpr float largest = 65504.0f;
inline constexpr float smallest_overflow = 65520.0f;  // rounds to infinity, as everything above
inline constexpr float smallest_normal = 0x1p-14f;

/// The value that 16 bits stand for. A NaN becomes quiet and keeps its sign and payload.
[[nodiscard]] constexpr float to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = (bits & 0x7FFFu) << 13;  // an fp32 exponent that is 112 too small
  if (magnitude > 0x7C00u << 13) return std::bit_cast<float>(sign | 0x7FC00000u | magnitude);
  if (magnitude == 0x7C00u << 13) return std::bit_cast<float>(sign | 0x7F800000u);
  if (magnitude >= 0x0400u << 13) return std::bit_cast<float>(sign | (magnitude + (112u << 23)));
  // Subnormal: a multiple of 2^-24, the unit of the mantissa of a number in [2^-14, 2^-13).
  const float value = std::bit_cast<float>(magnitude | (113u << 23)) - smallest_normal;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

/// Rounds to nearest, ties to even, overflow to infinity. A NaN becomes quiet and keeps its sign and upper payload.
[[nodiscard]] constexpr std::uint16_t from_float(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<std::uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
  if (magnitude >= std::bit_cast<std::uint32_t>(smallest_overflow)) return static_cast<std::uint16_t>(sign | 0x7C00u);
  if (magnitude >= std::bit_cast<std::uint32_t>(smallest_normal))
    return static_cast<std::uint16_t>(sign | (magnitude - (112u << 23) + 0xFFFu + (magnitude >> 13 & 1u)) >> 13);
  // Subnormal: the last bit of 0.5 is worth 2^-24, so the addition rounds as required.
  const std::uint32_t rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f);
  return static_cast<std::uint16_t>(sign | (rounded - std::bit_cast<std::uint32_t>(0.5f)));
}

/// from_float() of every weight. Finite weights that overflow become +-65504 with OnOverflow::clamp, and infinities
/// otherwise. NaN and infinities stay what they are, and the result counts them. Every CPU target writes the same.
/// Thread-safe, allocates nothing. Throws Error(usage) if the sizes disagree.
Findings encode(std::span<const float> weights, std::span<std::uint16_t> out,
                OnOverflow on_overflow = OnOverflow::keep);

/// to_float() of every value. Throws as encode().
void decode(std::span<const std::uint16_t> in, std::span<float> weights);

}  // namespace nibble::fp16
