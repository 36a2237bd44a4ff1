// Double quantization: absmax values in 8 bits, the bytes of nested::offset() and nested::encode().
//
// Three launches over 1 / 64 of the weights (at block size 64): they read 8 bytes per absmax and write 1, so 0.14 bytes
// per weight, most of which the L2 cache still has from the launch that made them. Their cost is latency: the sums are
// in a fixed order, which determines the length of their chains.
#pragma once
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/device/device.hpp"
#include "nibble/nested.hpp"

namespace nibble::kernels {
using namespace device;

/// The fp64 sum of each group, in the order of nested::group_sum(): a thread has one of its 64 partial sums.
struct NestedGroupSums {
  static constexpr u32 threads = nested::partial_sums;
  static constexpr u32 rows = nested::group / nested::partial_sums, rows_at_once = 32;
  static_assert(threads == 64, "two warps: the second hands its sums to the first");

  Global<const float> absmax;
  u64 size;
  Global<double> sums;  // one per group

  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(double, upper, 32);
    const u64 first = u64{block_x()} * nested::group;
    double sum = 0;
    for (u32 row = 0; row < rows && first + row * threads < size; row += rows_at_once) {
      // All loads are on their way before the first addition. A zero past the end changes no sum.
      float values[rows_at_once];
      NIBBLE_UNROLL for (u32 k = 0; k < rows_at_once; ++k) {
        const u64 at = first + (row + k) * threads + thread_id();
        values[k] = at < size ? ld(absmax + static_cast<i64>(at)) : 0.0f;
      }
      NIBBLE_UNROLL for (u32 k = 0; k < rows_at_once; ++k) sum = add_rn(sum, static_cast<double>(values[k]));
    }
    if (warp_id() == 1) sts(upper + lane_id(), sum);
    sync_threads();
    if (warp_id() == 1) return;
    sum = add_rn(sum, lds(upper + lane_id()));
    NIBBLE_UNROLL for (u32 half = 16; half > 0; half /= 2) sum = add_rn(sum, shfl_down(~0u, sum, half));
    if (lane_id() == 0) st(sums + block_x(), sum);
  }
};

/// The offset: sums of groups, added in order by one warp, through the number of values.
struct NestedOffset {
  static constexpr u32 threads = 32;

  Global<const double> sums;
  u64 groups, size;
  Global<float> offset;

  NIBBLE_DEVICE void operator()() const {
    double sum = 0;
    for (u64 first = 0; first < groups; first += threads) {
      const u64 at = first + lane_id();
      const double own = at < groups ? ld(sums + static_cast<i64>(at)) : 0.0;
      NIBBLE_UNROLL for (u32 i = 0; i < threads; ++i) sum = add_rn(sum, shfl_idx(~0u, own, i));
    }
    if (lane_id() == 0) st(offset, size == 0 ? 0.0f : static_cast<float>(div_rn(sum, static_cast<double>(size))));
  }
};

/// v must exceed threshold[i] to have a code above i: a midpoint, or, if code i is odd and a tie goes up, the number
/// before it.
struct NestedThresholds {
  float value[256];
};
inline constexpr NestedThresholds nested_thresholds = [] {
  NestedThresholds thresholds{};
  for (u32 i = 0; i < 255; ++i) {
    const float midpoint = 0.5f * (nested::codebook[i] + nested::codebook[i + 1]);
    const u32 bits = __builtin_bit_cast(u32, midpoint);
    thresholds.value[i] = i % 2 == 0 ? midpoint : __builtin_bit_cast(float, midpoint > 0 ? bits - 1 : bits + 1);
  }
  thresholds.value[255] = std::numeric_limits<float>::infinity();
  return thresholds;
}();

/// Codes and nested absmax; a warp has a nested block of 256, a lane 8 of them. Eight steps of a binary search in
/// shared memory find the code: 24 instructions, or half of one per weight, less than it takes to load a table that
/// would save them.
struct NestedCodes {
  static constexpr u32 threads = 256, warps = threads / 32, run = 8;
  static_assert(nested::blocksize == 32 * run);

  Global<const float> absmax;  // aligned to 16 bytes
  u64 size;
  Global<const float> offset;
  bool aligned;  // codes to 8 bytes
  Global<u8> codes;
  Global<float> nested_absmax;
  NestedThresholds thresholds = nested_thresholds;

  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(float, threshold, 256);
    sts(threshold + thread_id(), thresholds.value[thread_id()]);
    sync_threads();
    const u64 block = u64{block_x()} * warps + warp_id(), first = block * nested::blocksize + lane_id() * run;
    if (block * nested::blocksize >= size) return;
    const bool whole = first + run <= size;

    float v[run];
    if (whole) {
      const f32x4 low = ld((absmax + static_cast<i64>(first)).as<const f32x4>());
      const f32x4 high = ld((absmax + static_cast<i64>(first + 4)).as<const f32x4>());
      v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
      v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    }
    const float mean = ld(offset);
    float largest = 0;
    NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) {
      if (!whole) v[i] = first + i < size ? ld(absmax + static_cast<i64>(first + i)) : mean;
      v[i] = sub_rn(v[i], mean);
      largest = max_nan(largest, std::fabs(v[i]));
    }
    NIBBLE_UNROLL for (u32 bits = 16; bits > 0; bits /= 2) largest = max_nan(largest, shfl_xor(~0u, largest, bits));
    if (lane_id() == 0) st(nested_absmax + static_cast<i64>(block), largest);

    const float inverse = rcp_rn(largest);
    u32 words[2] = {0, 0};
    NIBBLE_UNROLL for (u32 i = 0; i < run; ++i) {
      // 0 times an infinite inverse would be NaN.
      const u32 code = code_of(v[i] == 0 ? 0.0f : mul_rn(v[i], inverse), threshold);
      words[i / 4] |= code << i % 4 * 8;
      if (!(whole && aligned) && first + i < size) st(codes + static_cast<i64>(first + i), static_cast<u8>(code));
    }
    if (whole && aligned) st((codes + static_cast<i64>(first)).as<u32x2>(), u32x2{words[0], words[1]});
  }

 private:
  NIBBLE_DEVICE static u32 code_of(float v, Shared<float> threshold) {
    u32 code = 0;
    NIBBLE_UNROLL for (u32 step = 128; step > 0; step /= 2) if (v > lds(threshold + (code + step - 1))) code += step;
    return code;
  }
};

}  // namespace nibble::kernels
