#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/tensor.hpp"

namespace nibble {

/// Where codecs run: on a GPU if there is one that can be used, on the CPU, or on a GPU and nowhere else.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// A GPU that encodes chunks to the same bytes as the CPU. All of it is behind libnibble_cuda, which is loaded at run
/// time: from where the program's run path and the loader look, or from NIBBLE_CUDA_LIBRARY. Thread-safe; must outlive
/// the conversions and buffers that use it.
class Device {
 public:
  /// The first device that can be used; null for the CPU. DeviceChoice::automatic gives null if there is none, and
  /// loads nothing on machines without a driver. Throws Error(usage) with the reason for DeviceChoice::cuda.
  [[nodiscard]] static std::unique_ptr<Device> open(DeviceChoice choice);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] const std::string& name() const noexcept;

  /// Encodes a chunk of F32, BF16 or F16 weights as the codec of that name does, up to double quantization. Returns
  /// false if the CPU has to do it; the bytes written are then invalid. This is so if not all blocks or rows are finite
  /// (for int8: and within fp16), for other types and codecs, and after a device that was chosen automatically has
  /// failed. Throws Error(io) if a device that was asked for fails.
  [[nodiscard]] bool encode_four_bit(std::string_view codec, DType source, std::span<const std::byte> weights,
                                     std::size_t blocksize, std::span<std::uint8_t> packed, std::span<float> absmax);
  /// The same for whole rows, one for each absmax.
  [[nodiscard]] bool encode_int8(DType source, std::span<const std::byte> weights, std::span<std::int8_t> codes,
                                 std::span<float> absmax);

  /// The number of chunks that it has encoded.
  [[nodiscard]] std::uint64_t chunks() const noexcept;

  /// Failures that the CPU made up for, at most one line of each kind.
  [[nodiscard]] std::vector<std::string> warnings() const;

  /// Pinned host memory, which the device can copy from and to by itself, for the buffers of chunks. If the system does
  /// not allow that, it is ordinary memory.
  [[nodiscard]] std::pmr::memory_resource* pinned_memory() noexcept;

 private:
  struct State;
  explicit Device(DeviceChoice choice);
  std::unique_ptr<State> state_;
};

/// The memory for buffers of chunks when codecs run on `device`; null (any memory) if `device` is null.
[[nodiscard]] inline std::pmr::memory_resource* chunk_memory(Device* device) noexcept {
  return device == nullptr ? nullptr : device->pinned_memory();
}

}  // namespace nibble
