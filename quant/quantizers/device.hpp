#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>

#include "nibble/device.hpp"
#include "nibble/tensor.hpp"

namespace nibble {

/// What conversions need from a device. The device must outlive it. Thread-safe.
class DeviceEncoder {
 public:
  explicit DeviceEncoder(Device& device) noexcept : state_(*device.state_) {}

  /// Whether a device can encode weights of this type.
  [[nodiscard]] static bool takes(DType source) noexcept;

  /// Encodes a chunk of F32, BF16 or F16 weights as the 4-bit codec with that codebook does, up to double quantization.
  /// Returns false if the CPU has to do it; the bytes written are then invalid. This is so if not all blocks or rows
  /// are finite (for int8: and within fp16), for other types and codebooks, and after a device that was chosen
  /// automatically has failed. Throws Error(io) if a device that was asked for fails.
  [[nodiscard]] bool encode_four_bit(std::span<const float> codebook, DType source, std::span<const std::byte> weights,
                                     std::size_t blocksize, std::span<std::uint8_t> packed,
                                     std::span<float> absmax) const;
  /// The same for whole rows, one for each absmax.
  [[nodiscard]] bool encode_int8(DType source, std::span<const std::byte> weights, std::span<std::int8_t> codes,
                                 std::span<float> absmax) const;

  /// Pinned host memory for the buffers of chunks; the device can copy from and to it by itself. If the system does not
  /// allow that, it is ordinary memory.
  [[nodiscard]] std::pmr::memory_resource* pinned_memory() const noexcept;

 private:
  Device::State& state_;
};

/// The memory for buffers of chunks when codecs run on `device`; null (any memory) if `device` is null.
[[nodiscard]] inline std::pmr::memory_resource* chunk_memory(Device* device) noexcept {
  return device == nullptr ? nullptr : DeviceEncoder(*device).pinned_memory();
}

}  // namespace nibble
