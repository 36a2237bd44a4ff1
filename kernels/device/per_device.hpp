// A number for each device that the host sets once and then only reads.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>

#include "kernels/device/types.hpp"

namespace nibble::device {

/// Of each device 0 at first; it only grows. Thread-safe, and one load where the number is large enough. A reset of the
/// device (cudaDeviceReset) is not noticed.
class NumberPerDevice {
 public:
  /// The number of the device. If it is less than `needed`, raise() makes it so and returns the new one; what raise()
  /// throws is passed on, and then the number stays. Of several threads one at a time calls its raise().
  template <class Raise> u32 at_least(int device, u32 needed, Raise&& raise) {
    const auto i = static_cast<std::size_t>(device);
    const bool kept = i < numbers_.size();
    if (const u32 number = kept ? numbers_[i].load(std::memory_order_acquire) : 0; number >= needed) return number;
    const std::lock_guard lock(mutex_);
    if (const u32 number = kept ? numbers_[i].load(std::memory_order_relaxed) : 0; number >= needed) return number;
    const u32 raised = raise();
    if (kept) numbers_[i].store(raised, std::memory_order_release);
    return raised;
  }

 private:
  std::array<std::atomic<u32>, 64> numbers_{};
  std::mutex mutex_;
};

}  // namespace nibble::device
