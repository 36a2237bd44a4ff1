// What the products with 4-bit and with int8 weights share (four_bit_matmul.hpp, int8_matmul.hpp): which part of the
// product a block computes at a time, how its warps copy x and wait for it, and how their sums become y. The loops over
// k are not shared: each keeps other operands in registers.
//
// In all of these, Tile is a FourBitMatmulTile or an Int8MatmulTile.
#pragma once
#include <type_traits>

#include "kernels/device/device.hpp"
#include "kernels/matmul/split_sums.hpp"

namespace nibble::kernels {
using namespace device;

/// The sizes of a tile as constants, because device code cannot call constexpr functions of the host.
template <auto Tile> struct MatmulSizes {
  static constexpr u32 threads = Tile.threads(), max_m = Tile.max_m();
  static constexpr u32 block_n = Tile.block_n(), block_k = Tile.block_k();
};

/// A thread's part of a block's work.
template <auto Tile> struct MatmulLane {
  u32 id = lane_id(), g = lane_id() / 4, q = lane_id() % 4;  // of a fragment: n = g and g + 8, a quarter of k
  u32 n_warp = warp_id() % Tile.n_warps, k_warp = warp_id() / Tile.n_warps;
};

// -- What a block computes at a time: a tile of n, a split of k, a chunk of m

/// A piece of a block's work.
template <auto Tile> struct MatmulWork {
  static constexpr u32 max_m = MatmulSizes<Tile>::max_m;

  u32 item;            // tile * splits + split
  u32 m_first, m_end;  // the rows of x from this chunk on

  [[nodiscard]] NIBBLE_DEVICE bool is_none() const { return m_first >= m_end; }
  [[nodiscard]] NIBBLE_DEVICE u32 chunk_m() const { return m_end - m_first < max_m ? m_end - m_first : max_m; }
};

// -- x in shared memory

/// x [m, k] in memory.
template <class Half> struct MatmulX {
  Global<const Half> x;
  i64 stride;
  u32 k;
};

/// Rows of x that a step has in shared memory: whole tiles of 8. If there is only one tile, only the rows that exist
/// are there, and a lane whose row does not exist reads the last one. With m = 1 all lanes then read the same bytes.
template <auto Tile> NIBBLE_DEVICE_AND_HOST constexpr u32 rows_of_x(u32 m) {
  constexpr u32 max_m = MatmulSizes<Tile>::max_m;
  return Tile.m_tiles > 1 || m > max_m ? max_m : m;
}

/// The row of the first tile of m that a lane multiplies.
template <auto Tile> NIBBLE_DEVICE u32 row_of_x(const MatmulWork<Tile>& work, const MatmulLane<Tile>& lane) {
  const u32 chunk_m = work.chunk_m();
  return Tile.m_tiles > 1 || lane.g < chunk_m ? lane.g : chunk_m - 1;
}

/// Copies the rows of a chunk in one step's k, 16 bytes a thread; zeros past the end of k, and for rows that do not
/// exist. The warps that read a part of k copy it. Rows are row_bytes apart, and a piece of 16 bytes goes to slot_of().
template <auto Tile, u32 row_bytes, auto slot_of, class Half>
NIBBLE_DEVICE void copy_x(Shared<u8> to, const MatmulX<Half>& x, const MatmulWork<Tile>& work, u32 step,
                          const MatmulLane<Tile>& lane) {
  using Sizes = MatmulSizes<Tile>;
  constexpr u32 block_k = Sizes::block_k, pieces = block_k / Tile.k_warps / 8;  // of a row of x
  constexpr u32 at_a_time = 32 * Tile.n_warps / pieces;                         // rows
  static_assert(32 * Tile.n_warps % pieces == 0);
  const u32 thread = lane.id + 32 * lane.n_warp, piece = thread % pieces + lane.k_warp * pieces;
  const u32 at_k = step * block_k + 8 * piece, at_m = thread / pieces, chunk_m = work.chunk_m();
  const i32 present = at_k < x.k ? static_cast<i32>(chunk_m - at_m) : 0;
  to = to + (at_m * row_bytes + 16 * slot_of(piece));
  Global<const Half> from = x.x + (i64{work.m_first + at_m} * x.stride + at_k);
  NIBBLE_UNROLL for (u32 t = 0; t < Sizes::max_m; t += at_a_time) {
    if (Tile.m_tiles == 1 && t + at_m >= chunk_m) break;
    cp_async16(to + t * row_bytes, from.template as<const u8>(), static_cast<i32>(t) < present ? 16 : 0);
    from = from + at_a_time * x.stride;
  }
}

/// Waits for the warps with the same part of k, or for the whole block.
template <auto Tile, bool WholeBlock> NIBBLE_DEVICE void wait_for_warps(const MatmulLane<Tile>& lane) {
  if constexpr (WholeBlock)
    sync_threads();
  else if constexpr (Tile.n_warps == 1)
    sync_warp();
  else
    bar_sync(1 + lane.k_warp, 32 * Tile.n_warps);
}

/// Waits until this warp's copies of x are there and visible to the warps that read them, and until those have read
/// the step before. These are the warps with the same part of k, or the whole block.
template <auto Tile, bool WholeBlock> NIBBLE_DEVICE void wait_for_x(const MatmulLane<Tile>& lane) {
  cp_wait<0>();
  wait_for_warps<Tile, WholeBlock>(lane);
}

// -- The products

/// Adds the product of a fragment of weights and one of x.
template <class Half> NIBBLE_DEVICE void mma(float (&sum)[4], const u32 (&weights)[4], const u32 (&x)[2]) {
  if constexpr (std::is_same_v<Half, bf16>)
    mma_bf16_16816(sum, weights, x);
  else
    mma_f16_16816(sum, weights, x);
}

/// The sums of a warp: for each tile of m and of n, four of each lane (mma.sync).
template <auto Tile> using MatmulSums = float[Tile.m_tiles][Tile.n_tiles][4];

// -- The end: from the sums of the warps to y

/// The sums of all warps of a block in shared memory, [k_warps][rows][block_n].
template <auto Tile> struct WarpSums {
  /// Floats from row to row. The 4 beyond block_n put what the four lanes of a quad store 8 banks apart.
  static constexpr u32 stride = Tile.block_n() + 4;
  NIBBLE_DEVICE_AND_HOST static constexpr u32 bytes(u32 rows) { return 4 * Tile.k_warps * rows * stride; }

  Shared<float> at;
  u32 rows;  // rows_of_x()

  /// Stores the sums of this warp.
  NIBBLE_DEVICE void put(const MatmulSums<Tile>& sum, const MatmulLane<Tile>& lane) const {
    NIBBLE_UNROLL for (u32 t = 0; t < Tile.m_tiles; ++t) {
      NIBBLE_UNROLL for (u32 n_tile = 0; n_tile < Tile.n_tiles; ++n_tile) {
        NIBBLE_UNROLL for (u32 e = 0; e < 4; ++e) {
          const u32 in_m = 8 * t + 2 * lane.q + e % 2;
          const u32 in_n = 16 * (lane.n_warp * Tile.n_tiles + n_tile) + lane.g + 8 * (e / 2);
          if (Tile.m_tiles > 1 || in_m < rows)
            sts(at + ((lane.k_warp * rows + in_m) * stride + in_n), sum[t][n_tile][e]);
        }
      }
    }
  }

  /// Of the warps that divide k, in order of k.
  [[nodiscard]] NIBBLE_DEVICE float total(u32 in_m, u32 in_n) const {
    float total = 0;
    NIBBLE_UNROLL for (u32 w = 0; w < Tile.k_warps; ++w) {
      total = add_rn(total, lds(at + ((w * rows + in_m) * stride + in_n)));
    }
    return total;
  }
};

/// The values of a tile of n and a chunk of m: value i is in row i / block_n of it.
template <auto Tile> struct MatmulValues {
  static constexpr u32 block_n = MatmulSizes<Tile>::block_n;

  const MatmulWork<Tile>& work;
  u32 tile;
  i64 n, first_sum;  // of the weight; where its y begins in the sums of splits

  [[nodiscard]] NIBBLE_DEVICE u32 count() const { return work.chunk_m() * block_n; }
  [[nodiscard]] NIBBLE_DEVICE i64 at_m(u32 i) const { return i64{work.m_first + i / block_n}; }
  [[nodiscard]] NIBBLE_DEVICE i64 at_n(u32 i) const { return i64{tile} * block_n + i % block_n; }
  /// Its place in the sums of a split; negative if there is no such value.
  [[nodiscard]] NIBBLE_DEVICE i64 place(u32 i) const {
    return at_n(i) < n ? first_sum + at_m(i) * n + at_n(i) : i64{-1};
  }
};

/// Adds the sums of a block's warps. Without splits it calls store(row of y, n, total) for each value; else it leaves
/// the totals in `sums`.
///
/// `tile` is the work's, `n` the weight's, and its y in `sums` begins at first_sum.
template <auto Tile, class Store>
NIBBLE_DEVICE void store_sums(const MatmulWork<Tile>& work, const WarpSums<Tile>& of_warps, const SplitSums& sums,
                              u32 tile, i64 n, i64 first_sum, Store&& store) {
  const MatmulValues<Tile> values{work, tile, n, first_sum};
  for (u32 i = thread_id(); i < values.count(); i += MatmulSizes<Tile>::threads) {
    if (values.at_n(i) >= n) continue;
    const float total = of_warps.total(i / values.block_n, i % values.block_n);
    if (sums.splits == 1)
      store(values.at_m(i), values.at_n(i), total);
    else
      sums.put(sums.split_of(work.item), values.place(i), total);
  }
}

/// Calls store() as above with the totals of all splits: what the last of their blocks does.
template <auto Tile, class Store>
NIBBLE_DEVICE void store_totals_of_splits(const MatmulWork<Tile>& work, const SplitSums& sums, u32 tile, i64 n,
                                          i64 first_sum, Store&& store) {
  const MatmulValues<Tile> values{work, tile, n, first_sum};
  constexpr u32 threads = MatmulSizes<Tile>::threads;
  // Where a thread has two values at most, the simple loop leaves the product's loop more registers.
  if constexpr (MatmulSizes<Tile>::max_m * MatmulSizes<Tile>::block_n <= 2 * threads) {
    for (u32 i = thread_id(); i < values.count(); i += threads) {
      if (values.at_n(i) < n) store(values.at_m(i), values.at_n(i), sums.total(values.place(i)));
    }
  } else {
    sums.template for_each_total<threads>(
        values.count(), [&](u32 i) { return values.place(i); },
        [&](u32 i, float total) { store(values.at_m(i), values.at_n(i), total); });
  }
}

/// Both: `group` are the blocks that divide the same sums, and the last of them to come here stores their totals.
template <auto Tile, class Store>
NIBBLE_DEVICE void store_totals(const MatmulWork<Tile>& work, const WarpSums<Tile>& of_warps, const SplitSums& sums,
                                u32 tile, i64 n, i64 first_sum, u32 group, Store&& store) {
  store_sums(work, of_warps, sums, tile, n, first_sum, store);
  if (sums.splits > 1 && sums.is_last(group)) store_totals_of_splits(work, sums, tile, n, first_sum, store);
}

}  // namespace nibble::kernels
