// Which kernel multiplies by a 4-bit weight, and in how many splits: a table (matmul_tuned.hpp) and an
// estimate. Shapes alone decide, so that every device that uses a kernel adds in the same order.
#pragma once
#include <array>
#include <span>
#include <vector>

#include "kernels/host/matmul/matmul_plan.hpp"
#include "kernels/host/matmul/matmul_tuned.hpp"
#include "kernels/host/matmul/matmul_tuning.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_few_rows_tile.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_sm90_tile.hpp"

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

/// A kernel of FourBitMatmulSm90, and what the plan takes a launch of it to last, in nanoseconds.
struct Sm90Choice {
  FourBitMatmulSm90Tile tile;
  u64 of_a_step, of_64_n;  // a step lasts of_a_step, and of_64_n more for each 64 of n
  u64 of_32_rows;          // adding so many rows of the sums of warpgroups or blocks that divide k
  u64 of_a_start;
};

/// The kernels of FourBitMatmulSm90 that are compiled. For any m, the estimate takes the cheapest.
///
/// The times were fitted to those of an H200 (bench/results/tune_H200.jsonl).
inline constexpr std::array<Sm90Choice, 7> sm90_choices{{
    {{.rows = 32, .n_warpgroups = 4, .k_warpgroups = 1}, 609, 307, 2'119, 3'336},
    {{.rows = 32, .n_warpgroups = 2, .k_warpgroups = 2}, 454, 246, 2'435, 2'109},
    {{.rows = 64, .n_warpgroups = 4, .k_warpgroups = 1}, 753, 406, 2'313, 3'118},
    {{.rows = 64, .n_warpgroups = 3, .k_warpgroups = 1}, 525, 444, 2'338, 2'861},
    {{.rows = 64, .n_warpgroups = 2, .k_warpgroups = 2}, 626, 290, 2'776, 2'090},
    {{.rows = 96, .n_warpgroups = 3, .k_warpgroups = 1}, 850, 536, 2'460, 2'285},
    {{.rows = 128, .n_warpgroups = 2, .k_warpgroups = 1}, 1'062, 567, 2'291, 1'631},
}};

/// A launch of FourBitMatmulSm90 (kernels/matmul/four_bit/four_bit_matmul_sm90.hpp).
struct Sm90Config {
  FourBitMatmulSm90Tile tile;
  u32 tile_n;  // of n that a block takes at a time: a multiple of 64, at most tile.block_n()
  u32 splits;  // blocks of a cluster, which divide k: 1, 2, 4 or 8
  u64 cost;    // nanoseconds, by an estimate
};

/// For any n and k, and m rows of x.
Sm90Config sm90_config_for(u64 m, u64 n, u64 k);

/// The kernels of FourBitMatmulFewRows that are compiled, and the m that they are for. Of those for an m the estimate
/// takes the cheapest, and of equally cheap ones the first.
inline constexpr std::array<TileChoice<FourBitMatmulFewRowsTile>, 4> few_rows_choices{{
    {{.m_tiles = 1, .n_warps = 1, .k_warps = 16}, 0, 8},
    {{.m_tiles = 1, .n_warps = 4, .k_warps = 4}, 5, 8},
    {{.m_tiles = 2, .n_warps = 2, .k_warps = 8}, 9, 16},
    {{.m_tiles = 2, .n_warps = 4, .k_warps = 4}, 9, 16},
}};
inline constexpr u64 max_m_of_few_rows = 16;
static_assert(min_m_of_sm90 <= max_m_of_few_rows + 1, "devices of 9.0 would use mma.sync for the rows between");

/// A launch of FourBitMatmulFewRows (kernels/matmul/four_bit/four_bit_matmul_few_rows.hpp).
struct FewRowsConfig {
  FourBitMatmulFewRowsTile tile;
  u32 tile_n;  // of n that a block takes at a time, at most tile.block_n()
  u32 splits;  // blocks of a cluster, which divide k: 1, 2, 4 or 8
  u64 cost;    // nanoseconds, by an estimate
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
