#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nibble {

/// The code of double quantization whose value is nearest to v, and the one on the other side of v. Beyond the first or
/// last value they are the two codes at that end.
struct CodesAround {
  std::uint8_t nearest, other;
};

/// The values ascend, and no two are equal.
[[nodiscard]] inline CodesAround codes_around(std::span<const float> values, float v) {
  const auto last = static_cast<std::ptrdiff_t>(values.size()) - 1;
  const auto next = std::ranges::upper_bound(values, v) - values.begin();
  const auto below = static_cast<std::uint8_t>(std::clamp<std::ptrdiff_t>(next - 1, 0, last - 1));
  const auto above = static_cast<std::uint8_t>(below + 1);
  const bool is_above = values[above] - v < v - values[below];
  return is_above ? CodesAround{above, below} : CodesAround{below, above};
}

}  // namespace nibble
