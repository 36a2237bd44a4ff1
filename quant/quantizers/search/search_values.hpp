#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "quant/codecs/four_bit/four_bit.hpp"

namespace nibble {

/// The values of a codebook for the sums of ScaleSearch, in units of 1/4095, by the number of midpoints below them.
///
/// On targets that look up 32 words at once (AVX-512), that number is found as FourBitTables::bucket does, but from
/// y = x / 8 of the position x on its grid:
///
///   value[(y + bucket[y >> 8 & 31]) >> 8],  for y in [-4096, 4095]
///
/// A bucket of NF4 or FP4 has at most one midpoint. The sums of a number k are in [512 k, 512 k + 511].
struct SearchValues {
  explicit SearchValues(const FourBitTables& tables);

  static constexpr float unit = 4095;                         ///< the integer of 1
  static constexpr int end = 4096;                            ///< of the range of y
  alignas(64) std::array<std::int16_t, 32> bucket{};          ///< what a bucket adds to y
  alignas(64) std::array<std::int16_t, 32> value{};           ///< each twice
  alignas(16) std::array<std::uint8_t, 16> lower{}, upper{};  ///< for other targets: the bytes of each value

  [[nodiscard]] int of(std::size_t number) const { return value[2 * number]; }
  /// How many midpoints have a position below 8 y.
  [[nodiscard]] static std::size_t number(const FourBitTables& tables, int y);
};

}  // namespace nibble
