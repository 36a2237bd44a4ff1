#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"

#include <algorithm>

#include "kernels/device/kernel.hpp"

namespace nibble::kernels::four_bit_matmul {
namespace {

using device::ceil_div;

constexpr u64 bytes_of_weights(u64 weights) { return weights * 33 / 64; }

/// With the number of splits that costs least.
///
/// Blocks take tiles in turn, so the time is that of the one with the most. Partial sums, and x if a block cannot keep
/// it, come from the L2 cache, which counts half.
LaunchConfig config_with(const Tile& tile, u64 m, u64 n, u64 k, bool may_split) {
  const u64 slots = multiprocessors_to_fill * tile.min_blocks(), tiles = ceil_div<u64>(n, tile.block_n());
  const u64 steps = std::max<u64>(1, ceil_div<u64>(k, tile.block_k()));
  const bool keeps_x = tile.m_tiles == 1 && tile.run == 64 && m * k * 2 <= bytes_of_kept_x;
  const Splits best = cheapest_splits(steps, may_split, [&](u64 splits) {
    const u64 turns = std::max<u64>(1, ceil_div(tiles * splits, slots));
    const u64 k_of_a_split = ceil_div(steps, splits) * tile.block_k();
    const u64 bytes_of_x = keeps_x ? 0 : m * k_of_a_split * 2 / 2;
    const u64 bytes_of_a_tile = bytes_of_weights(tile.block_n() * k_of_a_split) + bytes_of_x;
    const u64 bytes_of_sums = splits > 1 ? costs.bytes_of_adding + splits * m * n * 4 : 0;
    const u64 bytes_of_a_slot = turns * (bytes_of_a_tile + costs.bytes_of_an_end) + costs.bytes_of_a_start;
    return slots * bytes_of_a_slot + bytes_of_sums;
  });
  return {tile, best.count, best.cost};
}

/// The same for FourBitMatmulSm90, where a split is a block of a cluster, and clusters take items in turn. It chooses
/// among launches like those that bench_tune --many-rows measures. bench/kernels/tune/tune_sm90.py fits the costs of
/// this function and the next, and has the same two functions.
Sm90Config sm90_config_with(const Sm90Choice& choice, u64 m, u64 n, u64 k) {
  const FourBitMatmulSm90Tile& tile = choice.tile;
  const u64 steps = std::max<u64>(1, ceil_div<u64>(k, tile.step_k)), chunks = ceil_div<u64>(m, tile.rows);
  Sm90Config best{};
  for (u32 splits = 1; splits <= std::min<u64>(steps, device::max_cluster); splits *= 2)
    for (u32 tile_n = tile.block_n(); 2 * tile_n >= tile.block_n(); tile_n -= 64) {
      const u64 items = ceil_div<u64>(n, tile_n) * chunks;
      if (splits > 1 && items * splits > 2 * multiprocessors_to_fill) continue;
      const u64 turns = std::max<u64>(1, ceil_div(items, clusters_of(splits)));
      const u64 of_steps = ceil_div<u64>(steps, splits) * (choice.of_a_step + tile_n / 64 * choice.of_64_n);
      const bool adds = splits > 1 || tile.k_warpgroups > 1;
      const u64 of_adding = adds ? ceil_div<u64>(std::min<u64>(m, tile.rows), 32) * choice.of_32_rows : 0;
      const u64 cost = choice.of_a_start + turns * (of_steps + of_adding);
      if (best.splits == 0 || cost < best.cost) best = {tile, tile_n, splits, cost};
    }
  return best;
}

/// The same for FourBitMatmulFewRows, where a split is a block of a cluster. Clusters take tiles in turn. Tiles are as
/// small as they can be without another turn, so that all clusters have as much to do; those of clusters of 4 and 8 are
/// the largest, since no others were measured that take one turn.
FewRowsConfig few_rows_config_with(const FewRowsChoice& choice, u64 m, u64 n, u64 k) {
  const FourBitMatmulFewRowsTile& tile = choice.tile;
  const u64 steps = std::max<u64>(1, ceil_div<u64>(k, tile.block_k()));
  FewRowsConfig best{};
  for (u32 splits = 1; splits <= std::min<u64>(steps, device::max_cluster); splits *= 2) {
    const u64 clusters = clusters_of(splits), turns = std::max<u64>(1, ceil_div(n, clusters * tile.block_n()));
    const u64 smallest = std::max<u64>(1, ceil_div(n, clusters * turns * 16)) * 16;
    const u64 tile_n = splits > 2 ? tile.block_n() : smallest;
    const u64 of_a_step = choice.of_a_step + m * choice.of_a_row + tile_n / 16 * choice.of_16_n;
    const u64 of_an_end = ceil_div<u64>(m, 8) * choice.of_8_rows + (splits > 1 ? choice.of_adding : 0);
    const u64 cost = turns * (ceil_div<u64>(steps, splits) * of_a_step + of_an_end);
    if (best.splits == 0 || cost < best.cost) best = {tile, static_cast<u32>(tile_n), splits, cost};
  }
  return best;
}

}  // namespace

FewRowsConfig few_rows_config_for(u64 m, u64 n, u64 k) {
  FewRowsConfig best{};
  for (const FewRowsChoice& choice : few_rows_choices) {
    if (m < choice.min_m || m > choice.max_m) continue;
    if (const FewRowsConfig config = few_rows_config_with(choice, m, n, k); best.splits == 0 || config.cost < best.cost)
      best = config;
  }
  return best;
}

Sm90Config sm90_config_for(u64 m, u64 n, u64 k) {
  Sm90Config best{};
  for (const Sm90Choice& choice : sm90_choices)
    if (const Sm90Config config = sm90_config_with(choice, m, n, k); best.splits == 0 || config.cost < best.cost)
      best = config;
  return best;
}

LaunchConfig config_for(u64 m, u64 n, u64 k, bool may_split, u32 run) {
  LaunchConfig best{};
  const u64 rows = std::min(m, max_m);
  const std::span<const Choice> all = run == 64 ? std::span<const Choice>(choices) : choices_of_short_runs;
  for (const Choice& choice : all) {
    if (rows < choice.min_m || rows > choice.max_m || choice.tile.run != run) continue;
    const bool has_counters = groups_of(choice.tile, m, n) <= max_groups;
    const u64 at_a_time = std::min<u64>(rows, choice.tile.max_m());
    const LaunchConfig config = config_with(choice.tile, at_a_time, n, k, may_split && has_counters);
    if (best.splits == 0 || config.cost < best.cost) best = config;
  }
  return best;
}

u64 groups_of(const Tile& tile, u64 m, u64 n) {
  return ceil_div<u64>(n, tile.block_n()) * ceil_div<u64>(m, tile.max_m());
}

const DeviceTuning& tuning_of(u32 capability, u32 multiprocessors, std::span<const DeviceTuning> rows) {
  const auto fits = [&](const DeviceTuning& row) {
    if (row.multiprocessors == 0) return capability >= row.capability;
    return capability == row.capability && multiprocessors == row.multiprocessors;
  };
  return *std::find_if(rows.begin(), rows.end() - 1, fits);
}

std::vector<u32> blocks_for(const DeviceTuning& tuning, std::span<const u64> items, u64 resident) {
  constexpr u64 max_blocks = 0x7fffffff;
  if (tuning.has_resident_grid) return shares_of_blocks(items, resident);
  std::vector<u32> blocks;
  for (const u64 count : items) blocks.push_back(static_cast<u32>(std::min(count, max_blocks)));
  return blocks;
}

}  // namespace nibble::kernels::four_bit_matmul
