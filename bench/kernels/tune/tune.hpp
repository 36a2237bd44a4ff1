// The variants of a product of few tokens that bench_tune measures. Their kernels are compiled for it alone, in
// kernels/*.cu.
#pragma once
#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/matmul/four_bit/four_bit_matmul_few_rows_tile.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_sm90_tile.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_tile.hpp"
#include "nibble/kernels.h"

namespace nibble::bench {

using kernels::FourBitMatmulTile;

/// Sizes of tiles: those of the library's kernels, and others that might replace them.
inline constexpr std::array<FourBitMatmulTile, 10> tuned_tiles{{
    {.m_tiles = 1, .n_warps = 4, .k_warps = 2},
    {.m_tiles = 1, .n_warps = 2, .k_warps = 4},
    {.m_tiles = 1, .n_warps = 1, .k_warps = 8},
    {.m_tiles = 1, .n_warps = 1, .k_warps = 8, .n_tiles = 1},
    {.m_tiles = 2, .n_warps = 2, .k_warps = 4},
    {.m_tiles = 2, .n_warps = 4, .k_warps = 2},
    {.m_tiles = 4, .n_warps = 4, .k_warps = 2},
    {.m_tiles = 4, .n_warps = 8, .k_warps = 1},
    {.m_tiles = 8, .n_warps = 4, .k_warps = 2},
    {.m_tiles = 8, .n_warps = 8, .k_warps = 1},
}};

/// The same for runs shorter than 64, whose kernels are for up to 8 rows of x, or for up to 32 at a time.
inline constexpr std::array<FourBitMatmulTile, 4> tuned_tiles_of_short_runs{{
    {.m_tiles = 1, .n_warps = 2, .k_warps = 4},
    {.m_tiles = 1, .n_warps = 4, .k_warps = 2},
    {.m_tiles = 4, .n_warps = 4, .k_warps = 2},
    {.m_tiles = 4, .n_warps = 8, .k_warps = 1},
}};

constexpr FourBitMatmulTile with_run(FourBitMatmulTile tile, std::uint32_t run) {
  tile.run = run;
  return tile;
}

/// How one product is launched. Of these, sizes of the tile and splits change the order of additions.
struct Variant {
  FourBitMatmulTile tile;
  bool keeps_x = false;  // x stays in shared memory
  std::uint32_t splits = 1;
  bool overlaps = false;    // a launch begins before the one before it has ended
  bool is_resident = true;  // as many blocks as run at a time take tiles in turn; or else each tile has a block

  bool operator==(const Variant&) const = default;
};

/// y [m, n] = x [m, k] * transposed(weight [n, k]), in bf16.
struct TunedCall {
  nibble_four_bit weight;
  std::uint32_t m;
  const void* x;
  void* y;
  float* partial;           // splits * m * n
  std::uint32_t* counters;  // zeros
};

struct TunedKernel {
  FourBitMatmulTile tile;
  bool keeps_x;
  bool (*fits)(std::uint64_t m, std::uint64_t k);
  void (*launch)(const TunedCall& call, const Variant& variant, cudaStream_t stream);
};

/// A kernel for many rows of x at a time that takes tile_n of n; there are none where the device has loaded no code for
/// sm_90a.
struct ManyRowsKernel {
  kernels::FourBitMatmulSm90Tile tile;
  void (*launch)(const TunedCall& call, std::uint32_t tile_n, std::uint32_t splits, cudaStream_t stream);
};
std::vector<ManyRowsKernel> many_rows_kernels();

/// A kernel for up to 16 rows of x that takes tile_n of n at a time, with the same condition.
struct FewRowsKernel {
  kernels::FourBitMatmulFewRowsTile tile;
  void (*launch)(const TunedCall& call, std::uint32_t tile_n, std::uint32_t splits, cudaStream_t stream);
};
std::vector<FewRowsKernel> few_rows_kernels();

/// Compares their tiles and splits on some shapes; whether all results were right.
bool tune_few_rows();

/// Compares those for many rows with the library's kernel for up to 64 rows at a time, on all shapes; whether all
/// results were right.
bool tune_many_rows();

/// Prints the line of the device, with the date, as 2027-01-02.
void print_device();

/// Of plain reads, in GB/s. Prints its line.
double measured_bandwidth();

/// What is compiled, by the way a step waits and loads; one function a source file.
using TunedKernels = std::vector<TunedKernel>;
void add_group_kernels(TunedKernels& to);
void add_block_kernels(TunedKernels& to);
void add_group_late_kernels(TunedKernels& to);
void add_block_late_kernels(TunedKernels& to);
void add_kept_x_kernels(TunedKernels& to);

}  // namespace nibble::bench
