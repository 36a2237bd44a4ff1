#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace nibble {

/// The code of double quantization whose value is nearest to v, and the one on the other side of v. Beyond the first or
/// last value they are the two codes at that end.
struct CodesAround {
  std::uint8_t nearest, other;
};

/// Finds the codes around v among 2 to 256 values in [-1, 1]. The values ascend, no two are equal, and they have to
/// outlive it.
class CodesByValue {
 public:
  explicit CodesByValue(std::span<const float> values) : values_(values) {
    for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
      const float begin = static_cast<float>(bucket) * (2.0f / buckets) - 1;
      const auto above = static_cast<std::size_t>(std::ranges::upper_bound(values, begin) - values.begin());
      first_[bucket] = static_cast<std::uint8_t>(std::clamp<std::size_t>(above, 1, values.size() - 1));
    }
  }

  /// NaN counts as -1.
  [[nodiscard]] CodesAround around(float v) const {
    const float within = v > -1 ? std::min(v, 1.0f) : -1.0f;
    std::size_t above = first_[std::min(static_cast<std::size_t>((within + 1) * (buckets / 2.0f)), buckets - 1)];
    while (above > 1 && values_[above - 1] > within) --above;  // within + 1 was rounded up to the next bucket
    while (above + 1 < values_.size() && values_[above] <= within) ++above;
    // Without a branch, which the processor would mispredict about half the time.
    const std::size_t up = values_[above] - within < within - values_[above - 1] ? 1 : 0;
    return {static_cast<std::uint8_t>(above - 1 + up), static_cast<std::uint8_t>(above - up)};
  }

 private:
  static constexpr std::size_t buckets = 2048;  // with at most one value of signed_codebook, and 16 of nested::codebook

  std::span<const float> values_;
  std::array<std::uint8_t, buckets> first_;  // the first value above a bucket's begin
};

}  // namespace nibble
