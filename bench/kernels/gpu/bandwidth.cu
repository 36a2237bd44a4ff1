#include "bench/kernels/gpu/bandwidth.hpp"

#include "kernels/device/device.hpp"

namespace nibble::bench {
namespace {

using namespace device;

constexpr u32 in_flight = 4, tile_bytes = 512 * in_flight * 16;

/// A block has 32 KiB, a thread four vectors of it at a time: enough in flight to fill the memory's pipeline.
struct CopyBytes {
  static constexpr u32 threads = 512, min_blocks = 4;
  Global<const u32x4> in;
  Global<u32x4> out;

  NIBBLE_DEVICE void operator()() const {
    const i64 first = i64{block_x()} * threads * in_flight + thread_id();
    u32x4 bits[in_flight];
    NIBBLE_UNROLL for (u32 i = 0; i < in_flight; ++i) bits[i] = ldcs(in + (first + i * threads));
    NIBBLE_UNROLL for (u32 i = 0; i < in_flight; ++i) stcs(out + (first + i * threads), bits[i]);
  }
};

struct ReadBytes {
  static constexpr u32 threads = 512, min_blocks = 4;
  Global<const u32x4> in;
  Global<u32> out;

  NIBBLE_DEVICE void operator()() const {
    const i64 first = i64{block_x()} * threads * in_flight + thread_id();
    u32x4 bits[in_flight];
    NIBBLE_UNROLL for (u32 i = 0; i < in_flight; ++i) bits[i] = ldcs(in + (first + i * threads));
    // All bits decide: had the first vector alone a say, the compiler would not load the others without it.
    u32x4 sum{};
    NIBBLE_UNROLL for (u32 i = 0; i < in_flight; ++i) {
      sum = {sum.x ^ bits[i].x, sum.y ^ bits[i].y, sum.z ^ bits[i].z, sum.w ^ bits[i].w};
    }
    if ((sum.x & sum.y & sum.z & sum.w) == 0xffff'ffffu) st(out, sum.x);
  }
};

struct Empty {
  static constexpr u32 threads = 256;

  NIBBLE_DEVICE void operator()() const {}
};

struct AddOffset {
  static constexpr u32 threads = 256;
  Global<float> values;
  Global<const float> offset;
  i64 count;

  NIBBLE_DEVICE void operator()() const {
    const i64 i = i64{block_x()} * threads + thread_id();
    if (i < count) st(values + i, add_rn(ld(values + i), ld(offset)));
  }
};

}  // namespace

void copy_bytes(const void* in, void* out, std::size_t bytes, cudaStream_t stream) {
  launch({static_cast<u32>(bytes / tile_bytes)}, 0, stream,
         CopyBytes{static_cast<const u32x4*>(in), static_cast<u32x4*>(out)});
}

void read_bytes(const void* in, void* out, std::size_t bytes, cudaStream_t stream) {
  launch({static_cast<u32>(bytes / tile_bytes)}, 0, stream,
         ReadBytes{static_cast<const u32x4*>(in), static_cast<u32*>(out)});
}

void launch_empty(unsigned blocks, cudaStream_t stream) { launch({blocks}, 0, stream, Empty{}); }

void add_offset(float* values, const float* offset, std::size_t n, cudaStream_t stream) {
  launch({static_cast<u32>(ceil_div<std::size_t>(n, AddOffset::threads))}, 0, stream,
         AddOffset{values, offset, static_cast<i64>(n)});
}

}  // namespace nibble::bench
