#include "kernels/host/four_bit_matmul_config.hpp"

#include <algorithm>

namespace nibble::kernels::four_bit_matmul {
namespace {

using device::ceil_div;

/// Multiprocessors that splits are meant to fill: those of an H200. A constant, so that every device adds in the same
/// order.
constexpr u64 multiprocessors_to_fill = 132;

/// What a block does before its first weight and after its last (the table, the sums), in the bytes of weights that
/// the hot loop could read meanwhile: about 430 instructions of 256 threads, at 2.4 for a weight of 0.516 bytes.
constexpr u64 bytes_of_a_start = 24'000;

/// What all multiprocessors could read while a second kernel starts: about a microsecond, which is an estimate.
constexpr u64 bytes_of_a_launch = 4'000'000;

/// The number of splits that leaves the fewest multiprocessors idle, if an estimate promises at least a twentieth.
/// Partial sums are written and read, in the L2 cache, which counts half.
LaunchConfig config_with(const Tile& tile, u64 m, u64 n, u64 k) {
  constexpr u64 max_splits = 16;
  const u64 slots = multiprocessors_to_fill * tile.min_blocks(), tiles = ceil_div<u64>(n, tile.block_n());
  const u64 steps = std::max<u64>(1, ceil_div<u64>(k, tile.block_k()));
  LaunchConfig best{.tile = tile, .splits = 0, .cost = 0};
  for (u64 splits = 1; splits <= std::min(steps, max_splits); ++splits) {
    const u64 waves = ceil_div(tiles * splits, slots);
    const u64 bytes_of_a_block = tile.block_n() * ceil_div(steps, splits) * tile.block_k() * 33 / 64;
    const u64 bytes_of_sums = splits > 1 ? bytes_of_a_launch + splits * m * n * 4 : 0;
    const u64 cost = waves * slots * (bytes_of_a_block + bytes_of_a_start) + bytes_of_sums;
    if (best.splits == 0 || cost < (best.splits == 1 ? best.cost / 20 * 19 : best.cost)) {
      best.splits = static_cast<u32>(splits);
      best.cost = cost;
    }
  }
  return best;
}

bool is_for(const Choice& choice, u64 m, u64 n) {
  return choice.min_m <= m && m <= choice.max_m && choice.min_n <= n && n <= choice.max_n;
}

}  // namespace

LaunchConfig config_for(u64 m, u64 n, u64 k) {
  LaunchConfig best{};
  for (const Choice& choice : choices) {
    if (!is_for(choice, m, n)) continue;
    const LaunchConfig config = config_with(choice.tile, m, n, k);
    if (best.splits == 0 || config.cost < best.cost) best = config;
  }
  return best;
}

std::size_t workspace_bytes(const LaunchConfig& config, u64 m, u64 n) {
  return config.splits == 1 ? 0 : config.splits * m * n * sizeof(float);
}

}  // namespace nibble::kernels::four_bit_matmul
