// Which kernel multiplies by a 4-bit weight, and in how many splits: a table and an estimate. Shapes alone decide, so
// that every device adds in the same order.
#pragma once
#include <array>
#include <cstddef>

#include "kernels/four_bit_matmul_tile.hpp"

namespace nibble::kernels::four_bit_matmul {

using device::u64;
using Tile = FourBitMatmulTile;

/// A kernel, and the shapes that it is for.
struct Choice {
  Tile tile;
  u64 min_m, max_m;
  u64 min_n, max_n;
};

inline constexpr u64 any_n = ~u64{0};
inline constexpr u64 few_n = 8192;

/// The kernels that are compiled. Of those for a shape, the cheapest is taken, and of equally cheap ones the first. A
/// larger block_n() reads x less often from the L2 cache, but leaves fewer blocks for all multiprocessors: up to m = 8
/// the estimate decides, beyond that n alone.
inline constexpr std::array<Choice, 8> choices{{
    {{.m_tiles = 1, .n_warps = 2, .k_warps = 4}, 0, 8, 0, any_n},
    {{.m_tiles = 1, .n_warps = 1, .k_warps = 8}, 0, 8, 0, any_n},
    {{.m_tiles = 1, .n_warps = 1, .k_warps = 8, .n_tiles = 1}, 0, 4, 0, any_n},
    {{.m_tiles = 2, .n_warps = 2, .k_warps = 4}, 9, 16, 0, few_n},
    {{.m_tiles = 2, .n_warps = 4, .k_warps = 2}, 9, 16, few_n + 1, any_n},
    {{.m_tiles = 4, .n_warps = 4, .k_warps = 2}, 17, 32, 0, any_n},
    {{.m_tiles = 8, .n_warps = 4, .k_warps = 2}, 33, 64, 0, few_n},
    {{.m_tiles = 8, .n_warps = 8, .k_warps = 1}, 33, 64, few_n + 1, any_n},
}};

/// The most that a kernel takes.
inline constexpr u64 max_m = 64;

struct LaunchConfig {
  Tile tile;
  u32 splits;  // blocks that divide k between them, at most 16
  u64 cost;    // the bytes of weights that could be read meanwhile, by an estimate
};

/// For m up to max_m, any n and k.
LaunchConfig config_for(u64 m, u64 n, u64 k);

/// Partial sums in fp32, [splits, m, n]; none without splits.
std::size_t workspace_bytes(const LaunchConfig& config, u64 m, u64 n);

}  // namespace nibble::kernels::four_bit_matmul
