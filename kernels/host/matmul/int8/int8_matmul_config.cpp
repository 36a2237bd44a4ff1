#include "kernels/host/matmul/int8/int8_matmul_config.hpp"

#include <algorithm>

namespace nibble::kernels::int8_matmul {
namespace {

using device::ceil_div;

/// With the number of splits that costs least.
///
/// Blocks take tiles in turn, so the time is that of the one with the most. Partial sums and x come from the L2 cache,
/// which counts half.
LaunchConfig config_with(const Tile& tile, u64 m, u64 n, u64 k, bool may_split) {
  const u64 slots = multiprocessors_to_fill * tile.min_blocks(), tiles = ceil_div<u64>(n, tile.block_n());
  const u64 steps = std::max<u64>(1, ceil_div<u64>(k, tile.block_k()));
  const Splits best = cheapest_splits(steps, may_split, [&](u64 splits) {
    const u64 turns = std::max<u64>(1, ceil_div(tiles * splits, slots));
    const u64 k_of_a_split = ceil_div(steps, splits) * tile.block_k();
    const u64 bytes_of_a_tile = tile.block_n() * k_of_a_split + m * k_of_a_split * 2 / 2;
    const u64 bytes_of_sums = splits > 1 ? costs.bytes_of_adding + splits * m * n * 4 : 0;
    return slots * (turns * (bytes_of_a_tile + costs.bytes_of_an_end) + costs.bytes_of_a_start) + bytes_of_sums;
  });
  return {tile, best.count, best.cost};
}

}  // namespace

LaunchConfig config_for(u64 m, u64 n, u64 k) {
  LaunchConfig best{};
  const u64 rows = std::min(m, max_m);
  for (const Choice& choice : choices) {
    if (rows < choice.min_m || rows > choice.max_m) continue;
    const u64 groups = ceil_div<u64>(n, choice.tile.block_n()) * ceil_div<u64>(m, choice.tile.block_m());
    const LaunchConfig config = config_with(choice.tile, rows, n, k, groups <= max_groups);
    if (best.splits == 0 || config.cost < best.cost) best = config;
  }
  return best;
}

}  // namespace nibble::kernels::int8_matmul
