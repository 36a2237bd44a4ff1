// Devices, memory and copies by CUDA's runtime. tests/simulator/backend/stream.hpp has the same for the simulator.
#pragma once
#include <cuda_runtime.h>

#include <memory>
#include <string>
#include <type_traits>

#include "kernels/device/cuda/launch.hpp"

namespace nibble::device {

inline int device_count() {
  int count = 0;
  detail::check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  return count;
}
inline std::string device_name(int device) {
  cudaDeviceProp properties;
  detail::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return properties.name;
}
/// Of any device, without a context on it.
inline u32 capability_of(int device) {
  return static_cast<u32>(10 * detail::attribute(cudaDevAttrComputeCapabilityMajor, device) +
                          detail::attribute(cudaDevAttrComputeCapabilityMinor, device));
}
/// Of this thread.
inline int current_device() { return detail::current_device(); }
/// For this thread; the first call for a device makes its context.
inline void use_device(int device) { detail::check(cudaSetDevice(device), "cudaSetDevice"); }

inline void pin(void* memory, std::size_t bytes) {
  detail::check(cudaHostRegister(memory, bytes, cudaHostRegisterPortable), "cudaHostRegister");
}
inline void unpin(void* memory) noexcept {
  if (cudaHostUnregister(memory) != cudaSuccess) (void)cudaGetLastError();  // it was not pinned, or the context is lost
}

/// Zeros, in order with what else is on the stream.
inline void clear_memory(void* memory, std::size_t bytes, StreamRef stream) {
  detail::check(cudaMemsetAsync(memory, 0, bytes, static_cast<cudaStream_t>(stream)), "cudaMemsetAsync");
}

/// Memory of the current device.
class Memory {
 public:
  Memory() = default;
  Memory(const char* /*name*/, std::size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    detail::check(cudaMalloc(&memory, bytes), "cudaMalloc");
    memory_.reset(memory);
  }
  [[nodiscard]] char* data() const { return static_cast<char*>(memory_.get()); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const noexcept { (void)cudaFree(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

/// A stream of the current device and a way to wait for it. Operations on it run in order.
class Stream {
 public:
  Stream() {
    cudaStream_t stream = nullptr;
    detail::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    stream_.reset(stream);
    // A thread that waits sleeps: others have weights to read and chunks to write meanwhile.
    cudaEvent_t event = nullptr;
    detail::check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming), "cudaEventCreate");
    done_.reset(event);
  }
  [[nodiscard]] StreamRef get() const { return stream_.get(); }

  void copy_to_device(void* to, const void* from, std::size_t bytes) {
    detail::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_.get()), "cudaMemcpyAsync");
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes) {
    detail::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_.get()), "cudaMemcpyAsync");
  }
  void clear(void* memory, std::size_t bytes) { clear_memory(memory, bytes, get()); }
  void wait() {
    detail::check(cudaEventRecord(done_.get(), stream_.get()), "cudaEventRecord");
    detail::check(cudaEventSynchronize(done_.get()), "cudaEventSynchronize");
  }
  /// Call this after a failure: afterwards no operation that was begun accesses memory any more.
  void abandon() noexcept {
    if (cudaStreamSynchronize(stream_.get()) != cudaSuccess) (void)cudaGetLastError();
  }

 private:
  struct Destroy {
    void operator()(cudaStream_t stream) const noexcept { (void)cudaStreamDestroy(stream); }
    void operator()(cudaEvent_t event) const noexcept { (void)cudaEventDestroy(event); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Destroy> stream_;
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy> done_;
};

}  // namespace nibble::device
