#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "nibble/nested.hpp"

namespace nibble {

/// The codebook of double quantization for absmax values of either sign, whose offset is 0.
///
/// The values are (x + 7 |x| x) / 8 for x = -1, -126/127, ..., 1. Most absmax values lie in two humps, one of each
/// sign, at some distance from 0, and there steps should be small; but a few values that are much larger must not leave
/// the others with too few codes. Of such polynomials, the matrices of a real model lose least with this one. Code 255
/// is a second 1 and is not used.
inline constexpr std::array<float, 256> signed_codebook = [] {
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int x = code < 255 ? code - 127 : 127, magnitude = x < 0 ? -x : x;
    values[static_cast<std::size_t>(code)] = static_cast<float>(x * (127 + 7 * magnitude)) / (8 * 127 * 127);
  }
  return values;
}();
inline constexpr std::span<const float> used_signed_values = std::span(signed_codebook).first(255);
static_assert(signed_codebook[nested::code_of_zero] == 0);

}  // namespace nibble
