// Double quantization: absmax values in 8 bits, the bytes of nested::offset() and nested::encode().
//
// One launch over 1 / 64 of the weights (at block size 64), after those that write absmax and the sums of its groups
// (nested_sums.hpp). It reads 4 bytes per absmax and writes 1, so 0.08 bytes per weight, most of which the L2 cache
// still has. Its cost is latency: that of a launch, of the offset, and of eight steps of a search.
#pragma once
#include <cmath>
#include <cstddef>

#include "kernels/device/device.hpp"
#include "nibble/nested.hpp"

namespace nibble::kernels {
using namespace device;

/// A binary tree of thresholds, the root at 1, the children of node i at 2 i and 2 i + 1. Its nodes in ascending order
/// are threshold 0 ... 254; v must exceed threshold i to have a code above i. That is a midpoint, or, if code i is odd
/// and a tie goes up, the number before it. (In this order the 2^l nodes of level l are neighbours, in banks of their
/// own. In ascending order all nodes of the middle levels would be in two or four banks.)
struct NestedThresholds {
  float node[256];  // node[0] is not used
};
inline constexpr NestedThresholds nested_thresholds = [] {
  NestedThresholds thresholds{};
  for (u32 level = 0; level < 8; ++level)
    for (u32 k = 0; k < 1u << level; ++k) {
      const u32 i = (2 * k + 1) * (128 >> level) - 1;
      const float midpoint = 0.5f * (nested::codebook[i] + nested::codebook[i + 1]);
      const u32 bits = __builtin_bit_cast(u32, midpoint);
      thresholds.node[(1u << level) + k] =
          i % 2 == 0 ? midpoint : __builtin_bit_cast(float, midpoint > 0 ? bits - 1 : bits + 1);
    }
  return thresholds;
}();

/// The offset, codes and nested absmax; a warp takes nested blocks of 256 in turn, a lane 8 values of each. Every
/// thread block computes the offset for itself: that is a chain of as many additions as there are groups, one in 1 Mi
/// weights at block size 64, and waiting for one block that does it would take a launch.
struct NestedCodes {
  static constexpr u32 threads = 256, min_blocks = 5, warps = threads / 32, run = 8;
  static_assert(nested::blocksize == 32 * run);

  Global<const float> absmax;  // aligned to 16 bytes
  u64 size;
  Global<const double> sums;  // of groups of absmax
  Global<float> offset;       // written
  bool aligned;               // codes to 8 bytes
  Global<u8> codes;
  Global<float> nested_absmax;
  NestedThresholds thresholds = nested_thresholds;

  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(float, tree, 256);
    NIBBLE_SHARED(float, mean, 1);
    sts(tree + thread_id(), thresholds.node[thread_id()]);
    dependency_wait();
    u64 block = u64{block_x()} * warps + warp_id();
    const u64 blocks = ceil_div<u64>(size, nested::blocksize);
    float v[run];
    load(block, v);  // before the offset, so that both are in flight at once
    if (warp_id() == 0) {
      const float value = mean_of_all();
      if (lane_id() == 0) sts(mean, value);
      if (block_x() + 1 == grid_x() && lane_id() == 0) st(offset, value);
    }
    sync_threads();
    for (; block < blocks; load(block, v)) {
      encode(block, v, lds(mean), tree);
      block += u64{grid_x()} * warps;
    }
  }

 private:
  // The order of nested::offset(). A zero past the end changes no sum.
  [[nodiscard]] NIBBLE_DEVICE float mean_of_all() const {
    const u64 groups = ceil_div<u64>(size, nested::group);
    const auto load = [&](u64 at) { return at < groups ? ld(sums + static_cast<i64>(at)) : 0.0; };
    double sum = 0, next = load(lane_id());
    for (u64 first = 0; first < groups; first += 32) {
      const double own = next;
      next = load(first + 32 + lane_id());
      NIBBLE_UNROLL for (u32 i = 0; i < 32; ++i) sum = add_rn(sum, shfl_idx(~0u, own, i));
    }
    return size == 0 ? 0.0f : static_cast<float>(div_rn(sum, static_cast<double>(size)));
  }

  // A lane's 8 values of a nested block; zeros past the end.
  NIBBLE_DEVICE void load(u64 block, float (&v)[run]) const {
    const u64 first = block * nested::blocksize + lane_id() * run;
    const Global<const float> from = absmax + static_cast<i64>(first);
    if (first + run <= size) {
      const f32x4 low = ld(from.as<const f32x4>()), high = ld((from + 4).as<const f32x4>());
      v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
      v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    } else {
      NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) v[i] = first + i < size ? ld(from + i) : 0.0f;
    }
  }

  NIBBLE_DEVICE void encode(u64 block, float (&v)[run], float mean, Shared<float> tree) const {
    const u64 first = block * nested::blocksize + lane_id() * run;
    const bool whole = first + run <= size;
    float largest = 0;
    NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) {
      v[i] = whole || first + i < size ? sub_rn(v[i], mean) : 0.0f;
      largest = max_nan(largest, std::fabs(v[i]));
    }
    NIBBLE_UNROLL for (u32 bits = 16; bits > 0; bits /= 2) largest = max_nan(largest, shfl_xor(~0u, largest, bits));
    if (lane_id() == 0) st(nested_absmax + static_cast<i64>(block), largest);

    const float inverse = rcp_rn(largest);
    u32 words[2] = {0, 0};
    NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) {
      // 0 times an infinite inverse would be NaN.
      const u32 code = code_of(v[i] == 0 ? 0.0f : mul_rn(v[i], inverse), tree);
      words[i / 4] |= code << i % 4 * 8;
      if (!(whole && aligned) && first + i < size) st(codes + static_cast<i64>(first + i), static_cast<u8>(code));
    }
    if (whole && aligned) st((codes + static_cast<i64>(first)).as<u32x2>(), u32x2{words[0], words[1]});
  }

  // From the root to below the lowest level, whose 256 indices are the codes. Whether v is above a threshold is the
  // sign of a difference, which is exact; one shift adds it to the index.
  [[nodiscard]] NIBBLE_DEVICE static u32 code_of(float v, Shared<float> tree) {
    u32 index = 0;  // within the level
    NIBBLE_UNROLL for (u32 level = 0; level < 8; ++level) {
      const float threshold = lds(tree + (1u << level) + index);
      index = index << 1 | bits_of(sub_rn(threshold, v)) >> 31;
    }
    return index;
  }
};

}  // namespace nibble::kernels
