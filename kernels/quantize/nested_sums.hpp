// The sums behind the offset of double quantization.
//
// The offset is the mean of all absmax values, added in the order of nested::offset(): groups of 16384 first, then
// their sums. This launch adds the groups. It comes between the launch that writes absmax (four_bit_quantize.hpp) and
// the one that encodes it (nested_quantize.hpp).
#pragma once
#include <cstddef>

#include "kernels/device/device.hpp"
#include "nibble/nested.hpp"

namespace nibble::kernels {
using namespace device;

/// Thread block i adds group i in the order of nested::group_sum(): each thread adds one of the 64 partial sums, which
/// is a chain of 256 additions. It has 128 loads in flight, so a group takes little longer than its chain.
struct NestedSums {
  static constexpr u32 threads = nested::partial_sums, min_blocks = 1;

  Global<const float> absmax;
  u64 size;             // of absmax
  Global<double> sums;  // one per group

  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(double, upper, 32);
    dependency_launch();
    dependency_wait();
    const u64 first = u64{block_x()} * nested::group;
    const double own = partial_sum(first);
    if (warp_id() == 1) sts(upper + lane_id(), own);
    sync_threads();
    if (warp_id() == 1) return;
    double sum = add_rn(own, lds(upper + lane_id()));
    NIBBLE_UNROLL for (u32 half = 16; half > 0; half /= 2) sum = add_rn(sum, shfl_down(~0u, sum, half));
    if (lane_id() == 0) st(sums + i64{block_x()}, sum);
  }

 private:
  static_assert(threads == 64, "two warps: the second hands its sums to the first");
  static constexpr u32 rows = nested::group / threads, rows_ahead = 128;
  static_assert(rows % rows_ahead == 0);

  // Value i of the group belongs to the thread i mod 64. The load of a value begins as soon as the one 128 rows before
  // it is added. A zero past the end changes no sum.
  [[nodiscard]] NIBBLE_DEVICE double partial_sum(u64 first) const {
    const u32 count = size - first < nested::group ? static_cast<u32>(size - first) : u32{nested::group};
    u32 left = count > thread_id() ? ceil_div(count - thread_id(), threads) : 0;  // rows with a value for this thread
    Global<const float> from = absmax + static_cast<i64>(first + thread_id());
    float values[rows_ahead];
    const auto load = [&](u32 k) { values[k] = k < left ? ld(from + k * threads) : 0.0f; };
    NIBBLE_UNROLL for (u32 k = 0; k < rows_ahead; ++k) load(k);
    double sum = 0;
    NIBBLE_NO_UNROLL for (u32 row = 0; row < rows; row += rows_ahead) {
      from = from + rows_ahead * threads;
      left -= left < rows_ahead ? left : rows_ahead;
      NIBBLE_UNROLL for (u32 k = 0; k < rows_ahead; ++k) {
        sum = add_rn(sum, static_cast<double>(values[k]));
        load(k);
      }
    }
    return sum;
  }
};

}  // namespace nibble::kernels
