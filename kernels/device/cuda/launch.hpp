// Pointers, indices and launches on a GPU.
#pragma once
#include <cuda_runtime.h>

#include <array>
#include <bit>
#include <string>
#include <type_traits>

#include "kernels/device/kernel.hpp"
#include "kernels/device/per_device.hpp"
#include "kernels/device/types.hpp"

#define NIBBLE_DEVICE __device__ __forceinline__
#define NIBBLE_UNROLL _Pragma("unroll")
#define NIBBLE_NO_UNROLL _Pragma("unroll 1")
#define NIBBLE_CONSTANT __constant__
#define NIBBLE_SHARED(T, name, n)  \
  __shared__ T name##_elements[n]; \
  const ::nibble::device::Shared<T> name { name##_elements }

namespace nibble::device {

/// One raw pointer: free.
template <class T> class Global {
 public:
  Global() = default;
  NIBBLE_DEVICE_AND_HOST Global(T* pointer) : pointer_(pointer) {}
  template <class U>
  requires(!std::is_const_v<U> && std::is_same_v<const U, T>) NIBBLE_DEVICE_AND_HOST Global(Global<U> other)
      : pointer_(other.unchecked()) {}
  NIBBLE_DEVICE_AND_HOST Global operator+(i64 i) const { return {pointer_ + i}; }
  template <class U> NIBBLE_DEVICE_AND_HOST Global<U> as() const { return {reinterpret_cast<U*>(pointer_)}; }
  NIBBLE_DEVICE_AND_HOST bool is_null() const { return pointer_ == nullptr; }
  NIBBLE_DEVICE_AND_HOST T* unchecked() const { return pointer_; }

 private:
  T* pointer_ = nullptr;
};

template <class T> class Shared {
 public:
  Shared() = default;
  NIBBLE_DEVICE Shared(T* pointer) : pointer_(pointer) {}
  NIBBLE_DEVICE Shared operator+(i64 i) const { return {pointer_ + static_cast<i32>(i)}; }
  template <class U> NIBBLE_DEVICE Shared<U> as() const { return {reinterpret_cast<U*>(pointer_)}; }
  NIBBLE_DEVICE Shared part(i64 first, i64 /*count*/) const { return {pointer_ + static_cast<i32>(first)}; }
  NIBBLE_DEVICE u32 address() const { return static_cast<u32>(__cvta_generic_to_shared(pointer_)); }
  /// Of the same array, the place with that address().
  NIBBLE_DEVICE Shared with_address(u32 address) const { return {static_cast<T*>(__cvta_shared_to_generic(address))}; }
  NIBBLE_DEVICE T* unchecked() const { return pointer_; }

 private:
  T* pointer_ = nullptr;
};

NIBBLE_DEVICE u32 thread_id() { return threadIdx.x; }
NIBBLE_DEVICE u32 lane_id() { return threadIdx.x & 31; }
NIBBLE_DEVICE u32 warp_id() { return threadIdx.x >> 5; }
NIBBLE_DEVICE u32 block_x() { return blockIdx.x; }
NIBBLE_DEVICE u32 block_y() { return blockIdx.y; }
NIBBLE_DEVICE u32 block_z() { return blockIdx.z; }
NIBBLE_DEVICE u32 grid_x() { return gridDim.x; }
NIBBLE_DEVICE u32 grid_y() { return gridDim.y; }
NIBBLE_DEVICE u32 grid_z() { return gridDim.z; }

NIBBLE_DEVICE Shared<u8> dynamic_shared() {
  extern __shared__ __align__(16) unsigned char nibble_dynamic_shared[];
  return {nibble_dynamic_shared};
}

namespace detail {

/// Whether the code that is being compiled has the kernel's body.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <class Kernel> inline constexpr bool has_body = !needs_sm90a<Kernel>();
#else
template <class Kernel> inline constexpr bool has_body = true;
#endif

}  // namespace detail

template <class Kernel>
__global__ void __launch_bounds__(detail::has_body<Kernel> ? Kernel::threads : threads_without_body,
                                  min_blocks_of<Kernel>()) run(const __grid_constant__ Kernel kernel) {
  if constexpr (detail::has_body<Kernel>)
    kernel();
  else
    __trap();
}

namespace detail {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  (void)cudaGetLastError();  // the runtime keeps it for whoever asks next, whose call may have done nothing wrong
  throw LaunchError(static_cast<int>(error), std::string(what) + ": " + cudaGetErrorString(error));
}
inline int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}
inline int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}
inline int attribute(cudaDeviceAttr which) { return attribute(which, current_device()); }

/// Loads the code of the current device, if that was not done yet. CUDA_FORCE_PTX_JIT and the targets that the library
/// was compiled for decide which it is.
inline LoadedCode loaded_code(const void* function) {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, function);
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    (void)cudaGetLastError();
    return {};
  }
  check(error, "cudaFuncGetAttributes");
  return {static_cast<u32>(attributes.ptxVersion), static_cast<u32>(attributes.binaryVersion),
          static_cast<u32>(attributes.maxThreadsPerBlock)};
}

/// What the host has found out or asked for, for each device: the shared memory that launches of the kernel may have,
/// and, yes (2) or no (1), whether its code waits for dependencies and whether it is the kernel's.
template <class Kernel> inline NumberPerDevice granted_shared_bytes;
template <class Kernel> inline NumberPerDevice waits_or_not;
template <class Kernel> inline NumberPerDevice loaded_or_not;
/// The clusters of 1, 2, 4 and 8 blocks that run at a time, plus 1, because 0 means not asked yet.
template <class Kernel> inline std::array<NumberPerDevice, std::bit_width(max_cluster)> resident_clusters_and_1;
/// The static shared memory of a block of the kernel, plus 1.
template <class Kernel> inline NumberPerDevice static_shared_bytes_and_1;

/// A launch with more than every device has must request it. The request holds for all launches of the kernel.
template <class Kernel> void request_shared_bytes(std::size_t dynamic_shared_bytes) {
  const std::size_t most = max_shared_bytes_of<Kernel>(dynamic_shared_bytes);
  if (most <= default_shared_bytes) return;
  granted_shared_bytes<Kernel>.at_least(current_device(), static_cast<u32>(most), [&] {
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(run<Kernel>), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(most)),
          "cudaFuncSetAttribute");
    return static_cast<u32>(most);
  });
}
inline cudaLaunchAttribute attribute_of_cluster(u32 blocks) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = blocks;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  return attribute;
}

}  // namespace detail

/// Starts `kernel` on the stream, for each thread of each block, and does not wait for it. `cluster` blocks in a row
/// along x run at the same time and reach each other's shared memory. Throws LaunchError.
template <class Kernel>
void launch(Grid grid, std::size_t dynamic_shared_bytes, StreamRef stream, const Kernel& kernel,
            Overlap overlap = Overlap::no, u32 cluster = cluster_of<Kernel>()) {
  static_assert(std::is_trivially_copyable_v<Kernel>, "a kernel is copied to the device");
  static_assert(Kernel::threads % 32 == 0 && Kernel::threads <= 1024);
  static_assert(sizeof(Kernel) <= max_parameter_bytes);
  const auto function = reinterpret_cast<const void*>(run<Kernel>);
  detail::request_shared_bytes<Kernel>(dynamic_shared_bytes);
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid.x, grid.y, grid.z);
  config.blockDim = dim3(Kernel::threads);
  config.dynamicSmemBytes = dynamic_shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  if (cluster > 1) attributes[config.numAttrs++] = detail::attribute_of_cluster(cluster);
  if (overlap == Overlap::yes && detail::waits_or_not<Kernel>.at_least(detail::current_device(), 1, [&] {
        return waits_for_dependencies(detail::loaded_code(function)) ? 2u : 1u;
      }) == 2) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  void* arguments[] = {const_cast<Kernel*>(&kernel)};
  detail::check(cudaLaunchKernelExC(&config, function, arguments), "cudaLaunchKernelExC");
}

/// Whether the current device has code of a kernel that needs_sm90a. The device is asked once for each kernel.
template <class Kernel> bool is_loaded() {
  return detail::loaded_or_not<Kernel>.at_least(detail::current_device(), 1, [] {
    return is_code_of<Kernel>(detail::loaded_code(reinterpret_cast<const void*>(run<Kernel>))) ? 2u : 1u;
  }) == 2;
}

/// The clusters of a kernel that the current device runs at a time. That may be fewer than multiprocessors / cluster,
/// since the blocks of a cluster run on neighbouring multiprocessors, and 0 for a part of a device (MIG).
template <class Kernel> u32 resident_clusters(u32 cluster, std::size_t dynamic_shared_bytes) {
  const auto count = [&] {
    detail::request_shared_bytes<Kernel>(dynamic_shared_bytes);
    cudaLaunchAttribute attribute = detail::attribute_of_cluster(cluster);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(cluster);
    config.blockDim = dim3(Kernel::threads);
    config.dynamicSmemBytes = dynamic_shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    detail::check(cudaOccupancyMaxActiveClusters(&clusters, reinterpret_cast<const void*>(run<Kernel>), &config),
                  "cudaOccupancyMaxActiveClusters");
    return static_cast<u32>(clusters) + 1;
  };
  return detail::resident_clusters_and_1<Kernel>[std::countr_zero(cluster)].at_least(detail::current_device(), 1,
                                                                                     count) -
         1;
}

/// Of a block of the kernel, in the code that the current device has loaded.
template <class Kernel> u32 static_shared_bytes() {
  return detail::static_shared_bytes_and_1<Kernel>.at_least(detail::current_device(), 1, [] {
    cudaFuncAttributes attributes{};
    detail::check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(run<Kernel>)),
                  "cudaFuncGetAttributes");
    return static_cast<u32>(attributes.sharedSizeBytes) + 1;
  }) - 1;
}

/// Of the current device.
inline MultiprocessorLimits multiprocessor_limits() {
  return {static_cast<u32>(detail::attribute(cudaDevAttrMaxThreadsPerMultiProcessor)),
          static_cast<u32>(detail::attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor)),
          static_cast<u32>(detail::attribute(cudaDevAttrReservedSharedMemoryPerBlock))};
}

/// Of the current device; the capability as in sm_90: 10 * major + minor.
inline u32 multiprocessors() { return static_cast<u32>(detail::attribute(cudaDevAttrMultiProcessorCount)); }
inline u32 capability() {
  return static_cast<u32>(10 * detail::attribute(cudaDevAttrComputeCapabilityMajor) +
                          detail::attribute(cudaDevAttrComputeCapabilityMinor));
}

}  // namespace nibble::device
