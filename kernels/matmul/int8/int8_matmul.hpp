// y [m, n] = x [m, k] * transposed(weight [n, k]) for a weight in LLM.int8() form, which is never written as floats.
//
// Bytes per weight: 1, read once for up to 64 of m; absmax is one value for a row. Bound: memory; 4.3 TB/s of an H200
// are 4.3e12 weights/s, and leave its 132 multiprocessors 6.9 to 7.8 instructions of a thread for each.
//
// Hence tensor cores from m = 1 on. A code is an integer that bf16 and fp16 hold exactly: 4 to 2.5 instructions turn
// two codes into a register (int8_pair.hpp), and mma.sync takes 16 of n as its large operand, 8 of m as its small one.
// The sums are of codes; absmax / 127 multiplies each of them once, at the end. docs/int8-matmul.md has the rounding.
//
//   warp    n x k = (16 * n_tiles) x (64 * groups) in a step: codes go from memory to registers, a step ahead
//   block   n_warps x k_warps warps, each with its own part of n and of a step's k
//   x       in shared memory: two steps in turn, by asynchronous copies
//   tiles   of n; a block takes every grid_x()-th, and loads the first codes of the next before it ends one
//   chunks  of m, one after the other, if m is more than the kernel takes at a time
//   sums    of the k_warps warps with the same n: through shared memory at the end, in order of k
//   split   where n is too small for all multiprocessors, blocks divide k; the last adds their sums (split_sums.hpp)
//
// A group of 64 of k: lane (g, q) of a warp, lane = 4 * g + q, loads 16 codes of n = g and 16 of n = g + 8, from
// k = 16 * q on. Each 4 of them are its part of one mma.sync, whose 16 of k are therefore not next to each other. That
// does no harm as long as x has the same order: the lane reads x[g] from k = 16 * q on.
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/matmul/int8/int8_matmul_tile.hpp"
#include "kernels/matmul/int8/int8_pair.hpp"
#include "kernels/matmul/matmul_block.hpp"
#include "kernels/matmul/split_sums.hpp"

namespace nibble::kernels {
using namespace device;

/// A weight [n, k], whose rows follow each other without gaps.
struct Int8Operand {
  Global<const u8> codes;
  Global<const float> absmax;
  i64 n, k;

  /// The sum of the products of x and the codes of row at_n, times the scale of that row. Without columns it is 0, and
  /// absmax may be null.
  [[nodiscard]] NIBBLE_DEVICE float scaled(float sum, i64 at_n) const {
    return k == 0 ? 0.0f : mul_rn(sum, div_rn(ldg(absmax + at_n), 127.0f));
  }
};

/// For k that are multiples of Tile.load_bytes and less than 2^31; codes are aligned to as many bytes, and x and its
/// rows to 16. Grid: blocks that take the tiles in turn.
template <class Half, Int8MatmulTile Tile> struct Int8Matmul {
  static constexpr u32 threads = Tile.threads(), min_blocks = Tile.min_blocks();
  static constexpr u32 block_m = Tile.block_m(), block_n = Tile.block_n(), block_k = Tile.block_k();
  static constexpr u32 m_tiles = Tile.m_tiles, n_tiles = Tile.n_tiles, groups = Tile.groups;
  static constexpr u32 n_warps = Tile.n_warps, k_warps = Tile.k_warps;
  static constexpr u32 warp_k = 64 * groups;  // of a step
  static_assert(threads == 256 && (Tile.load_bytes == 16 || Tile.load_bytes == 8));

  // Of a row of x in a step. 16 bytes more than it needs: the 8 rows of a quarter of a 16-byte load are then in
  // different banks.
  static constexpr u32 x_row_bytes = 2 * block_k + 16;

  NIBBLE_DEVICE_AND_HOST static constexpr u32 stage_bytes(u32 m) { return x_row_bytes * rows_of_x<Tile>(m); }
  NIBBLE_DEVICE_AND_HOST static constexpr u32 shared_bytes(u32 m) {
    const u32 x_bytes = 2 * stage_bytes(m), sum_bytes = WarpSums<Tile>::bytes(rows_of_x<Tile>(m));
    return x_bytes > sum_bytes ? x_bytes : sum_bytes;  // the sums of the warps overwrite x
  }
  NIBBLE_DEVICE_AND_HOST static constexpr u32 max_block_shared_bytes() { return shared_bytes(block_m); }
  static_assert(max_block_shared_bytes() <= 99 << 10);  // what a block may have on 8.6 and 8.9

  Int8Operand weight;
  Global<const Half> x;
  i64 x_stride;
  u32 m;
  MatmulOutput<Half> out;
  SplitSums sums;

  NIBBLE_DEVICE void operator()() const {
    const Lane lane;
    const Shared<u8> memory = dynamic_shared();
    Work work = first_work();
    Source source = source_of(work, lane);
    Codes next{};
    load(next, source);
    dependency_wait();  // so far only codes were read; an earlier kernel may have written x
    dependency_launch();
    while (!work.is_none()) {
      Sums sum = {};
      multiply_all(sum, work, source, next, memory, lane);
      finish(sum, work, memory, lane);
      work = after(work);
    }
  }

 private:
  using Lane = MatmulLane<Tile>;
  using Work = MatmulWork<Tile>;
  using Sums = MatmulSums<Tile>;

  // -- What a block does: a tile of n, a split of k, a chunk of m

  [[nodiscard]] NIBBLE_DEVICE u32 steps() const { return ceil_div(static_cast<u32>(weight.k), block_k); }
  [[nodiscard]] NIBBLE_DEVICE u32 first_step(u32 split) const { return sums.first_step(steps(), split); }
  [[nodiscard]] NIBBLE_DEVICE u32 tiles() const { return static_cast<u32>(ceil_div<i64>(weight.n, block_n)); }

  [[nodiscard]] NIBBLE_DEVICE Work first_work() const { return {block_x(), 0, m}; }
  // All chunks of a tile, then the next tile.
  [[nodiscard]] NIBBLE_DEVICE Work after(Work work) const {
    work.m_first += block_m;
    if (!work.is_none()) return work;
    const u32 item = work.item + grid_x();
    if (item >= tiles() * sums.splits) return work;
    return {item, 0, m};
  }

  // -- The codes: from memory to registers, a step ahead

  struct Source {
    Global<const u8> codes[n_tiles][2];  // of the lane's 16 in the next step's first group, n = g and g + 8
    i32 left;                            // of k, from there to the end of the block's
  };
  struct Codes {
    i32 left;                        // as in the source
    u32x4 word[groups][n_tiles][2];  // 16 codes each
  };

  [[nodiscard]] NIBBLE_DEVICE Source source_of(const Work& work, const Lane& lane) const {
    const u32 split = sums.split_of(work.item), k = static_cast<u32>(weight.k);
    const u32 end = work.is_none() ? 0 : first_step(split + 1) * block_k;
    const u32 at_k = first_step(split) * block_k + lane.k_warp * warp_k + 16 * lane.q;
    const i64 first_n = i64{sums.tile_of(work.item)} * block_n + lane.n_warp * (16 * n_tiles) + lane.g;
    Source source;
    source.left = static_cast<i32>((end < k ? end : k) - at_k);
    NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
      NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
        // Any n past the end is read as the last one; its sums are not stored.
        const i64 at_n = first_n + 16 * tile + 8 * half;
        source.codes[tile][half] = weight.codes + ((at_n < weight.n ? at_n : weight.n - 1) * weight.k + at_k);
      }
    }
    return source;
  }

  NIBBLE_DEVICE static void advance(Source& source) {
    source.left -= static_cast<i32>(block_k);
    NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
      NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
        source.codes[tile][half] = source.codes[tile][half] + block_k;
      }
    }
  }

  NIBBLE_DEVICE static void load(Codes& to, const Source& source) {
    to.left = source.left;
    NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) {
      NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
        NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half)
            load(to.word[i][tile][half], source.codes[tile][half] + 64 * i, source.left - static_cast<i32>(64 * i));
      }
    }
  }
  // Past the end a lane keeps its old codes: any numbers will do, because x is zeros there.
  NIBBLE_DEVICE static void load(u32x4& to, Global<const u8> from, i32 left) {
    if constexpr (Tile.load_bytes == 16) {
      if (left > 0) to = ldcs(from.template as<const u32x4>());
    } else {
      u32x2 low{to.x, to.y}, high{to.z, to.w};
      if (left > 0) low = ldcs(from.template as<const u32x2>());
      if (left > 8) high = ldcs((from + 8).template as<const u32x2>());
      to = {low.x, low.y, high.x, high.y};
    }
  }

  // -- x: from memory to shared memory

  [[nodiscard]] NIBBLE_DEVICE u32 stage_of(u32 step) const { return step % 2 * stage_bytes(m); }  // two in turn

  NIBBLE_DEVICE void copy_x(Shared<u8> to, const Work& work, u32 step, u32 last, const Lane& lane) const {
    if (step >= last) return;
    kernels::copy_x<Tile, x_row_bytes, slot_of>(to, MatmulX<Half>{x, x_stride, static_cast<u32>(weight.k)}, work, step,
                                                lane);
  }
  [[nodiscard]] NIBBLE_DEVICE static u32 slot_of(u32 piece) { return piece; }

  // -- The products of a tile, a split and a chunk

  NIBBLE_DEVICE void multiply_all(Sums& sum, const Work& work, Source& source, Codes& next, Shared<u8> memory,
                                  const Lane& lane) const {
    const u32 split = sums.split_of(work.item), first = first_step(split), last = first_step(split + 1);
    const Shared<u8> at_x = memory + (row_of_x(work, lane) * x_row_bytes + 2 * (lane.k_warp * warp_k + 16 * lane.q));
    copy_x(memory + stage_of(first), work, first, last, lane);
    cp_commit();
    for (u32 step = first; step < last; ++step) {
      // A warp waits for all of its loads at once, so the next step's loads must not begin before this step's have
      // arrived: the copy ensures that.
      const Codes now = next;
      if (step + 1 < last)
        advance(source);
      else
        source = source_of(after(work), lane);
      load(next, source);
      wait_for_x<Tile, k_warps == 1>(lane);
      copy_x(memory + stage_of(step + 1), work, step + 1, last, lane);
      cp_commit();
      multiply(sum, now, at_x + stage_of(step), lane);
    }
  }

  NIBBLE_DEVICE static void multiply(Sums& sum, const Codes& now, Shared<u8> at_x, const Lane& lane) {
    NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) {
      // Past the end there is nothing to multiply; x is zeros there, so that a kernel may do it all the same. The
      // branch is there because the compiler moves nothing across it: without it, the copies of the next step's codes
      // to `now`, which wait for these codes, would stand between the products of this step.
      if (m_tiles > 1 && static_cast<i32>(64 * i) >= now.left + static_cast<i32>(16 * lane.q)) break;
      const Fragments weights = fragments_of(now.word[i]);
      NIBBLE_UNROLL for (u32 t = 0; t < m_tiles; ++t)
          add_products(sum[t], weights, at_x + (8 * x_row_bytes * t + 128 * i));
    }
  }

  // The codes of a group as operands of mma.sync: of each tile of n four fragments, each with 4 of the lane's 16 codes
  // of each row.
  struct Fragments {
    u32 of[n_tiles][4][4];
  };
  [[nodiscard]] NIBBLE_DEVICE static Fragments fragments_of(const u32x4 (&word)[n_tiles][2]) {
    Fragments weights;
    NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
      NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
        const u32x4 codes = word[tile][half];
        const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
        NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) {
          weights.of[tile][f][half] = int8_pair<Half, 0>(words[f]);
          weights.of[tile][f][2 + half] = int8_pair<Half, 1>(words[f]);
        }
      }
    }
    return weights;
  }

  // The products of a group with one tile of m, whose row of this lane is at `at_x`.
  NIBBLE_DEVICE static void add_products(float (&sum)[n_tiles][4], const Fragments& weights, Shared<u8> at_x) {
    const u32x4 x0 = lds(at_x.template as<u32x4>()), x1 = lds((at_x + 16).template as<u32x4>());
    const u32 x_of[4][2] = {{x0.x, x0.y}, {x0.z, x0.w}, {x1.x, x1.y}, {x1.z, x1.w}};
    NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) {
      NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) mma<Half>(sum[tile], weights.of[tile][f], x_of[f]);
    }
  }

  // -- The end

  // Adds the sums of the warps with the same n and of all splits, scales the totals and stores them.
  NIBBLE_DEVICE void finish(const Sums& sum, const Work& work, Shared<u8> memory, const Lane& lane) const {
    const WarpSums<Tile> of_warps{memory.template as<float>(), rows_of_x<Tile>(m)};
    sync_threads();  // nobody reads x any more
    of_warps.put(sum, lane);
    sync_threads();
    const u32 tile = sums.tile_of(work.item), group = work.m_first / block_m * tiles() + tile;
    store_totals(work, of_warps, sums, tile, weight.n, 0, group,
                 [&](i64 at_m, i64 at_n, float total) { out.store(at_m, at_n, weight.scaled(total, at_n)); });
    if (sums.splits == 1 && !after(work).is_none()) sync_threads();  // the sums were read: x may overwrite them
  }
};

}  // namespace nibble::kernels
