#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace nibble {

/// The largest magnitude of weights that share a scale and that several chunks have parts of. Parts may be added
/// concurrently.
class ScannedMagnitude {
 public:
  /// `part_absmax` is that of the part's finite weights; `part_is_plain` says that a codec takes all of them as they
  /// are.
  void add(float part_absmax, bool part_is_plain) {
    if (!part_is_plain) is_plain_.store(false, std::memory_order_relaxed);
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(part_absmax);
    std::uint32_t seen = absmax_bits_.load(std::memory_order_relaxed);
    while (seen < bits && !absmax_bits_.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  }

  [[nodiscard]] float absmax() const { return std::bit_cast<float>(absmax_bits_.load(std::memory_order_relaxed)); }
  [[nodiscard]] bool is_plain() const { return is_plain_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint32_t> absmax_bits_{0};  // which order as the magnitudes do
  std::atomic<bool> is_plain_{true};
};

/// Bytes that a scan keeps for each, for memory estimates.
inline constexpr std::uint64_t scanned_magnitude_bytes = sizeof(ScannedMagnitude);

}  // namespace nibble
