#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "nibble/findings.hpp"

/// bfloat16: the upper half of an fp32 number, 1 sign, 8 exponent and 7 mantissa bits.
namespace nibble::bf16 {

inline constexpr float smallest_overflow = 0x1.FFp127f;  // rounds to infinity, as everything above

/// The value that 16 bits stand for. Exact, and keeps every bit of a NaN.
[[nodiscard]] constexpr float to_float(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Rounds to nearest, ties to even, overflow to infinity. A NaN becomes quiet and keeps its sign and upper payload:
/// the usual NaN becomes 0x7FC0. (torch has 0x7FC0 in scalar code and 0xFFFF in vector code.)
[[nodiscard]] constexpr std::uint16_t from_float(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

/// from_float() of every weight. NaN and infinities stay what they are; the result counts them. Every CPU target
/// writes the same. Thread-safe, allocates nothing. Throws Error(usage) if the sizes disagree.
Findings encode(std::span<const float> weights, std::span<std::uint16_t> out);

/// to_float() of every value. Throws as encode().
void decode(std::span<const std::uint16_t> in, std::span<float> weights);

}  // namespace nibble::bf16
