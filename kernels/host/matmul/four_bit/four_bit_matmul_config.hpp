// Which kernel multiplies by a 4-bit weight, and in how many splits: a table (matmul_tuned.hpp) and an
// estimate. Shapes alone decide, so that every device that uses a kernel adds in the same order.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/host/matmul/matmul_plan.hpp"
#include "kernels/host/matmul/matmul_tuned.hpp"
#include "kernels/host/matmul/matmul_tuning.hpp"

namespace nibble::kernels::four_bit_matmul {

using kernels::max_groups;

/// The most that a kernel takes at a time; beyond, it takes so many rows of x after the other.
inline constexpr u64 max_m = 64;

struct LaunchConfig {
  Tile tile;
  u32 splits;  // blocks that divide k between them, at most 16
  u64 cost;    // the bytes of weights that could be read meanwhile, by an estimate
};

/// The runs shorter than 64 that kernels are compiled for (kernels/matmul/four_bit/four_bit_matmul_run.hpp).
inline constexpr std::array<u32, 3> short_runs{32, 16, 8};

/// For any n and k, and m rows of x for each weight. Without `may_split`, splits is 1. The kernel is one of `choices`,
/// or of choices_of_short_runs if the run is.
LaunchConfig config_for(u64 m, u64 n, u64 k, bool may_split, u32 run = 64);

/// Clusters of 1, 2, 4 or 8 blocks that run at a time.
constexpr u64 clusters_of(u32 blocks) { return clusters_to_fill[static_cast<std::size_t>(std::countr_zero(blocks))]; }

/// A launch of FourBitMatmulSm90 (kernels/matmul/four_bit/four_bit_matmul_sm90.hpp).
struct Sm90Config {
  FourBitMatmulSm90Tile tile;
  u32 tile_n;  // of n that a block takes at a time: a multiple of 64, at most tile.block_n()
  u32 splits;  // blocks of a cluster, which divide k: 1, 2, 4 or 8
  u64 cost;    // nanoseconds, by an estimate
};

/// For any n and k, and m rows of x.
Sm90Config sm90_config_for(u64 m, u64 n, u64 k);

inline constexpr u64 max_m_of_few_rows = 16;
static_assert(min_m_of_sm90 <= max_m_of_few_rows + 1, "devices of 9.0 would use mma.sync for the rows between");

/// A launch of FourBitMatmulFewRows (kernels/matmul/four_bit/four_bit_matmul_few_rows.hpp).
struct FewRowsConfig {
  FourBitMatmulFewRowsTile tile;
  u32 tile_n;  // of n that a block takes at a time, at most tile.block_n()
  u32 splits;  // blocks of a cluster, which divide k: 1, 2, 4 or 8
  u64 cost;    // nanoseconds beyond what every launch takes, by an estimate
};

/// For any n and k, and at most max_m_of_few_rows rows of x.
FewRowsConfig few_rows_config_for(u64 m, u64 n, u64 k);

/// Tiles of n for each max_m() of m: the groups of blocks that add splits.
u64 groups_of(const Tile& tile, u64 m, u64 n);

/// The first of the rows that fits the device: one of its capability and number of multiprocessors, or one that is for
/// any number and for all capabilities from its own on. The last row fits all devices.
const DeviceTuning& tuning_of(u32 capability, u32 multiprocessors, std::span<const DeviceTuning> rows = devices);

/// Blocks for each weight of a launch, which have so many items: with has_resident_grid, those that run at a time
/// (shares_of_blocks), and else a block for each item, as far as a grid has that many.
std::vector<u32> blocks_for(const DeviceTuning& tuning, std::span<const u64> items, u64 resident);

}  // namespace nibble::kernels::four_bit_matmul
