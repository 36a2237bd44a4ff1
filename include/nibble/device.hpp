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
  /// The first device that can be used; null for the CPU. DeviceChoice::automatic is null where there is none, and
  /// loads nothing on machines without a driver. Throws Error(usage) with the reason for DeviceChoice::cuda.
  [[nodiscard]] static std::unique_ptr<Device> open(DeviceChoice choice);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] const std::string& name() const noexcept;

  /// Encodes a chunk of F32, BF16 or F16 weights as the codec of that name does, up to double quantization. False if
  /// the CPU has to do it, and what is written counts for nothing: where not all blocks or rows are finite (for int8:
  /// and within fp16), for other types and codecs, and after a failure of a device that was chosen automatically.
  /// Throws Error(io) if a device fails that was asked for.
  [[nodiscard]] bool encode_four_bit(std::string_view codec, DType source, std::span<const std::byte> weights,
                                     std::size_t blocksize, std::span<std::uint8_t> packed, std::span<float> absmax);
  /// The same for whole rows, one for each absmax.
  [[nodiscard]] bool encode_int8(DType source, std::span<const std::byte> weights, std::span<std::int8_t> codes,
                                 std::span<float> absmax);

  /// Chunks that it has encoded.
  [[nodiscard]] std::uint64_t chunks() const noexcept;

  /// What went wrong and was made up for, at most one line of each kind.
  [[nodiscard]] std::vector<std::string> warnings() const;

  /// Memory of the host that the device copies from and to by itself: for the buffers of chunks. Where the system does
  /// not allow that, it is ordinary memory.
  [[nodiscard]] std::pmr::memory_resource* pinned_memory() noexcept;

 private:
  struct State;
  explicit Device(DeviceChoice choice);
  std::unique_ptr<State> state_;
};

/// Where buffers of chunks are to come from when codecs run on `device`; null if that is null: no matter where from.
[[nodiscard]] inline std::pmr::memory_resource* chunk_memory(Device* device) noexcept {
  return device == nullptr ? nullptr : device->pinned_memory();
}

}  // namespace nibble
