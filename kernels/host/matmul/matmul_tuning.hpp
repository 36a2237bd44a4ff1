// What the plans of products are made of. matmul_tuned.hpp has the values.
#pragma once
#include "kernels/matmul/four_bit/four_bit_matmul_few_rows_tile.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_sm90_tile.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_tile.hpp"
#include "kernels/matmul/int8/int8_matmul_tile.hpp"

namespace nibble::kernels {

using device::u64;

/// A kernel, and the m that it is for.
template <class Tile> struct TileChoice {
  Tile tile;
  u64 min_m, max_m;
};

/// What is not reading weights, as the bytes of weights that the hot loop could read meanwhile. The estimate of a
/// configuration adds them up, so that they decide the order of additions: all devices have the same.
struct MatmulCosts {
  u64 bytes_of_a_start;  // of a block: a launch, the first loads; with 4-bit codes, the table
  u64 bytes_of_an_end;   // of a tile: the sums
  u64 bytes_of_adding;   // of all multiprocessors, while the last blocks add the sums of splits
};

namespace four_bit_matmul {

using Tile = FourBitMatmulTile;
using Choice = TileChoice<Tile>;

/// A kernel of FourBitMatmulFewRows, the m that it is for, and the times that the plan expects of its launches, in
/// nanoseconds. What every launch of a product needs is left out.
struct FewRowsChoice {
  FourBitMatmulFewRowsTile tile;
  u64 min_m, max_m;
  u64 of_a_step, of_a_row, of_16_n;  // a step lasts of_a_step, of_a_row more for each row of x, of_16_n for 16 of n
  u64 of_8_rows;                     // the end of a tile, for each 8 rows of x
  u64 of_adding;                     // the sums of blocks that divide k
};

/// A kernel of FourBitMatmulSm90, and the times that the plan expects of its launches, in nanoseconds.
struct Sm90Choice {
  FourBitMatmulSm90Tile tile;
  u64 of_a_step, of_64_n;  // a step lasts of_a_step, and of_64_n more for each 64 of n
  u64 of_32_rows;          // adding so many rows of the sums of warpgroups or blocks that divide k
  u64 of_a_start;
};

/// How a device runs a configuration: nothing here changes the order of additions.
struct DeviceTuning {
  u32 capability;          // as in sm_90
  u32 multiprocessors;     // or 0: every device from that capability on that has no row of its own
  u64 max_kept_x_bytes;    // x up to this size stays in shared memory if it has room there
  bool has_resident_grid;  // blocks take tiles in turn; or else each tile has a block
};

}  // namespace four_bit_matmul

namespace int8_matmul {

using Tile = Int8MatmulTile;
using Choice = TileChoice<Tile>;

}  // namespace int8_matmul
}  // namespace nibble::kernels
