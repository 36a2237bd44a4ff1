#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace nibble {

/// Where codecs run: automatic (a GPU if usable), CPU only, or GPU only.
enum class DeviceChoice : std::uint8_t { automatic, cpu, cuda };

/// A GPU that encodes chunks to the same bytes as the CPU. All of it is behind libnibble_cuda, which is loaded at run
/// time: from where the program's run path and the loader look, or from NIBBLE_CUDA_LIBRARY. Thread-safe; must outlive
/// the conversions that use it.
class Device {
 public:
  /// The first device that can be used; null for the CPU. DeviceChoice::automatic gives null if there is none, and
  /// loads nothing on machines without a driver. Throws Error(usage) with the reason for DeviceChoice::cuda.
  [[nodiscard]] static std::unique_ptr<Device> open(DeviceChoice choice);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] const std::string& name() const noexcept;

  /// The number of chunks that it has encoded.
  [[nodiscard]] std::uint64_t chunks() const noexcept;

  /// Failures that the CPU made up for, at most one line of each kind.
  [[nodiscard]] std::vector<std::string> warnings() const;

 private:
  friend class DeviceEncoder;  // what conversions ask of a device
  struct State;
  explicit Device(DeviceChoice choice);
  std::unique_ptr<State> state_;
};

}  // namespace nibble
