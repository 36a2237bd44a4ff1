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

/// How many blocks take the items of each weight of a launch in turn, if weight w has items[w] of them and the device
/// runs `resident` blocks at a time. Weights share these blocks so that the block with the most turns has as few as
/// possible. A weight with items has at least one block, and none has more blocks than items.
inline std::vector<u32> shares_of_blocks(std::span<const u64> items, u64 resident) {
  const auto blocks_with = [&](u64 turns) {
    u64 blocks = 0;
    for (const u64 count : items) blocks += device::ceil_div(count, turns);
    return blocks;
  };
  // More turns need fewer blocks. With as many turns as the largest weight has items, each weight has one block.
  u64 turns = 1, enough = std::max<u64>(1, *std::max_element(items.begin(), items.end()));
  while (turns < enough) {
    const u64 middle = turns + (enough - turns) / 2;
    if (blocks_with(middle) <= resident)
      enough = middle;
    else
      turns = middle + 1;
  }
  const u64 taken = blocks_with(turns);
  u64 left = resident > taken ? resident - taken : 0;  // for the first weights, so that more bytes are in flight
  std::vector<u32> shares;
  for (const u64 count : items) {
    const u64 least = device::ceil_div(count, turns), more = std::min(left, count - least);
    shares.push_back(static_cast<u32>(least + more));
    left -= more;
  }
  return shares;
}

}  // namespace nibble::kernels
