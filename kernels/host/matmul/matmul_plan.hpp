// What the plans of products share: how many blocks divide k between them. Shapes alone decide, so that every device
// adds in the same order.
#pragma once
#include <algorithm>
#include <span>
#include <vector>

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

/// How many blocks a launch has for each of its weights, of which weight w has items[w] items. A grid has equally many
/// blocks for each weight. A block takes items in turn, and ends at once if there is none for it; those that have an
/// item are at most `resident`, which is how many the device runs at a time.
inline u32 blocks_for_each(std::span<const u64> items, u64 resident) {
  std::vector<u64> ascending(items.begin(), items.end());
  std::sort(ascending.begin(), ascending.end());
  u64 left = resident, weights = ascending.size();
  for (const u64 count : ascending) {
    const u64 share = left / weights;
    if (count > share) return static_cast<u32>(std::max<u64>(share, 1));
    left -= count;
    --weights;
  }
  return static_cast<u32>(ascending.back());  // all of them at a time
}

}  // namespace nibble::kernels
