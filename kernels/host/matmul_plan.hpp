// What the plans of products share: how many blocks divide k between them. Shapes alone decide, so that every device
// adds in the same order.
#pragma once
#include <algorithm>

#include "kernels/device/types.hpp"

namespace nibble::kernels {

using device::u32;
using device::u64;

/// The most blocks that divide k, if it has enough steps.
inline constexpr u64 max_splits = 16;

/// A product splits k only up to so many groups of blocks that add their sums. If several weights divide n, they may
/// have up to four times as many: NIBBLE_COUNTERS.
inline constexpr u64 max_groups = 1024;

struct Splits {
  u32 count;
  u64 cost;
};

/// The number of splits with the lowest cost, if that is at least a twentieth less than without. `may_split` is whether
/// there are counters for it.
template <class Cost> constexpr Splits cheapest_splits(u64 steps, bool may_split, Cost&& cost_of) {
  Splits best{1, cost_of(u64{1})};
  for (u64 splits = 2; may_split && splits <= std::min(steps, max_splits); ++splits) {
    const u64 cost = cost_of(splits);
    if (cost < (best.count == 1 ? best.cost / 20 * 19 : best.cost)) best = {static_cast<u32>(splits), cost};
  }
  return best;
}

}  // namespace nibble::kernels
