// What the GPU implementation and the simulator share, and host code that any C++ compiler compiles.
#pragma once
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#if defined(__CUDACC__)
#define NIBBLE_DEVICE_AND_HOST __host__ __device__ __forceinline__
#else
#define NIBBLE_DEVICE_AND_HOST
#endif

namespace nibble::device {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;

/// What one thread loads or stores in one access: 8 or 16 bytes, aligned to their size.
struct alignas(8) u32x2 {
  u32 x, y;
};
struct alignas(16) u32x4 {
  u32 x, y, z, w;
};
struct alignas(8) f32x2 {
  float x, y;
};
struct alignas(16) f32x4 {
  float x, y, z, w;
};

/// 16-bit floats as their bits: C++20 has no types for them, and CUDA's exist only in code for GPUs.
struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};

/// Rounds up: how many pieces of `size` hold n.
template <class T> NIBBLE_DEVICE_AND_HOST constexpr T ceil_div(T n, T size) { return (n + size - 1) / size; }

/// Blocks of a launch.
struct Grid {
  u32 x = 1, y = 1, z = 1;
};

/// A cudaStream_t that somebody else owns; a pointer to nothing for callers who do not include CUDA's headers.
using StreamRef = void*;

/// The layout of a tile in shared memory; the numbers are those of wgmma's descriptor.
enum class Swizzle : u32 { none = 0, bytes128 = 1 };

/// Along which dimension a tile's rows of 128 bytes lie: along k, or along the other one (m of A, n of B).
enum class Major : u32 { k = 0, mn = 1 };

/// A launch that the device refused; `code` is the cudaError_t.
class LaunchError : public std::runtime_error {
 public:
  LaunchError(int code, const std::string& text) : std::runtime_error(text), code_(code) {}
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  int code_;
};

}  // namespace nibble::device
