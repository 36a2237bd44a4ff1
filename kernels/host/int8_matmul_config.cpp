#include "kernels/host/int8_matmul_config.hpp"

#include <algorithm>

namespace nibble::kernels::int8_matmul {
namespace {

using device::ceil_div;

/// Multiprocessors that blocks are meant to fill: those of an H100 and an H200. A constant, so that every device adds
/// in the same order.
constexpr u64 multiprocessors_to_fill = 132;

// What is not reading weights, as the bytes of weights that could be read meanwhile. Estimates, none of them measured.
constexpr u64 bytes_of_a_start = 12'000;    // of a block: a launch, the first loads of x
constexpr u64 bytes_of_an_end = 6'000;      // of a tile: the sums; 100 instructions
constexpr u64 bytes_of_adding = 2'000'000;  // of all multiprocessors, while the last blocks add the sums of splits
constexpr u64 max_groups = 1024;            // of blocks that add splits; at most NIBBLE_COUNTERS

/// The number of splits with the lowest cost, if that is at least a twentieth less than without.
///
/// Blocks take tiles in turn, so the time is that of the one with the most. Partial sums and x come from the L2 cache,
/// which counts half.
LaunchConfig config_with(const Int8MatmulTile& tile, u64 m, u64 n, u64 k, u64 max_splits) {
  const u64 slots = multiprocessors_to_fill * tile.min_blocks(), tiles = ceil_div<u64>(n, tile.block_n());
  const u64 steps = std::max<u64>(1, ceil_div<u64>(k, tile.block_k()));
  LaunchConfig best{.tile = tile, .splits = 0, .cost = 0};
  for (u64 splits = 1; splits <= std::min(steps, max_splits); ++splits) {
    const u64 turns = std::max<u64>(1, ceil_div(tiles * splits, slots));
    const u64 k_of_a_split = ceil_div(steps, splits) * tile.block_k();
    const u64 bytes_of_a_tile = tile.block_n() * k_of_a_split + m * k_of_a_split * 2 / 2;
    const u64 bytes_of_sums = splits > 1 ? bytes_of_adding + splits * m * n * 4 : 0;
    const u64 cost = slots * (turns * (bytes_of_a_tile + bytes_of_an_end) + bytes_of_a_start) + bytes_of_sums;
    if (best.splits == 0 || cost < (best.splits == 1 ? best.cost / 20 * 19 : best.cost)) {
      best.splits = static_cast<u32>(splits);
      best.cost = cost;
    }
  }
  return best;
}

}  // namespace

LaunchConfig config_for(u64 m, u64 n, u64 k) {
  LaunchConfig best{};
  const u64 rows = std::min(m, max_m);
  for (const Choice& choice : choices) {
    if (rows < choice.min_m || rows > choice.max_m) continue;
    const u64 groups = ceil_div<u64>(n, choice.tile.block_n()) * ceil_div<u64>(m, choice.tile.block_m());
    const LaunchConfig config = config_with(choice.tile, rows, n, k, groups <= max_groups ? 16 : 1);
    if (best.splits == 0 || config.cost < best.cost) best = config;
  }
  return best;
}

}  // namespace nibble::kernels::int8_matmul
