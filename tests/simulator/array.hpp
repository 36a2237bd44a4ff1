// Arrays in the device's memory, for tests and benchmarks: on a GPU (where NIBBLE_ON_GPU is defined) or simulated.
#pragma once
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/device/types.hpp"
#include "tests/simulator/site.hpp"
#if defined(NIBBLE_ON_GPU)
#include <cuda_runtime.h>
#else
#include "tests/simulator/global_memory.hpp"
#endif

namespace nibble::device {

/// What kernels do with an array. The simulator holds them to it; a GPU does not.
enum class ArrayUse {
  constant,   // read, and no other kernel writes it: weights, which may be read before dependency_wait
  input,      // read
  workspace,  // read and written
  output,     // each byte written once, none left out
};

struct ArrayInfo {
  ArrayUse use = ArrayUse::workspace;
  std::size_t offset_bytes = 0;  // the address is a multiple of 256, and this
  std::string name = "array";    // in messages
};

#if defined(NIBBLE_ON_GPU)
namespace detail {

// Bytes on a GPU, between bytes that must stay what they are.
class ArrayMemory {
 public:
  ArrayMemory(std::size_t bytes, const ArrayInfo& info) : bytes_(bytes), offset_(guard + info.offset_bytes) {
    check(cudaMalloc(&memory_, offset_ + bytes + guard));
    clear();
  }
  ~ArrayMemory() { cudaFree(memory_); }
  ArrayMemory(const ArrayMemory&) = delete;
  ArrayMemory& operator=(const ArrayMemory&) = delete;
  [[nodiscard]] char* data() const { return static_cast<char*>(memory_) + offset_; }
  void clear() { check(cudaMemset(memory_, 0xff, offset_ + bytes_ + guard)); }
  void from_host(const void* source) { check(cudaMemcpy(data(), source, bytes_, cudaMemcpyHostToDevice)); }
  void to_host(void* target, const Site&) const {
    std::vector<unsigned char> all(offset_ + bytes_ + guard);
    check(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((i < offset_ || i >= offset_ + bytes_) && all[i] != 0xff)
        throw std::runtime_error("a kernel wrote outside of its array, at byte " +
                                 std::to_string(static_cast<long long>(i) - static_cast<long long>(offset_)));
    if (bytes_ > 0) std::memcpy(target, all.data() + offset_, bytes_);
  }

 private:
  static constexpr std::size_t guard = 256;
  static void check(cudaError_t error) {
    if (error != cudaSuccess) throw LaunchError(static_cast<int>(error), cudaGetErrorString(error));
  }
  void* memory_ = nullptr;
  std::size_t bytes_, offset_;
};

}  // namespace detail
#else
namespace detail {

class ArrayMemory {
 public:
  ArrayMemory(std::size_t bytes, const ArrayInfo& info)
      : region_(info.name, bytes,
                info.use == ArrayUse::constant ? simulator::Access::constant
                : info.use == ArrayUse::input  ? simulator::Access::read_only
                : info.use == ArrayUse::output ? simulator::Access::write_once
                                               : simulator::Access::read_write,
                info.offset_bytes) {}
  [[nodiscard]] char* data() const { return region_.base(); }
  void clear() { region_.reset(); }
  void from_host(const void* source) {
    if (region_.bytes() > 0) std::memcpy(region_.base(), source, region_.bytes());
    if (region_.access() != simulator::Access::write_once) region_.set_known();
  }
  void to_host(void* target, const Site& site) const {
    region_.require_complete(site);
    if (region_.bytes() > 0) std::memcpy(target, region_.base(), region_.bytes());
  }

 private:
  simulator::Region region_;
};

}  // namespace detail
#endif

/// Owns n elements. New elements are NaN, and in the simulator unknown: no kernel may read them.
template <class T> class DeviceArray {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>);

 public:
  explicit DeviceArray(std::size_t n, ArrayInfo info = {})
      : size_(n), memory_(std::make_unique<detail::ArrayMemory>(n * sizeof(T), info)) {}

  static DeviceArray constant(const std::vector<T>& host, ArrayInfo info = {}) {
    info.use = ArrayUse::constant;
    return from(host, info);
  }
  static DeviceArray input(const std::vector<T>& host, ArrayInfo info = {}) {
    info.use = ArrayUse::input;
    return from(host, info);
  }
  static DeviceArray output(std::size_t n, ArrayInfo info = {}) {
    info.use = ArrayUse::output;
    return DeviceArray(n, info);
  }
  static DeviceArray workspace(const std::vector<T>& host, ArrayInfo info = {}) {
    info.use = ArrayUse::workspace;
    return from(host, info);
  }

  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_->data()); }
  [[nodiscard]] std::size_t size() const { return size_; }

  /// As new: to run a kernel again on the same output.
  void clear() { memory_->clear(); }

  /// Waits for the device. Throws Failure(not_written) for an output that is not complete.
  [[nodiscard]] std::vector<T> to_host(Site site = Site::current()) const {
    std::vector<T> host(size_);
    memory_->to_host(host.data(), site);
    return host;
  }

 private:
  static DeviceArray from(const std::vector<T>& host, const ArrayInfo& info) {
    DeviceArray array(host.size(), info);
    array.memory_->from_host(host.data());
    return array;
  }

  std::size_t size_;
  std::unique_ptr<detail::ArrayMemory> memory_;
};

}  // namespace nibble::device
