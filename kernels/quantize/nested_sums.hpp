// The sums behind the offset of double quantization, added by the launch that writes absmax.
//
// The offset is the mean of all absmax, added in the order of nested::offset(): groups of 16384 first, then their sums.
// A thread block that has written its absmax adds one to a counter, and whoever is the last of a group's adds that
// group. So almost all groups are added while others still quantize, and the order of additions never depends on which
// block was the last.
#pragma once
#include <cstddef>

#include "kernels/device/device.hpp"
#include "nibble/nested.hpp"

namespace nibble::kernels {
using namespace device;

struct NestedSums {
  Global<u32> arrived;  // the counters: 0 before the launch, and again after it; null: nothing is to be added
  Global<const float> absmax;
  u64 size;             // of absmax
  u32 counter_bits;     // log2 of the absmax values that a counter is for: one group, or several if counters are few
  Global<double> sums;  // one per group

  /// For one thread, after a barrier behind the block's absmax: how many blocks of this counter came before.
  [[nodiscard]] NIBBLE_DEVICE u32 arrive(u64 counter) const {
    threadfence();
    return atomic_add(arrived + static_cast<i64>(counter), 1);
  }

  /// For the same thread: whether it was the last of so many. Then their absmax can be read after another barrier.
  [[nodiscard]] NIBBLE_DEVICE bool is_last(u64 counter, u32 before, u32 blocks) const {
    if (before + 1 != blocks) return false;
    st(arrived + static_cast<i64>(counter), u32{0});  // for the next launch
    threadfence();
    return true;
  }

  /// For all threads of that block: adds the groups of the counter, each by two warps.
  template <u32 Threads> NIBBLE_DEVICE void add_groups(u64 counter) const {
    NIBBLE_SHARED(double, upper, Threads);
    const u64 begin = counter << counter_bits, end = begin + (u64{1} << counter_bits);
    u32 odd = 0;  // which half of `upper` is used in turn, so that one barrier per group is enough
    for (u64 first = begin + u64{thread_id() / pair} * nested::group; first < end && first < size;
         first += u64{Threads / pair} * nested::group) {
      add_group(first, upper.part(thread_id() / pair * pair + odd * 32, 32));
      odd ^= 1;
    }
  }

 private:
  static constexpr u32 pair = nested::partial_sums, rows = nested::group / pair, rows_ahead = 32;
  static_assert(pair == 64, "two warps: the second hands its sums to the first");

  // In the order of nested::group_sum(): a thread has one of its 64 partial sums. That is a chain of 256 additions. As
  // soon as a value is added, the load of another begins, so that each thread has 32 in flight.
  NIBBLE_DEVICE void add_group(u64 first, Shared<double> upper) const {
    const u32 lane = thread_id() % pair, group = nested::group;
    const u32 count = size - first < group ? static_cast<u32>(size - first) : group;
    u32 left = count > lane ? ceil_div(count - lane, pair) : 0;  // rows with a value for this thread
    Global<const float> from = absmax + static_cast<i64>(first + lane);
    float values[rows_ahead];
    // A zero past the end changes no sum.
    const auto load = [&](u32 k) { values[k] = k < left ? ld(from + k * pair) : 0.0f; };
    NIBBLE_UNROLL for (u32 k = 0; k < rows_ahead; ++k) load(k);
    double sum = 0;
    NIBBLE_NO_UNROLL for (u32 row = 0; row < rows; row += rows_ahead) {
      from = from + rows_ahead * pair;
      left -= left < rows_ahead ? left : rows_ahead;
      NIBBLE_UNROLL for (u32 k = 0; k < rows_ahead; ++k) {
        sum = add_rn(sum, static_cast<double>(values[k]));
        load(k);
      }
    }
    if (warp_id() % 2 == 1) sts(upper + lane_id(), sum);
    bar_sync(1 + thread_id() / pair, pair);
    if (warp_id() % 2 == 1) return;
    sum = add_rn(sum, lds(upper + lane_id()));
    NIBBLE_UNROLL for (u32 half = 16; half > 0; half /= 2) sum = add_rn(sum, shfl_down(~0u, sum, half));
    if (lane_id() == 0) st(sums + static_cast<i64>(first / nested::group), sum);
  }
};

}  // namespace nibble::kernels
