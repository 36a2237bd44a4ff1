// y [m, n] = x [m, k] * transposed(weight [n, k]) for more rows of x than four_bit_matmul_few_rows.hpp takes: wgmma,
// with the weight in registers. For sm_90a.
//
// The arithmetic is that of the other kernels: a table of pairs makes two weights of a byte, the tensor cores multiply
// them, and absmax multiplies the sums of each 64 of k. A warpgroup has 64 of n, so that what it reads of x meets twice
// as many weights as in a warp of the other kernels. It decodes, multiplies and adds in turn, and the other warpgroups
// use the units that it leaves idle.
//
//   cluster   the blocks that divide k between them, 1 to 8: each has a split of it
//   block     two to four warpgroups that multiply, n_warpgroups x k_warpgroups of them, and one that copies
//   copies    TMA, into two rings: codes and absmax in steps of 256 of k, by a warp for each stage, and x in groups of
//             64, by another warp. They run ahead into the next item
//   group     64 of k: four wgmma of a warpgroup; those that divide k take groups in turn
//   item      a tile of n and a chunk of m; a weight's clusters take them in turn
//   sums      of the warpgroups and blocks that divide k, 32 rows of y at a time: each row is added by one block of the
//             cluster, in order of k
//
// It is one file for the same reason as four_bit_matmul_few_rows.hpp.
#pragma once
#include <type_traits>

#include "kernels/device/device.hpp"
#include "kernels/four_bit_weight.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_absmax.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_ring.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_sm90_tile.hpp"
#include "kernels/matmul/four_bit/four_bit_pair_table.hpp"

namespace nibble::kernels {
using namespace device;

/// For the weights of FourBitMatmul with runs of 64, but packed is aligned to 16 bytes, and there are no experts.
///
/// Grid: as of FourBitMatmul, without experts, in clusters of 2^log2_splits blocks, at most 8 and at most the steps of
/// k. A map has the codes of each weight, as bytes [n, k / 2], in boxes of tile_n rows, and `x_map` has x [m, k].
template <class Half, bool Nested, FourBitMatmulSm90Tile Tile> struct FourBitMatmulSm90 {
  static constexpr bool needs_sm90a = true;
  static constexpr u32 consumers = Tile.threads(), threads = consumers + 128, min_blocks = 1, max_weights = 4;
  static constexpr u32 rows = Tile.rows, max_m = rows, block_n = Tile.block_n();
  static constexpr u32 step_groups = Tile.step_k / 64;  // of 64 along k
  static constexpr u32 n_warpgroups = Tile.n_warpgroups, k_warpgroups = Tile.k_warpgroups;
  static constexpr u32 warps = consumers / 32, consumer_registers = Tile.consumer_registers();
  static constexpr u32 copier_registers = Tile.copier_registers();

  // What TMA copies of a row at a time, of tile_n rows of codes or `rows` of x.
  static constexpr u32 codes_box_bytes = 32 * step_groups, x_box_columns = 64;
  static constexpr u32 codes_bytes = codes_box_bytes * block_n, x_bytes = 128 * rows;
  using Absmax = FourBitMatmulAbsmax<Nested, step_groups, 16>;  // a part of a step's
  static constexpr u32 scale_row = Absmax::row_stride, scales_bytes = 4 * scale_row * block_n;

  // Shared memory: all that is small, the table of pairs, whose gaps have sums, and stages of codes and of x. Those of
  // x lie before the table and those of codes behind it, or the other way round if x does not fit. x has stages for the
  // groups of one step, or of two if they fit. A stage of x is always read by the same warpgroups, because a wait sees
  // only the parity of a mbarrier's phases: a warpgroup that left out two of them would not notice.
  using Table = FourBitAlignedPairTable<Half>;
  static constexpr u32 code_stages = Tile.code_stages, nested_bytes = 4 * 256, max_shared_bytes = 227 << 10;
  static constexpr u32 mbarrier_bytes = 8 * (2 * code_stages + 2 * 2 * step_groups + 2);
  static constexpr u32 table_offset = Table::alignment, upper_offset = table_offset + Table::bytes;
  static constexpr u32 lower_bytes = table_offset - 1024 - code_stages * scales_bytes - nested_bytes - mbarrier_bytes;
  static constexpr u32 all_codes_bytes = code_stages * codes_bytes, x_step_bytes = step_groups * x_bytes;
  static constexpr bool x_is_lower = x_step_bytes <= lower_bytes;
  static constexpr u32 bytes_for_x = x_is_lower ? lower_bytes : max_shared_bytes - upper_offset;
  static constexpr u32 x_steps = 2 * x_step_bytes <= bytes_for_x ? 2 : 1, all_x_bytes = x_steps * x_step_bytes;
  static constexpr u32 lower_copies_bytes = x_is_lower ? all_x_bytes : all_codes_bytes;
  static constexpr u32 upper_copies_bytes = x_is_lower ? all_codes_bytes : all_x_bytes;
  static_assert(lower_copies_bytes <= lower_bytes && rows % 32 == 0 && consumers >= 256);
  static_assert(all_codes_bytes >= 32 << 10 && all_x_bytes <= bytes_for_x);
  static constexpr u32 first_scale = lower_copies_bytes, first_nested = first_scale + code_stages * scales_bytes;
  static constexpr u32 first_mbarrier = first_nested + nested_bytes;
  static constexpr u32 shared_bytes = upper_offset + upper_copies_bytes;
  NIBBLE_DEVICE_AND_HOST static constexpr u32 max_block_shared_bytes() { return shared_bytes; }
  static_assert(shared_bytes <= max_shared_bytes);

  // What a block needs first is side by side: a multiprocessor loads arguments when they are used, 64 bytes at a time.
  u32 m, groups, log2_splits;                     // groups of 64 along k
  u32 tile_n;                                     // of n in a tile: a multiple of 64, at most block_n
  u32 items[max_weights], clusters[max_weights];  // items: tiles times chunks of m
  FourBitProduct<Half> product[max_weights];
  TensorMap codes_map[max_weights], x_map;

  NIBBLE_DEVICE void operator()() const {
    // A grid has as many blocks for each weight as one with more items needs. These need not wait for the kernel
    // before: the launch ends with its other blocks, which do.
    if (first_item() >= own_items()) return;
    const Memory memory{};
    const Table table(memory.table);
    const bool copies = thread_id() >= consumers;
    const u32 copier = warp_id() - warps;  // of those that copy; the last one copies x
    Position first = {};
    Absmax absmax = {};
    float offset = 0;
    // None of this depends on the kernel before.
    if (copies) {
      if (copier < code_stages) {
        first = ahead(start_of(first_item()), copier);
        if (lane_id() == 0) {
          memory.init_codes(copier);
          if (first.item < own_items()) copy_codes(memory, copier, first);
        }
        if (first.item < own_items()) load_absmax(absmax, first, 0);
        if constexpr (Nested) offset = ldg(product[block_z()].weight.absmax.nested_offset);
      } else if (lane_id() == 0) {
        memory.init_x(log2_splits);
      }
    } else if (thread_id() < 256) {
      const FourBitOperand& weight = product[block_z()].weight;
      table.fill(weight.value);
      if constexpr (Nested) sts(memory.nested + thread_id(), ldg(weight.absmax.nested_codebook + thread_id()));
    }
    // Tells the cluster that the mbarriers are there. Copiers do not wait for it: they reach no other block.
    if (log2_splits > 0) cluster_arrive_relaxed();
    sync_threads();     // the other mbarriers and the table are there
    dependency_wait();  // an earlier kernel may have written x
    dependency_launch();
    if (copies) {
      setmaxnreg_dec<copier_registers>();
      if (copier < code_stages)
        copy_all_codes(memory, copier, first, absmax, offset);
      else if (lane_id() == 0)
        copy_all_x(memory);
    } else {
      setmaxnreg_inc<consumer_registers>();
      multiply_all(memory, table);
    }
  }

 private:
  using Fragments = u32[4][4];  // of a group: four of 16 along k
  using Sums = float[rows / 2];

  struct Lane {
    u32 id = lane_id(), g = lane_id() / 4, q = lane_id() % 4;
    // Of its warpgroup.
    [[nodiscard]] NIBBLE_DEVICE u32 n_warpgroup() const { return warp_id() / 4 % n_warpgroups; }
    [[nodiscard]] NIBBLE_DEVICE u32 k_warpgroup() const { return k_warpgroups == 1 ? 0 : warp_id() / 4 / n_warpgroups; }
    /// Its first row of the block's n; the second is 8 more.
    [[nodiscard]] NIBBLE_DEVICE u32 row() const { return 16 * (warp_id() % (4 * n_warpgroups)) + g; }
  };

  struct Memory {
    Shared<u8> all, table, codes, x;
    Shared<float> scales, nested;  // nested: the codebook of nested absmax
    Shared<u64> codes_full, codes_empty, x_full, x_empty;
    Shared<u64> sent, taken;  // of the cluster: all blocks have put their sums, and all warps have read this block's

    // A block's addresses of shared memory begin at a multiple of 2^24, so that the table's is the first multiple of
    // 64 KiB after them.
    NIBBLE_DEVICE Memory()
        : all(dynamic_shared()),
          table(all.with_address((all.address() | (table_offset - 1)) + 1).part(0, Table::bytes)) {
      const Shared<u8> lower = all.with_address(opaque(dynamic_shared_aligned(1024).address()));
      const Shared<u8> upper = all.with_address(table.address() + Table::bytes);
      codes = (x_is_lower ? upper : lower).part(0, all_codes_bytes);
      x = (x_is_lower ? lower : upper).part(0, all_x_bytes);
      scales = lower.part(first_scale, code_stages * scales_bytes).template as<float>();
      nested = lower.part(first_nested, 4 * 256).template as<float>();
      u32 at = first_mbarrier;
      const auto mbarriers = [&](u32 count) {
        const Shared<u64> some = lower.part(at, 8 * count).template as<u64>();
        at += 8 * count;
        return some;
      };
      codes_full = mbarriers(code_stages);
      codes_empty = mbarriers(code_stages);
      x_full = mbarriers(x_steps * step_groups);
      x_empty = mbarriers(x_steps * step_groups);
      sent = mbarriers(1);
      taken = mbarriers(1);
    }

    NIBBLE_DEVICE void init_codes(u32 stage) const {
      mbar_init(codes_full + stage, 2);  // that the copy has started, and that absmax is there
      mbar_init(codes_empty + stage, warps);
      mbar_init_fence();
    }
    NIBBLE_DEVICE void init_x(u32 log2_splits) const {
      NIBBLE_UNROLL for (u32 i = 0; i < x_steps * step_groups; ++i) {
        mbar_init(x_full + i, 1);
        mbar_init(x_empty + i, warps / k_warpgroups);
      }
      mbar_init(sent, 1 << log2_splits);
      mbar_init(taken, warps << log2_splits);
      mbar_init_fence();
    }
  };

  // -- What a block does, item by item and step by step

  struct Position {
    u32 item, step, end;  // (tile of n) * chunks + (chunk of m); steps from 0 on
  };

  // A block's number in its cluster.
  [[nodiscard]] NIBBLE_DEVICE u32 split() const { return block_x() & ((1 << log2_splits) - 1); }
  [[nodiscard]] NIBBLE_DEVICE u32 steps() const { return ceil_div(groups, step_groups); }
  [[nodiscard]] NIBBLE_DEVICE u32 chunks() const { return ceil_div(m, rows); }
  [[nodiscard]] NIBBLE_DEVICE u32 chunk_of(u32 item) const { return item % chunks(); }
  [[nodiscard]] NIBBLE_DEVICE u32 tile_of(u32 item) const { return item / chunks(); }
  [[nodiscard]] NIBBLE_DEVICE u32 own_items() const { return items[block_z()]; }
  // Of the block's cluster. Surplus clusters start past the last item.
  [[nodiscard]] NIBBLE_DEVICE u32 first_item() const {
    const u32 cluster = block_x() >> log2_splits;
    return cluster < clusters[block_z()] ? cluster : own_items();
  }
  [[nodiscard]] NIBBLE_DEVICE u32 item_after(u32 item) const { return item + clusters[block_z()]; }
  [[nodiscard]] NIBBLE_DEVICE Position start_of(u32 item) const {
    return {item, steps() * split() >> log2_splits, steps() * (split() + 1) >> log2_splits};
  }
  [[nodiscard]] NIBBLE_DEVICE Position after(Position at) const {
    return ++at.step < at.end ? at : start_of(item_after(at.item));
  }
  [[nodiscard]] NIBBLE_DEVICE Position ahead(Position at, u32 steps) const {
    for (u32 i = 0; i < steps && at.item < own_items(); ++i) at = after(at);
    return at;
  }
  [[nodiscard]] NIBBLE_DEVICE u32 groups_of(const Position& at) const {
    const u32 left = groups - step_groups * at.step;
    return left < step_groups ? left : step_groups;
  }

  // -- Copies of x, by one thread

  NIBBLE_DEVICE void copy_all_x(const Memory& memory) const {
    FourBitMatmulRing<x_steps> ring;
    for (Position at = start_of(first_item()); at.item < own_items(); at = after(at), ring.advance()) {
      // All groups of each step: past the end of k x is zeros, which nobody multiplies.
      for (u32 i = 0; i < step_groups; ++i) {
        const u32 stage = step_groups * ring.stage + i;
        mbar_wait(memory.x_empty + stage, ring.parity ^ 1);
        mbar_expect_tx_arrive(memory.x_full + stage, x_bytes);
        tma_load_2d(memory.x.part(stage * x_bytes, x_bytes), x_map, static_cast<i32>(64 * (step_groups * at.step + i)),
                    static_cast<i32>(chunk_of(at.item) * rows), memory.x_full + stage);
      }
    }
  }

  // -- Copies of codes, and absmax: each warp fills its stage with every third step of the block

  // By one thread.
  NIBBLE_DEVICE void copy_codes(const Memory& memory, u32 stage, const Position& at) const {
    mbar_expect_tx_arrive(memory.codes_full + stage, codes_box_bytes * tile_n);
    tma_load_2d(memory.codes.part(stage * codes_bytes, codes_box_bytes * tile_n), codes_map[block_z()],
                static_cast<i32>(at.step * codes_box_bytes), static_cast<i32>(tile_of(at.item) * tile_n),
                memory.codes_full + stage);
  }

  NIBBLE_DEVICE void load_absmax(Absmax& to, const Position& at, u32 row) const {
    to.load(product[block_z()].weight, tile_of(at.item) * tile_n + row, step_groups * at.step, groups_of(at));
  }

  // `at` is the first step of the stage, whose codes are being copied, and `absmax` is the first part of its own. That
  // part is loaded while the stage is still full of an earlier step.
  NIBBLE_DEVICE void copy_all_codes(const Memory& memory, u32 stage, Position at, Absmax& absmax, float offset) const {
    u32 parity = 0;  // of the next time that the stage is emptied
    for (bool is_first = true; at.item < own_items(); is_first = false) {
      if (!is_first) {
        mbar_wait(memory.codes_empty + stage, parity);
        parity ^= 1;
        if (lane_id() == 0) copy_codes(memory, stage, at);
      }
      const Shared<float> scales = memory.scales + stage * (scales_bytes / 4);
      absmax.template store<block_n>(scales, 0, memory.nested, offset);
      NIBBLE_NO_UNROLL for (u32 row = Absmax::rows; row < tile_n; row += Absmax::rows) {
        load_absmax(absmax, at, row);
        absmax.template store<block_n>(scales, row, memory.nested, offset);
      }
      sync_warp();  // all lanes have stored theirs
      if (lane_id() == 0) mbar_arrive(memory.codes_full + stage);
      at = ahead(at, code_stages);
      if (at.item < own_items()) load_absmax(absmax, at, 0);
    }
  }

  // -- Products

  // Where a lane finds its operands in the first stages: addresses. TMA swizzles: piece p of 16 bytes of row r is where
  // piece p ^ r % 8 would be.
  struct Source {
    u32 codes, scale, selector;

    NIBBLE_DEVICE Source(const Memory& memory, const Lane& lane)
        : codes(in_register(memory.codes.address() + 128 * lane.row() + (16 * lane.g ^ 32 * lane.k_warpgroup()))),
          scale(in_register(memory.scales.address() + 4 * (scale_row * lane.row() + lane.k_warpgroup()))),
          selector(in_register(Table::selector_of(lane.q))) {}

    // A value that passes through a shuffle stays in its register: without that, the compiler calculates it again for
    // each group.
    [[nodiscard]] NIBBLE_DEVICE static u32 in_register(u32 value) { return shfl_idx(~0u, value, lane_id()); }
  };

  NIBBLE_DEVICE void multiply_all(const Memory& memory, const Table& table) const {
    const Lane lane;
    const Source source(memory, lane);
    const bool has_n = 64 * lane.n_warpgroup() < tile_n;
    FourBitMatmulRing<code_stages> codes;
    FourBitMatmulRing<x_steps> x_ring;
    u32 round = 0;  // of 32 rows of y
    for (u32 item = first_item(); item < own_items(); item = item_after(item)) {
      Sums sum = {};
      const Position start = start_of(item);
      for (u32 left = start.end - start.step; left > 0; --left) {
        mbar_wait(memory.codes_full + codes.stage, codes.parity);
        const Step step(memory, source, codes.stage, x_ring, lane);
        const u32 step_end = left > 1 ? step_groups : groups_of({item, start.end - 1, start.end});
        if (has_n)
          multiply_step(sum, memory, table, source, step, step_end, lane);
        else
          pass(step, 0, lane);
        sync_warp();  // all lanes have read the codes and absmax of the step
        if (lane.id == 0) mbar_arrive(memory.codes_empty + codes.stage);
        codes.advance();
        x_ring.advance();
      }
      if (k_warpgroups == 1 && log2_splits == 0)
        store_all(sum, item, has_n, lane);
      else
        add_all(sum, item, has_n, memory, table, round, lane);
    }
    if (log2_splits > 0) wait_for_readers(memory, round - 1);  // the block may not end before
  }

  // Where a warpgroup finds the operands of a step: addresses, and of x the lower half of a descriptor.
  struct Step {
    u32 codes, scale, x, x_parity;
    Shared<u64> x_full, x_empty;

    NIBBLE_DEVICE Step(const Memory& memory, const Source& source, u32 code_stage,
                       const FourBitMatmulRing<x_steps>& x_ring, const Lane& lane)
        : codes(source.codes + code_stage * codes_bytes),
          scale(source.scale + code_stage * scales_bytes),
          x((memory.x.address() + x_ring.stage * x_step_bytes + lane.k_warpgroup() * x_bytes) >> 4 | 1 << 16),
          x_parity(x_ring.parity),
          x_full(memory.x_full + (step_groups * x_ring.stage + lane.k_warpgroup())),
          x_empty(memory.x_empty + (step_groups * x_ring.stage + lane.k_warpgroup())) {}
  };

  // Whether a thread has registers to decode a group while it adds the one before. With 96 rows it lacks some.
  static constexpr bool has_room_for_two = warps < 16 && rows != 96;

  // The groups of a step that are the warpgroup's.
  NIBBLE_DEVICE static void multiply_step(Sums& sum, const Memory& memory, const Table& table, const Source& source,
                                          const Step& step, u32 groups, const Lane& lane) {
    const auto multiply_group = [&](u32 i) {
      multiply(sum, memory, table, source, step, i);
      if (lane.id == 0) mbar_arrive(step.x_empty + i);
    };
    u32 i = 0;
    if constexpr (!has_room_for_two) {
      // The branches keep the compiler from taking two groups at a time.
      groups = opaque(groups);  // otherwise it would calculate them again for each group
      NIBBLE_UNROLL for (; i < step_groups; i += k_warpgroups) {
        if (i + lane.k_warpgroup() >= groups) break;
        multiply_group(i);
      }
    } else if (groups == step_groups) {
      NIBBLE_UNROLL for (; i < step_groups; i += k_warpgroups) multiply_group(i);
    } else {
      NIBBLE_NO_UNROLL for (; i + lane.k_warpgroup() < groups; i += k_warpgroups) multiply_group(i);
    }
    pass(step, i, lane);
  }

  // The groups from i on, which the warpgroup does not multiply: a stage may be emptied only after it was filled.
  NIBBLE_DEVICE static void pass(const Step& step, u32 i, const Lane& lane) {
    if (lane.id != 0) return;
    NIBBLE_NO_UNROLL for (; i < step_groups; i += k_warpgroups) {
      mbar_wait(step.x_full + i, step.x_parity);
      mbar_arrive(step.x_empty + i);
    }
  }

  NIBBLE_DEVICE static void multiply(Sums& sum, const Memory& memory, const Table& table, const Source& source,
                                     const Step& step, u32 i) {
    Fragments fragments;
    decode(fragments, memory, table, source, step, i);
    Sums d;
    constexpr u64 upper_half = u64{1024 >> 4} << 32 | u64{1} << 62;  // of a descriptor: the same for all tiles
    const u32 tile = step.x + (i * x_bytes >> 4);
    mbar_wait(step.x_full + i, step.x_parity);
    wgmma_fence(d, fragments);
    NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) wgmma(d, fragments[f], upper_half | (tile + 2 * f), f > 0);
    wgmma_commit();
    const Shared<float> scales = memory.scales.with_address(step.scale) + i;
    const float low = lds(scales), high = lds(scales + 8 * scale_row);
    wgmma_wait<0>(d, fragments);
    NIBBLE_UNROLL for (u32 j = 0; j < rows / 2; ++j) sum[j] = fma_rn(j / 2 % 2 == 0 ? low : high, d[j], sum[j]);
  }

  // A group's weights. Of each four bytes of codes, which are 8 of k, lane q of a quad needs byte q: in a fragment of
  // wgmma it has the weights 2q and 2q + 1 of each 8. All lanes of a quad load the same 16 bytes.
  NIBBLE_DEVICE static void decode(Fragments& fragments, const Memory& memory, const Table& table, const Source& source,
                                   const Step& step, u32 i) {
    NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
      NIBBLE_UNROLL for (u32 piece = 0; piece < 2; ++piece) {
        const Shared<u8> from = memory.all.with_address(step.codes ^ 16 * (2 * i + piece)) + 1024 * half;
        const u32x4 words = lds(from.template as<u32x4>());
        fragments[2 * piece][half] = table.selected_pair_of(words.x, source.selector);
        fragments[2 * piece][2 + half] = table.selected_pair_of(words.y, source.selector);
        fragments[2 * piece + 1][half] = table.selected_pair_of(words.z, source.selector);
        fragments[2 * piece + 1][2 + half] = table.selected_pair_of(words.w, source.selector);
      }
    }
  }

  NIBBLE_DEVICE static void wgmma(Sums& d, u32 (&fragment)[4], u64 x, u32 adds) {
    if constexpr (std::is_same_v<Half, bf16>)
      wgmma_bf16<rows>(d, fragment, x, adds);
    else
      wgmma_f16<rows>(d, fragment, x, adds);
  }

  // -- The end of an item

  /// Where nobody divides k.
  NIBBLE_DEVICE void store_all(const Sums& sum, u32 item, bool has_n, const Lane& lane) const {
    if (!has_n) return;
    const FourBitProduct<Half>& own = product[block_z()];
    const u32 first_m = chunk_of(item) * rows;
    const i64 first_n = i64{tile_of(item)} * tile_n;
    const auto store = [&](auto&& body) {
      NIBBLE_UNROLL for (u32 j = 0; j < rows / 2; ++j) {
        const u32 at_m = first_m + row_of(j, lane);
        const i64 at_n = first_n + n_of(j, lane);
        if (at_m < m && at_n < own.weight.n) body(at_m, at_n, sum[j]);
      }
    };
    if (own.out.is_sum())  // the compiler asks once, not for each value
      store([&](u32 at_m, i64 at_n, float value) { own.out.store_sum(at_m, at_n, value); });
    else
      store([&](u32 at_m, i64 at_n, float value) { own.out.store(at_m, at_n, value); });
  }

  // What sum j of a lane is of, in the chunk of m and in the tile of n.
  [[nodiscard]] NIBBLE_DEVICE static u32 row_of(u32 j, const Lane& lane) { return 8 * (j / 4) + 2 * lane.q + j % 2; }
  [[nodiscard]] NIBBLE_DEVICE static u32 n_of(u32 j, const Lane& lane) { return lane.row() + 8 * (j / 2 % 2); }

  // Where k is divided: the sums of a cluster, so many rows of y at a time. Each block puts its own in the gaps of its
  // table, and adds those of its rows from all blocks: row r is of block r % blocks.
  static constexpr u32 round_rows = 32;
  static_assert(round_rows * block_n * k_warpgroups * 4 <= 256 * 128);

  /// Where a block has its sum of column n of the tile in row r of a round. What the lanes of a warp put at a time is
  /// in different banks.
  [[nodiscard]] NIBBLE_DEVICE static Shared<float> place_of(const Table& table, u32 k_warpgroup, u32 row, u32 n) {
    const u32 gap = (k_warpgroup * round_rows + row) * (block_n / 32) + n / 32;
    return table.gap(gap).template as<float>() + (n % 32 ^ 8 * (row / 2 % 4));
  }

  NIBBLE_DEVICE void add_all(const Sums& sum, u32 item, bool has_n, const Memory& memory, const Table& table,
                             u32& round, const Lane& lane) const {
    const u32 blocks = 1 << log2_splits, first_m = chunk_of(item) * rows;
    const i64 first_n = i64{tile_of(item)} * tile_n;
    NIBBLE_UNROLL for (u32 first = 0; first < rows; first += round_rows) {
      if (first_m + first >= m) break;
      if (round > 0)
        wait_for_readers(memory, round - 1);
      else if (blocks > 1)
        cluster_wait();  // the other blocks have begun
      NIBBLE_UNROLL for (u32 j = first / 2; j < (first + round_rows) / 2; ++j) {
        const u32 row = row_of(j, lane);
        if (has_n && first_m + row < m) sts(place_of(table, lane.k_warpgroup(), row - first, n_of(j, lane)), sum[j]);
      }
      bar_sync(1, consumers);  // the block's sums are there
      if (blocks > 1) {
        if (thread_id() < blocks) mbar_arrive_cluster(mapa(memory.sent, thread_id()));
        mbar_wait_cluster(memory.sent, round % 2);
      }
      add(first_m + first, first_n, table);
      if (blocks > 1) {
        sync_warp();  // all lanes have read them
        if (lane.id < blocks) mbar_arrive_cluster_after_reads(mapa(memory.taken, lane.id));
      }
      ++round;
    }
  }

  // All have read what this block put there.
  NIBBLE_DEVICE void wait_for_readers(const Memory& memory, u32 round) const {
    if (log2_splits > 0)
      mbar_wait_cluster(memory.taken, round % 2);
    else
      bar_sync(1, consumers);
  }

  // The block's rows of a round, four of n at a time.
  NIBBLE_DEVICE void add(u32 first_m, i64 first_n, const Table& table) const {
    const FourBitProduct<Half>& own = product[block_z()];
    const u32 blocks = 1 << log2_splits;
    for (u32 i = 4 * thread_id(); i < (round_rows * block_n) >> log2_splits; i += 4 * consumers) {
      const u32 row = (i / block_n << log2_splits) + split(), n = i % block_n;
      const i64 at_n = first_n + n;
      if (first_m + row >= m) break;
      if (n >= tile_n || at_n >= own.weight.n) continue;
      float total[4] = {};
      for (u32 block = 0; block < blocks; ++block) {
        f32x4 part[k_warpgroups];
        NIBBLE_UNROLL for (u32 k_warpgroup = 0; k_warpgroup < k_warpgroups; ++k_warpgroup) {
          const Shared<f32x4> at = place_of(table, k_warpgroup, row, n).template as<f32x4>();
          part[k_warpgroup] = blocks == 1 ? lds(at) : ld_cluster(mapa(at, block));
        }
        NIBBLE_UNROLL for (u32 k_warpgroup = 0; k_warpgroup < k_warpgroups; ++k_warpgroup) {
          const float values[4] = {part[k_warpgroup].x, part[k_warpgroup].y, part[k_warpgroup].z, part[k_warpgroup].w};
          NIBBLE_UNROLL for (u32 j = 0; j < 4; ++j) total[j] = add_rn(total[j], values[j]);
        }
      }
      NIBBLE_UNROLL for (u32 j = 0; j < 4; ++j) {
        if (at_n + j < own.weight.n) own.out.store(first_m + row, at_n + j, total[j]);
      }
    }
  }
};

}  // namespace nibble::kernels
