// What the plan of a product by a 4-bit weight is made of. four_bit_matmul_tuned.hpp has the values.
#pragma once
#include "kernels/four_bit_matmul_tile.hpp"

namespace nibble::kernels::four_bit_matmul {

using device::u32;
using device::u64;
using Tile = FourBitMatmulTile;

/// A kernel, and the m that it is for.
struct Choice {
  Tile tile;
  u64 min_m, max_m;
};

/// What is not reading weights, as the bytes of weights that the hot loop could read meanwhile. The estimate of a
/// configuration adds them up, so that they decide the order of additions: all devices have the same.
struct Costs {
  u64 bytes_of_a_start;         // of a block: the table, and the launch
  u64 bytes_of_an_end;          // of a tile: the sums
  u64 bytes_of_adding;          // of all multiprocessors, while the last blocks add the sums of splits
  u64 bytes_of_kept_x;          // what a block of one tile of m is taken to keep of x in shared memory
  u64 multiprocessors_to_fill;  // by blocks; a constant, so that every device adds in the same order
};

/// What FourBitMatmulSm90 is taken to cost, in clocks of a multiprocessor (docs/four-bit-matmul.md).
struct Sm90Costs {
  u64 clocks_of_a_step;   // of shared memory, whatever the rows of x are ...
  u64 clocks_of_a_row;    // ... and so many more for each
  u64 clocks_of_an_item;  // the first codes and x; the sums
  u64 clocks_of_adding;   // all wait for the last block of each tile
  u64 bytes_in_a_clock;   // of partial sums, from the L2 cache
};

/// How a device runs a configuration: nothing here changes the order of additions.
struct DeviceTuning {
  u32 capability;          // as in sm_90
  u32 multiprocessors;     // or 0: every device from that capability on that has no row of its own
  u64 max_kept_x_bytes;    // x up to this size stays in shared memory if it has room there
  bool has_resident_grid;  // blocks take tiles in turn; or else each tile has a block
};

}  // namespace nibble::kernels::four_bit_matmul
