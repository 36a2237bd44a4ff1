#pragma once

#include <cstdint>

namespace nibble {

/// What a cast does with finite values beyond the largest of its type (65504 for fp16).
enum class OnOverflow : std::uint8_t {
  automatic,  ///< error for fp16, keep for bf16 and fp32
  error,
  clamp,  ///< store the largest
  keep,   ///< store infinity
};

/// Special values among the encoded weights. Sums over chunks, so they do not depend on how a tensor was cut.
struct Findings {
  std::uint64_t nan = 0;
  std::uint64_t inf = 0;
  std::uint64_t overflow = 0;                  ///< finite, beyond the largest finite value of the stored type
  std::uint64_t overflow_fp32 = 0;             ///< of these, the ones that even fp32 cannot hold (from F64)
  std::uint64_t underflow = 0;                 ///< not zero, stored as zero (casts only)
  std::uint64_t subnormal = 0;                 ///< stored as a subnormal number (casts only)
  std::uint64_t first_nonfinite = UINT64_MAX;  ///< index of the first NaN, infinity or overflow

  void add(const Findings& other) noexcept {
    nan += other.nan;
    inf += other.inf;
    overflow += other.overflow;
    overflow_fp32 += other.overflow_fp32;
    underflow += other.underflow;
    subnormal += other.subnormal;
    first_nonfinite = first_nonfinite < other.first_nonfinite ? first_nonfinite : other.first_nonfinite;
  }
  bool operator==(const Findings&) const = default;
};

}  // namespace nibble
