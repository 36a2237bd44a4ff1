// Which kernel multiplies by an int8 weight, and in how many splits: a table and an estimate. Shapes alone decide, so
// that every device adds in the same order.
#pragma once
#include <array>

#include "kernels/host/matmul_plan.hpp"
#include "kernels/int8_matmul_tile.hpp"

namespace nibble::kernels::int8_matmul {

using device::u64;

/// A kernel, and the m that it is for.
struct Choice {
  Int8MatmulTile tile;
  u64 min_m, max_m;
};

/// The kernels that are compiled. Of those for an m, the estimate takes the cheapest, and of equally cheap ones the
/// first. A larger block_n() reads x less often, a smaller one divides n more evenly between multiprocessors.
inline constexpr std::array<Choice, 5> choices{{
    {{.m_tiles = 1, .n_warps = 2, .k_warps = 4, .n_tiles = 2, .groups = 2}, 0, 8},
    {{.m_tiles = 1, .n_warps = 1, .k_warps = 8, .n_tiles = 1, .groups = 2}, 0, 8},
    {{.m_tiles = 2, .n_warps = 2, .k_warps = 4, .n_tiles = 2, .groups = 2}, 9, 16},
    {{.m_tiles = 4, .n_warps = 4, .k_warps = 2, .n_tiles = 2, .groups = 2}, 17, 32},
    {{.m_tiles = 8, .n_warps = 4, .k_warps = 2, .n_tiles = 2, .groups = 2}, 33, 64},
}};

/// From so many rows of x on, the weight is dequantized and a library multiplies. An estimate, not measured
/// (docs/int8-matmul.md).
inline constexpr u64 min_library_m = 512;

/// The most that a kernel takes at a time; beyond, it takes so many rows of x after the other.
inline constexpr u64 max_m = 64;

struct LaunchConfig {
  Int8MatmulTile tile;
  u32 splits;  // blocks that divide k between them, at most 16
  u64 cost;    // the bytes of weights that could be read meanwhile, by an estimate
};

/// For any n and k.
LaunchConfig config_for(u64 m, u64 n, u64 k);

}  // namespace nibble::kernels::int8_matmul
