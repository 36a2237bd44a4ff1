// y [m, n] = x [m, k] * transposed(weight [n, k]); the NF4 or FP4 weight is never written as floats.
//
// Bytes per weight: 0.5 packed and 1/64 + 4/16384 of nested absmax, 0.5159, read once for up to 64 of m. Bound: memory;
// 4.3 TB/s of an H200 are 8.3e12 weights/s, and leave its 132 multiprocessors 3.6 to 4.0 instructions of a thread for
// each. docs/four-bit-matmul.md has what the machine code needs.
//
// Hence tensor cores from m = 1 on: one lookup in a table of pairs (four_bit_pair_table.hpp) turns a byte of codes into
// a register of two weights, and mma.sync takes 16 of n as its large operand, 8 of m as its small one. The table has
// the codebook's values; absmax multiplies the accumulators of each 64 of k, 8 times less often than it would multiply
// weights, and no weight is rounded twice. If fewer weights are sure to share an absmax, 32, 16 or 8, it does so that
// much more often, and k is divided between lanes in another way (four_bit_matmul_run.hpp).
//
//   warp      n x k = 16 x 256 in a step, or 32 x 128
//   turn      one step or two: packed bytes go from memory to registers at once, during the turn before
//   codes     or, for want of registers, two steps ahead to shared memory (four_bit_matmul_codes.hpp)
//   block     NWarps x KWarps warps, each with its own part of n and of a step's k
//   x         in shared memory: all of k if there is room (KeepsX), else two steps in turn, by asynchronous copies
//   tiles     of n; a weight's blocks take them in turn, and load the first codes of the next before they end one
//   chunks    of m, one after the other, if m is more than the kernel takes at a time
//   sums      of the KWarps warps with the same n: through shared memory at the end, in order of k
//   split     where n is too small for all multiprocessors, blocks divide k; the last adds their sums (split_sums.hpp)
//
// This is one file of more than 400 lines, because its functions are the steps of one loop, which share its registers.
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/four_bit_weight.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_codes.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_run.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_source.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_tile.hpp"
#include "kernels/matmul/four_bit/four_bit_pair_table.hpp"
#include "kernels/matmul/matmul_block.hpp"
#include "kernels/matmul/split_sums.hpp"

namespace nibble::kernels {
using namespace device;

/// A weight of a launch, and where its product goes.
template <class Half> struct FourBitProduct {
  FourBitOperand weight;
  MatmulOutput<Half> out;
  i64 first_sum;    // of its y in SplitSums ...
  u32 first_group;  // ... and of its tiles
  u32 blocks;       // that take its items in turn, at most as many as it has items
};

/// The rows of x that a block multiplies: all m, or those of the expert block_z().
struct MatmulRows {
  u32 first, end;

  [[nodiscard]] NIBBLE_DEVICE static MatmulRows of_block(Global<const u32> ends, u32 m) {
    if (ends.is_null()) return {0, m};
    const u32 end = ld(ends + block_z());
    return {block_z() == 0 ? 0 : ld(ends + (block_z() - 1)), end < m ? end : m};
  }
};

/// For weights whose rows begin at multiples of Tile.run elements, with k a multiple of it, blocksizes of at least as
/// many and less than 2^32 runs; packed is aligned to 8 bytes (to 4 if a run is shorter than 64), x and its rows to 16.
///
/// Grid: x, the most blocks that a weight has (beyond its own, blocks end at once); y, 1; z, the weights of the launch,
/// which have the same k, blocksize and codebook, or the experts. With experts, the weight has n rows for each of them,
/// and expert e takes rows ends[e - 1] to ends[e] of x and y.
template <class Half, bool Nested, FourBitMatmulTile Tile, bool KeepsX = false> struct FourBitMatmul {
  static constexpr FourBitMatmulTile sizes = Tile;
  static constexpr u32 threads = Tile.threads(), min_blocks = Tile.min_blocks();
  static constexpr u32 block_m = Tile.block_m(), block_n = Tile.block_n(), block_k = Tile.block_k();
  static constexpr u32 max_m = Tile.max_m(), groups = Tile.groups();
  static constexpr u32 m_tiles = Tile.m_tiles, n_warps = Tile.n_warps, k_warps = Tile.k_warps, n_tiles = Tile.n_tiles;
  static constexpr u32 max_weights = 4, turn_steps = Tile.turn_steps();
  static constexpr bool block_waits = Tile.barrier == XBarrier::block || k_warps == 1;  // for x, all of its warps
  static constexpr bool copies_codes = Tile.copies_codes();
  static_assert(threads == 256);
  static_assert(!KeepsX || m_tiles == 1);

  using Run = FourBitMatmulRun<Tile.run>;
  static constexpr PairTableGaps gaps = m_tiles > 4    ? PairTableGaps::none  // no room for x beside gaps
                                        : copies_codes ? PairTableGaps::for_kernel
                                                       : PairTableGaps::for_nested;
  using Table = FourBitPairTable<Half, gaps>;

  // From row to row of a step's x in shared memory.
  static constexpr u32 x_row_bytes = 2 * block_k + Run::x_gap_bytes;

  // All of a step's x in shared memory.
  NIBBLE_DEVICE_AND_HOST static constexpr u32 stage_bytes(u32 m) { return x_row_bytes * rows_of_x<Tile>(m); }
  NIBBLE_DEVICE_AND_HOST static constexpr u64 shared_bytes(u32 m, u64 k) {
    const u32 sums = WarpSums<Tile>::bytes(rows_of_x<Tile>(m));
    if constexpr (KeepsX) return Table::bytes + ceil_div<u64>(k, block_k) * stage_bytes(m) + sums;
    const u32 ring = 2 * stage_bytes(m), larger = ring > sums ? ring : sums;  // the sums overwrite the ring
    // Neither needs the gap after its last row, which is at least 16 bytes.
    return Table::bytes + (larger > 0 ? larger - 16 : 0);
  }
  // A block may have 99 KiB on 8.6, 8.9 and 12.x. Static shared memory, that of SplitSums::is_last, takes 16 bytes.
  static constexpr u32 shared_limit = (99 << 10) - 16;
  NIBBLE_DEVICE_AND_HOST static constexpr u32 max_block_shared_bytes() {
    return KeepsX ? shared_limit : static_cast<u32>(shared_bytes(max_m, 0));
  }
  static_assert(max_block_shared_bytes() <= shared_limit);

  FourBitProduct<Half> product[max_weights];
  Global<const Half> x;
  i64 x_stride;
  u32 m;
  SplitSums sums;
  Global<const u32> ends;  // of the experts' rows of x; or null

  NIBBLE_DEVICE void operator()() const {
    const Lane lane;
    const Table table(dynamic_shared().part(0, Table::bytes));
    const Shared<u8> x_memory = dynamic_shared() + Table::bytes;
    if (!ends.is_null()) dependency_wait();  // an earlier kernel may have written `ends`

    // Issue the loads with the longest latency first: the operands, then the table's contents.
    Work work = first_work();
    if (work.is_none()) {
      if (ends.is_null())
        dependency_wait();  // a kernel after this one takes the end of this one for that of all before
      return;
    }
    const FourBitOperand& weight = product[weight_of_block()].weight;
    Reader reader = reader_of(work, lane);
    Turn next = {};
    Codes codes(table, lane);
    if constexpr (copies_codes) {
      codes.copy(0, reader.source, lane);
      cp_commit();
      next.step[0].load_absmax(weight, reader.source, lane);
    } else {
      load(next, weight, reader, lane);
    }
    float nested_value = 0, offset = 0;
    if constexpr (Nested) {
      nested_value = ldg(weight.absmax.nested_codebook + thread_id());
      offset = ldg(weight.absmax.nested_offset);
    }
    table.template fill<Nested>(weight.value, nested_value);
    if (ends.is_null()) dependency_wait();  // so far only the weight was read; an earlier kernel may have written x
    dependency_launch();
    if constexpr (KeepsX) copy_all_x(x_memory, work, lane);
    if constexpr (KeepsX || !block_waits) sync_threads();  // the table is there, and x if it is kept

    while (!work.is_none()) {
      Sums sum = {};
      if constexpr (copies_codes)
        multiply_all_copied(sum, work, reader, codes, next.step[0], table, x_memory, offset, lane);
      else
        multiply_all(sum, work, reader, next, table, x_memory, offset, lane);
      finish(sum, work, x_memory, lane);
      work = after(work);
    }
    if constexpr (copies_codes) cp_wait<0>();  // the last step has copied zeros, as if there were more work
  }

 private:
  using Lane = MatmulLane<Tile>;
  using Work = MatmulWork<Tile>;
  using Sums = MatmulSums<Tile>;
  using Source = FourBitMatmulSource<Tile>;
  using Operands = FourBitMatmulOperands<Nested, Tile>;
  using Codes = FourBitMatmulCodes<Table, Tile>;
  struct Turn {
    Operands step[turn_steps];
  };

  // -- What a block does: a tile of n, a split of k, a chunk of m

  [[nodiscard]] NIBBLE_DEVICE u32 weight_of_block() const { return ends.is_null() ? block_z() : 0; }
  [[nodiscard]] NIBBLE_DEVICE u32 steps() const { return ceil_div(static_cast<u32>(product[0].weight.k), block_k); }
  [[nodiscard]] NIBBLE_DEVICE u32 items() const {
    return static_cast<u32>(ceil_div<i64>(product[weight_of_block()].weight.n, block_n)) * sums.splits;
  }
  [[nodiscard]] NIBBLE_DEVICE u32 first_step(u32 split) const { return sums.first_step(steps(), split); }

  [[nodiscard]] NIBBLE_DEVICE Work first_work() const {
    const MatmulRows rows = MatmulRows::of_block(ends, m);
    return {block_x(), rows.first, block_x() < product[weight_of_block()].blocks ? rows.end : 0};
  }
  // All chunks of an item, then the block's next item.
  [[nodiscard]] NIBBLE_DEVICE Work after(Work work) const {
    work.m_first += max_m;
    if (!work.is_none()) return work;
    const u32 item = work.item + product[weight_of_block()].blocks;
    if (item >= items()) return work;
    work = first_work();
    work.item = item;
    return work;
  }

  // -- The codes: from memory to registers, one turn ahead

  // Goes through the turns of a block, one work after the other.
  struct Reader {
    Work work;
    u32 steps;  // of the work, from the first of the source's turn on
    Source source;
  };

  [[nodiscard]] NIBBLE_DEVICE Reader reader_of(const Work& work, const Lane& lane) const {
    const u32 split = sums.split_of(work.item), first = first_step(split), end = first_step(split + 1);
    const FourBitOperand& weight = product[weight_of_block()].weight;
    const i64 first_row = ends.is_null() ? 0 : i64{block_z()} * weight.n;
    return {work, end - first,
            Source(weight, first_row, sums.tile_of(work.item), first, work.is_none() ? 0 : end, lane)};
  }

  // From the last step of a turn to the first of the next one.
  NIBBLE_DEVICE void advance(Reader& reader, const Lane& lane) const {
    if (reader.steps > turn_steps)
      reader.source.advance();
    else
      reader = reader_of(after(reader.work), lane);
  }

  // Loads all that a turn needs, and goes to its last step. After an odd number of steps that is past the end, where
  // there is nothing to load.
  NIBBLE_DEVICE static void load(Turn& to, const FourBitOperand& weight, Reader& reader, const Lane& lane) {
    NIBBLE_UNROLL for (u32 i = 0; i < turn_steps; ++i) {
      if (i > 0) reader.source.advance();
      to.step[i].load(weight, reader.source, lane);
      if constexpr (Tile.prefetched_steps > 0) reader.source.prefetch(lane);
    }
  }

  // -- x: from memory to shared memory

  // Two steps in turn have a place each.
  [[nodiscard]] NIBBLE_DEVICE u32 stage_of(u32 step) const { return step % 2 * stage_bytes(m); }

  // The first byte that a lane reads of a step's x.
  [[nodiscard]] NIBBLE_DEVICE static u32 first_x_byte(const Work& work, const Lane& lane) {
    return row_of_x(work, lane) * x_row_bytes + lane.k_warp * (128 * groups) + Run::first_x_byte(lane.q);
  }

  NIBBLE_DEVICE void copy_x(Shared<u8> to, const Work& work, u32 step, u32 last, const Lane& lane) const {
    if (step >= last) return;
    const MatmulX<Half> from{x, x_stride, static_cast<u32>(product[0].weight.k)};
    kernels::copy_x<Tile, x_row_bytes, Run::slot_of>(to, from, work, step, lane);
  }

  NIBBLE_DEVICE void copy_all_x(Shared<u8> x_memory, const Work& work, const Lane& lane) const {
    for (u32 step = 0; step < steps(); ++step) copy_x(x_memory + i64{step} * stage_bytes(m), work, step, steps(), lane);
    cp_commit();
    cp_wait<0>();
  }

  // -- The products of a tile, a split and a chunk

  // `next` are the operands of the first turn; afterwards, those of the next work's.
  NIBBLE_DEVICE void multiply_all(Sums& sum, const Work& work, Reader& reader, Turn& next, const Table& table,
                                  Shared<u8> x_memory, float offset, const Lane& lane) const {
    const u32 split = sums.split_of(work.item), first = first_step(split), last = first_step(split + 1);
    const FourBitOperand& weight = product[weight_of_block()].weight;
    const u32 chunk_m = work.chunk_m();
    Shared<u8> at_x = x_memory + first_x_byte(work, lane);
    if constexpr (KeepsX)
      at_x = at_x + i64{first} * stage_bytes(m);
    else {
      copy_x(x_memory + stage_of(first), work, first, last, lane);
      cp_commit();
    }
    for (u32 turn = first; turn < last; turn += turn_steps) {
      if constexpr (!KeepsX && !Tile.loads_first) wait_for_x<Tile, block_waits>(lane);
      // A warp waits for all of its loads at once, so the next turn's loads must not begin before this turn's have
      // arrived: the copy ensures that.
      const Turn now = next;
      reader = {work, last - turn, reader.source};  // the same as before, but from values that this loop has anyway
      advance(reader, lane);
      load(next, weight, reader, lane);
      NIBBLE_UNROLL for (u32 i = 0; i < turn_steps; ++i) {
        const u32 step = turn + i;
        if (i > 0 && step >= last) break;
        if constexpr (!KeepsX) {
          if (Tile.loads_first || i > 0) wait_for_x<Tile, block_waits>(lane);
          copy_x(x_memory + stage_of(step + 1), work, step + 1, last, lane);
          cp_commit();
        }
        multiply(sum, now.step[i], chunk_m, table, KeepsX ? at_x : at_x + stage_of(step), offset, lane);
        if constexpr (KeepsX) at_x = at_x + stage_bytes(m);
      }
    }
  }

  // The same with codes that are copied to shared memory two steps ahead. On entry, the copies of the first step's
  // codes have started, and `next` has its absmax; afterwards, that is so for the next work's.
  //
  // A thread waits for a copy and for all that it has started before. So a step starts those of the next x first, and
  // then those of the codes that are needed after it: these stay in flight while the thread waits for x.
  NIBBLE_DEVICE void multiply_all_copied(Sums& sum, const Work& work, Reader& reader, Codes& codes, Operands& next,
                                         const Table& table, Shared<u8> x_memory, float offset,
                                         const Lane& lane) const {
    const u32 split = sums.split_of(work.item), first = first_step(split), last = first_step(split + 1);
    const FourBitOperand& weight = product[weight_of_block()].weight;
    const u32 chunk_m = work.chunk_m();
    const Shared<u8> at_x = x_memory + first_x_byte(work, lane);
    const auto copy_codes_after = [&](u32 step) {
      reader = {work, last - step, reader.source};  // it is at `step`
      advance(reader, lane);
      codes.copy(1, reader.source, lane);
      cp_commit();
    };
    copy_x(x_memory + stage_of(first), work, first, last, lane);
    cp_commit();
    copy_codes_after(first);
    for (u32 step = first; step < last; ++step) {
      Operands now = next;
      cp_wait<1>();  // all but the codes of the next step
      codes.take(now.packed);
      wait_for_warps<Tile, block_waits>(lane);
      next.load_absmax(weight, reader.source, lane);
      copy_x(x_memory + stage_of(step + 1), work, step + 1, last, lane);
      cp_commit();
      if (step + 1 < last) copy_codes_after(step + 1);
      multiply(sum, now, chunk_m, table, at_x + stage_of(step), offset, lane);
    }
  }

  // -- The products of a step

  NIBBLE_DEVICE static void multiply(Sums& sum, const Operands& now, u32 chunk_m, const Table& table, Shared<u8> at_x,
                                     float offset, const Lane& lane) {
    const Scales scales = scales_of(now, table, offset, lane);
    NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) {
      // Past the end there is nothing to multiply; x past the end is zeros, so that a kernel may do it all the same.
      // The branch also keeps the compiler from loading all groups' operands ahead of all products: that would take
      // more registers than there are for many sums. Without a barrier before it, it would also take more of a warp's
      // six counters of loads, of which those for the next step's codes need their own.
      if ((KeepsX || m_tiles > 1) && static_cast<i32>(i * Run::in_group) >= now.left) break;
      const Fragments weights = fragments_of(now, i, table, lane);
      NIBBLE_UNROLL for (u32 t = 0; t < m_tiles; ++t) {
        // Rows of x that do not exist, two tiles at a time; for 8 tiles this branch, too, saves registers.
        if (t > 0 && t % 2 == 0 && 8 * t >= chunk_m) break;
        const typename Run::X own_x = Run::load_x(at_x + (8 * x_row_bytes * t + 128 * i));
        NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
          NIBBLE_UNROLL for (u32 r = 0; r < Run::in_group; ++r) {
            add_run(sum[t][tile], weights.of[tile], own_x, r, scales.of[tile][i * Run::in_group + r]);
          }
        }
      }
    }
  }

  // absmax of each run in a step, for rows g and g + 8 of each tile of n.
  struct Scales {
    float of[n_tiles][Operands::runs][2];
  };
  // The lanes of a quad have loaded one each, of two rows and two runs, and give them to each other.
  [[nodiscard]] NIBBLE_DEVICE static Scales scales_of(const Operands& now, const Table& table, float offset,
                                                      const Lane& lane) {
    Scales scales;
    NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
      NIBBLE_UNROLL for (u32 run = 0; run < Operands::runs; ++run) {
        float own = now.absmax[tile][run / 2];
        if constexpr (Nested) own = FourBitAbsmax::decoded(table.nested_value_of(now.code[tile][run / 2]), own, offset);
        NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
          scales.of[tile][run][half] = shfl_idx(~0u, own, 4 * lane.g + 2 * half + run % 2);
        }
      }
    }
    return scales;
  }

  // The weights of a group as operands of mma.sync: of each tile of n four fragments, each with four weights of this
  // lane for each of its two rows (four_bit_matmul_run.hpp).
  struct Fragments {
    u32 of[n_tiles][4][4];
  };
  [[nodiscard]] NIBBLE_DEVICE static Fragments fragments_of(const Operands& now, u32 group, const Table& table,
                                                            const Lane& lane) {
    Fragments weights;
    NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
      NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
        const u32x2 packed = Run::multiplied(now.packed[group][tile][half], lane.q);
        NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) {
          const u32 word = f < 2 ? packed.x : packed.y;
          weights.of[tile][f][half] = table.pair_of(word, f % 2 * 2);
          weights.of[tile][f][2 + half] = table.pair_of(word, f % 2 * 2 + 1);
        }
      }
    }
    return weights;
  }

  // Adds the products of run `r` of a group, times its absmax. Of the four sums of a lane, two are of row g, two of g +
  // 8.
  NIBBLE_DEVICE static void add_run(float (&sum)[4], const u32 (&weights)[4][4], const typename Run::X& own_x, u32 r,
                                    const float (&scale)[2]) {
    float products[4] = {};
    NIBBLE_UNROLL for (u32 f = r * Run::mmas; f < (r + 1) * Run::mmas; ++f) {
      mma<Half>(products, weights[Run::fragment_of(f)], own_x.mma[f]);
    }
    NIBBLE_UNROLL for (u32 e = 0; e < 4; ++e) sum[e] = fma_rn(scale[e / 2], products[e], sum[e]);
  }

  // -- The end

  // Adds the sums of the warps with the same n and of all splits, and stores the totals.
  NIBBLE_DEVICE void finish(const Sums& sum, const Work& work, Shared<u8> x_memory, const Lane& lane) const {
    // The sums of the warps are after the x that is kept, or else where it was.
    const Shared<u8> memory = x_memory + (KeepsX ? i64{steps()} * stage_bytes(m) : 0);
    const WarpSums<Tile> of_warps{memory.template as<float>(), rows_of_x<Tile>(m)};
    if constexpr (!KeepsX) sync_threads();  // nobody reads x any more
    of_warps.put(sum, lane);
    sync_threads();
    const FourBitProduct<Half>& own = product[weight_of_block()];
    const u32 tile = sums.tile_of(work.item);
    const auto store = [&](i64 at_m, i64 at_n, float total) { own.out.store(at_m, at_n, total); };
    store_totals(work, of_warps, sums, tile, own.weight.n, own.first_sum, group_of(work, tile), store);
    // The sums were read: others may overwrite them, or x.
    if (sums.splits == 1 && !after(work).is_none()) sync_threads();
  }

  // The blocks that divide the same sums: those of a tile and a chunk.
  [[nodiscard]] NIBBLE_DEVICE u32 group_of(const Work& work, u32 tile) const {
    const u32 tiles = items() / sums.splits, chunk = work.m_first / max_m;
    return product[weight_of_block()].first_group + chunk * tiles + tile;
  }
};

}  // namespace nibble::kernels
