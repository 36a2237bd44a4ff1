// Where a lane of the product's kernel finds the codes and the absmax of its steps, and how it loads them
// (four_bit_matmul.hpp).
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/four_bit_weight.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_run.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_tile.hpp"
#include "kernels/matmul/matmul_block.hpp"

namespace nibble::kernels {
using namespace device;

/// Where a lane reads in a step. A group is 64 weights of one n, contiguous along k, and has one or more runs, each
/// with one absmax.
template <FourBitMatmulTile Tile> struct FourBitMatmulSource {
  using Run = FourBitMatmulRun<Tile.run>;
  static constexpr u32 n_tiles = Tile.n_tiles, block_n = Tile.block_n();
  static constexpr u32 groups = Tile.groups(), step_groups = groups * Tile.k_warps;
  static_assert(Tile.prefetched_steps == 0 || Tile.run == 64);

  i32 left;                            // runs from the first of the warp's to the end of the block's
  Global<const u8> codes[n_tiles][2];  // of n = g and g + 8
  u32 scale[n_tiles];                  // of lane (g, q): of n = g + 8 * (q / 2) and runs q % 2, q % 2 + 2 ...

  /// In step `first` of a tile of n, for a block that ends before step `end`. Row 0 of the product is `first_row` of
  /// the weight.
  NIBBLE_DEVICE FourBitMatmulSource(const FourBitOperand& weight, i64 first_row, u32 tile_of_n, u32 first, u32 end,
                                    const MatmulLane<Tile>& lane) {
    const u32 runs_of_k = static_cast<u32>(weight.k / Tile.run), end_run = end * (step_groups * Run::in_group);
    const u32 run = (first * Tile.k_warps + lane.k_warp) * (groups * Run::in_group);
    left = static_cast<i32>((end_run < runs_of_k ? end_run : runs_of_k) - run);
    const i64 first_n = i64{tile_of_n} * block_n + lane.n_warp * (16 * n_tiles);
    // Any n past the end is read as the last one; its sums are not stored.
    const auto run_of = [&](i64 at_n) {
      const i64 row = first_row + (at_n < weight.n ? at_n : weight.n - 1);
      return weight.first / Tile.run + row * (weight.stride / Tile.run) + run;
    };
    NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
      NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
        const i64 run_of_row = run_of(first_n + 16 * tile + 8 * half + lane.g);
        codes[tile][half] = weight.packed + (run_of_row * (Tile.run / 2) + Run::first_byte(lane.q));
      }
      scale[tile] = static_cast<u32>(run_of(first_n + 16 * tile + 8 * (lane.q / 2) + lane.g)) + lane.q % 2;
    }
  }

  /// To the next step of the same tile.
  NIBBLE_DEVICE void advance() {
    left -= static_cast<i32>(step_groups * Run::in_group);
    NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
      NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) { codes[tile][half] = codes[tile][half] + 32 * step_groups; }
      scale[tile] += step_groups * Run::in_group;
    }
  }

  /// Requests the codes of so many steps later: the four lanes of a quad divide the rows between them.
  NIBBLE_DEVICE void prefetch(const MatmulLane<Tile>& lane) const {
    constexpr u32 ahead = Tile.prefetched_steps * step_groups;
    const Global<const u8> low = codes[0][lane.q % 2];
    const Global<const u8> at = n_tiles == 1 ? low + (lane.q / 2 * 64) : codes[lane.q / 2 % n_tiles][lane.q % 2];
    if (static_cast<i32>(ahead + (n_tiles == 1 ? lane.q / 2 * 2 : 0)) < left) prefetch_l2(at + 32 * ahead);
  }
};

/// What a lane reads in a step.
template <bool Nested, FourBitMatmulTile Tile> struct FourBitMatmulOperands {
  using Run = FourBitMatmulRun<Tile.run>;
  static constexpr u32 n_tiles = Tile.n_tiles, groups = Tile.groups(), runs = groups * Run::in_group;

  i32 left;                          // runs, as in the source: those past the end are not loaded
  u32x2 packed[groups][n_tiles][2];  // 16 weights each
  u32 code[n_tiles][runs / 2];
  float absmax[n_tiles][runs / 2];  // or nested_absmax

  // Past the end a lane keeps its old codes: any weights will do, because x is zeros there.
  NIBBLE_DEVICE void load(const FourBitOperand& weight, const FourBitMatmulSource<Tile>& source,
                          const MatmulLane<Tile>& lane) {
    left = source.left;
    NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) load_codes(packed[i], source, i, lane);
    load_absmax(weight, source, lane);
  }

  /// All but the codes.
  NIBBLE_DEVICE void load_absmax(const FourBitOperand& weight, const FourBitMatmulSource<Tile>& source,
                                 const MatmulLane<Tile>& lane) {
    left = source.left;
    NIBBLE_UNROLL for (u32 i = 0; i < runs; i += 2) load_absmax(i, weight, source, lane.id % 2);
  }

 private:
  static constexpr u32 log2_run = Tile.run == 64 ? 6 : Tile.run == 32 ? 5 : Tile.run == 16 ? 4 : 3;
  // Past the end, absmax multiplies zeros, and may be infinite only if the row of the weight has such an absmax anyway.
  // A kernel with one tile of m multiplies whatever is left: it needs 0 there. Others stop before a group in which
  // nothing is left, but k may end inside of a group of short runs: there it is that of the last run.
  static constexpr bool multiplies_past_end = Tile.m_tiles == 1;
  static constexpr bool ends_in_group = Tile.m_tiles > 1 && Tile.run != 64;

  // Of run `first` in even lanes, and of the one after it in odd ones.
  NIBBLE_DEVICE void load_absmax(u32 first, const FourBitOperand& weight, const FourBitMatmulSource<Tile>& source,
                                 u32 odd) {
    const bool inside = ends_in_group ? left > 0 : static_cast<i32>(first + odd) < left;
    u32 run = first;  // the source's scale is that of an odd lane already
    if constexpr (ends_in_group)
      if (static_cast<i32>(first + odd) >= left) run = static_cast<u32>(left) - 1 - odd;
    NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
      const u32 scale = (source.scale[tile] + run) >> (weight.log2_blocksize - log2_run);
      float& own = absmax[tile][first / 2];
      if constexpr (multiplies_past_end) own = 0;
      if constexpr (Nested) {
        if (inside) code[tile][first / 2] = weight.absmax.code_of(scale);
        if (inside) own = weight.absmax.nested_absmax_of(scale);
      } else {
        if (inside) own = weight.absmax.plain_of(scale);
      }
    }
  }

  // Of group i. Only with runs of 64 can all of a lane's codes come by one load.
  NIBBLE_DEVICE void load_codes(u32x2 (&to)[n_tiles][2], const FourBitMatmulSource<Tile>& source, u32 i,
                                const MatmulLane<Tile>& lane) const {
    if constexpr (Tile.run == 64) {
      const bool inside = static_cast<i32>(i) < left;
      NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
        NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
          if (inside) to[tile][half] = ldcs((source.codes[tile][half] + 32 * i).template as<const u32x2>());
        }
      }
    } else {
      const auto is_inside = [&](u32 word) {
        return static_cast<i32>(i * Run::in_group + Run::run_of(word, lane.q)) < left;
      };
      const bool inside[2] = {is_inside(0), is_inside(1)};
      NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
        NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
          const Global<const u8> from = source.codes[tile][half] + 32 * i;
          if (inside[0]) to[tile][half].x = ldcs(from.template as<const u32>());
          if (inside[1]) to[tile][half].y = ldcs((from + Run::word_bytes).template as<const u32>());
        }
      }
    }
  }
};

}  // namespace nibble::kernels
