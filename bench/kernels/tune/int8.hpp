// The variants of the product with an int8 weight that bench_tune measures: tiles and splits.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "bench/kernels/gpu/gpu.hpp"
#include "kernels/matmul/int8/int8_matmul_tile.hpp"
#include "nibble/kernels.h"

namespace nibble::bench {

using kernels::Int8MatmulTile;

/// Those of the library's kernels, and others that might replace them.
inline constexpr std::array<Int8MatmulTile, 8> tuned_int8_tiles{{
    {.m_tiles = 1, .n_warps = 4, .k_warps = 2, .n_tiles = 2, .groups = 2},
    {.m_tiles = 1, .n_warps = 2, .k_warps = 4, .n_tiles = 2, .groups = 2},
    {.m_tiles = 1, .n_warps = 1, .k_warps = 8, .n_tiles = 1, .groups = 2},
    {.m_tiles = 2, .n_warps = 2, .k_warps = 4, .n_tiles = 2, .groups = 2},
    {.m_tiles = 2, .n_warps = 4, .k_warps = 2, .n_tiles = 2, .groups = 2},
    {.m_tiles = 4, .n_warps = 4, .k_warps = 2, .n_tiles = 2, .groups = 2},
    {.m_tiles = 8, .n_warps = 4, .k_warps = 2, .n_tiles = 2, .groups = 2},
    {.m_tiles = 8, .n_warps = 8, .k_warps = 1, .n_tiles = 2, .groups = 2},
}};

/// y [m, n] = x [m, k] * transposed(weight [n, k]), in bf16.
struct Int8Call {
  nibble_int8 weight;
  std::uint32_t m;
  const void* x;
  void* y;
  float* partial;           // splits * m * n
  std::uint32_t* counters;  // zeros
};

struct Int8Kernel {
  Int8MatmulTile tile;
  void (*launch)(const Int8Call& call, std::uint32_t splits, cudaStream_t stream);
};

/// One for each of tuned_int8_tiles.
std::vector<Int8Kernel> int8_kernels();

/// Measures them, on all shapes that have a kernel with tensor cores; whether all results were right.
bool tune_int8();

}  // namespace nibble::bench
