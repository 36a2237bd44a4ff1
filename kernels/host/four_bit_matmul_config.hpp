// Which kernel multiplies by a 4-bit weight, and in how many splits: a table and an estimate. Shapes alone decide, so
// that every device adds in the same order.
#pragma once
#include <array>
#include <cstddef>

#include "kernels/four_bit_matmul_tile.hpp"

namespace nibble::kernels::four_bit_matmul {

using device::u64;
using Tile = FourBitMatmulTile;

/// A kernel, and the m that it is for.
struct Choice {
  Tile tile;
  u64 min_m, max_m;
};

/// The kernels that are compiled. Of those for an m, the estimate takes the cheapest, and of equally cheap ones the
/// first. A larger block_n() reads x less often, a smaller one divides n more evenly between multiprocessors.
inline constexpr std::array<Choice, 8> choices{{
    {{.m_tiles = 1, .n_warps = 2, .k_warps = 4}, 0, 8},
    {{.m_tiles = 1, .n_warps = 1, .k_warps = 8}, 0, 8},
    {{.m_tiles = 1, .n_warps = 1, .k_warps = 8, .n_tiles = 1}, 0, 4},
    {{.m_tiles = 2, .n_warps = 2, .k_warps = 4}, 9, 16},
    {{.m_tiles = 2, .n_warps = 4, .k_warps = 2}, 9, 16},
    {{.m_tiles = 4, .n_warps = 4, .k_warps = 2}, 17, 32},
    {{.m_tiles = 8, .n_warps = 4, .k_warps = 2}, 33, 64},
    {{.m_tiles = 8, .n_warps = 8, .k_warps = 1}, 33, 64},
}};

/// The most that a kernel takes at a time; beyond, it takes so many rows of x after the other.
inline constexpr u64 max_m = 64;

struct LaunchConfig {
  Tile tile;
  u32 splits;  // blocks that divide k between them, at most 16
  u64 cost;    // the bytes of weights that could be read meanwhile, by an estimate
};

/// For any n and k, and m rows of x for each weight. Without `may_split`, splits is 1.
LaunchConfig config_for(u64 m, u64 n, u64 k, bool may_split);

/// Tiles of n for each max_m() of m: the groups of blocks that add splits.
u64 groups_of(const Tile& tile, u64 m, u64 n);

/// A product splits k only up to so many groups. If several weights divide n, they may have up to four times as many:
/// NIBBLE_COUNTERS.
inline constexpr u64 max_groups = 1024;

}  // namespace nibble::kernels::four_bit_matmul
