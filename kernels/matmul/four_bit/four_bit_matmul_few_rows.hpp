// y [m, n] = x [m, k] * transposed(weight [n, k]) for up to 16 rows of x, where TMA feeds a multiprocessor. For sm_90a.
//
// The arithmetic is that of four_bit_matmul.hpp. There, each lane loads its own codes from memory, 8 bytes of a row at
// a time, and the L1 cache passes one row in a clock: as many clocks as the table of pairs takes, in the same pipe.
// Here, TMA brings codes and x to shared memory without that pipe, and a lane reads 8 bytes of its rows in two clocks.
// No register waits for memory, so one block of 16 warps that multiply keeps it busy.
//
//   cluster   the blocks that divide k between them, 1 to 8: each has a split of it
//   block     16 warps that multiply, n_warps x k_warps of them, and a copier, a warp, for each of four stages
//   step      block_n x block_k weights, of which a warp has 32 x 64
//   stage     a step in shared memory: codes, x, absmax as floats; filled and emptied in turn
//   copier    fills its stage: one lane starts the copies, and all decode absmax
//   tiles     of n; a weight's clusters take them in turn, and the copiers are ahead by the stages that are free
//   sums      of the warps that divide k: 8 rows at a time, through shared memory, in order of k
//   totals    of the blocks that divide k: each row goes to one block of the cluster, which adds them in order of k
//
// It is one file because its parts share one layout of shared memory and the mbarriers in it: what copiers fill, warps
// read, and what warps put, blocks add.
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/four_bit_weight.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_absmax.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_few_rows_tile.hpp"
#include "kernels/matmul/four_bit/four_bit_pair_table.hpp"
#include "kernels/matmul/matmul_block.hpp"

namespace nibble::kernels {
using namespace device;

/// For the weights of FourBitMatmul with runs of 64, but packed is aligned to 16 bytes, and there are no experts; m is
/// at most max_m.
///
/// Grid: as of FourBitMatmul, without experts, in clusters of 2^log2_splits blocks, at most 8 and at most the steps of
/// k. A map has the codes of each weight, as bytes [n, k / 2], in boxes of tile_n rows, and `x_map` has x [m, k], whose
/// rows are x_stride elements apart.
template <class Half, bool Nested, FourBitMatmulFewRowsTile Tile> struct FourBitMatmulFewRows {
  static constexpr bool needs_sm90a = true;
  static constexpr u32 stages = Tile.code_stages, consumers = Tile.threads(), threads = consumers + 32 * stages,
                       min_blocks = 1;
  static constexpr u32 m_tiles = Tile.m_tiles, n_tiles = 2, max_weights = 4;
  static constexpr u32 log2_max_m = m_tiles == 1 ? 3 : 4;
  static constexpr u32 max_m = Tile.max_m(), block_n = Tile.block_n(), block_k = Tile.block_k();
  static constexpr u32 step_groups = block_k / 64;  // of 64 along k: one of each warp
  static constexpr u32 warps = consumers / 32;
  static_assert(warps == 16 && step_groups % 4 == 0 && Tile.n_tiles == n_tiles);

  // The boxes that TMA copies: so much of each of block_n or max_m rows. Up to 8 rows of x are copied one by one
  // instead: these are fewer copies than a step has groups.
  static constexpr u32 codes_box_bytes = 128, x_box_columns = 64;
  static constexpr u32 codes_box = 128 * block_n, codes_bytes = step_groups / 4 * codes_box, x_box = 128 * max_m;
  static constexpr bool copies_rows = m_tiles == 1;
  static constexpr u32 x_row_bytes = 2 * block_k + 16;  // the gap puts what lanes read at a time in different banks
  static constexpr u32 x_bytes = copies_rows ? (max_m * x_row_bytes + 1023) / 1024 * 1024 : step_groups * x_box;
  static constexpr u32 stage_bytes = codes_bytes + x_bytes;
  using Absmax = FourBitMatmulAbsmax<Nested, step_groups, step_groups * block_n / 32>;  // of a step
  static constexpr u32 scale_row = Absmax::row_stride, scales_bytes = 4 * scale_row * block_n;

  // Shared memory: the first stage and all that is small, the table of pairs, whose gaps have the sums, and the other
  // stages.
  using Table = FourBitAlignedPairTable<Half>;
  static constexpr u32 table_offset = Table::alignment, upper_offset = table_offset + Table::bytes;
  static constexpr u32 first_scale = stage_bytes, first_nested = first_scale + stages * scales_bytes;
  static constexpr u32 first_total = first_nested + 4 * 256, totals_bytes = 4 * max_m * block_n;
  static constexpr u32 first_mbarrier = first_total + totals_bytes, sum_buffers = 2;
  static_assert(1024 + first_mbarrier + 8 * (2 * stages + sum_buffers + 2) <= table_offset);
  static constexpr u32 shared_bytes = upper_offset + (stages - 1) * stage_bytes;
  NIBBLE_DEVICE_AND_HOST static constexpr u32 max_block_shared_bytes() { return shared_bytes; }
  static_assert(shared_bytes <= 227 << 10);

  // What a block needs first is side by side: a multiprocessor loads arguments when they are used, 64 bytes at a time.
  u32 m, groups, log2_splits;                     // groups of 64 along k
  u32 tile_n;                                     // of n in a tile: a multiple of 16, at most block_n
  u32 items[max_weights], clusters[max_weights];  // items: tiles of n
  FourBitProduct<Half> product[max_weights];
  TensorMap codes_map[max_weights], x_map;
  Global<const Half> x;
  i64 x_stride;

  NIBBLE_DEVICE void operator()() const {
    // A grid has as many blocks for each weight as one with more tiles needs. These need not wait for the kernel
    // before: the launch ends with its other blocks, which do.
    if (first_tile() >= own_tiles()) return;
    const Memory memory{};
    const Table table(memory.table);
    const bool copies = thread_id() >= consumers;
    const u32 own_stage = warp_id() - warps;  // of a copier
    Position first = {};
    Absmax absmax = {};
    float offset = 0;
    // None of this depends on the kernel before.
    if (copies) {
      first = first_of_stage(own_stage);
      if (lane_id() == 0) {
        memory.init(own_stage, log2_splits);
        if (first.tile < own_tiles()) copy_codes(memory, own_stage, first);
      }
      if (first.tile < own_tiles()) load_absmax(absmax, first);
      if constexpr (Nested) offset = ldg(product[block_z()].weight.absmax.nested_offset);
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
      fill(memory, own_stage, first, absmax, offset);
      return;
    }
    // Each warp has two tiles of 16 of n, but the last ones of a smaller tile.
    Lane lane;
    lane.n_warp = (lane.n_warp + lane.k_warp) % Tile.n_warps;  // those with less to do are of different schedulers
    if (32 * lane.n_warp + 16 < tile_n)
      multiply_all<2>(memory, table, lane);
    else
      multiply_all<1>(memory, table, lane);
  }

 private:
  static constexpr FourBitMatmulFewRowsTile lane_tile{1, Tile.n_warps, Tile.k_warps};
  using Lane = MatmulLane<lane_tile>;
  using Sums = float[m_tiles][n_tiles][4];

  struct Memory {
    Shared<u8> all, table, scales;
    Shared<float> nested;            // the codebook of nested absmax
    Shared<float> totals;            // of all blocks of the cluster, for the rows that this one adds
    Shared<u64> full, empty;         // a mbarrier for each stage ...
    Shared<u64> sums;                // ... for each buffer of sums: all warps have put theirs there ...
    Shared<u64> sent, taken;         // ... and for all warps of the cluster: totals were put there, and read
    u32 first_stage, to_next_stage;  // the address of the first, and how far away the second is

    // A block's addresses of shared memory begin at a multiple of 2^24, so that the table's is the first multiple of
    // 64 KiB after them.
    NIBBLE_DEVICE Memory()
        : all(dynamic_shared()),
          table(all.with_address((all.address() | (table_offset - 1)) + 1).part(0, Table::bytes)) {
      const Shared<u8> lower = dynamic_shared_aligned(1024);
      scales = lower.part(first_scale, stages * scales_bytes);
      nested = lower.part(first_nested, 4 * 256).template as<float>();
      full = lower.part(first_mbarrier, 8 * stages).template as<u64>();
      empty = lower.part(first_mbarrier + 8 * stages, 8 * stages).template as<u64>();
      sums = lower.part(first_mbarrier + 16 * stages, 8 * sum_buffers).template as<u64>();
      sent = lower.part(first_mbarrier + 16 * stages + 8 * sum_buffers, 8).template as<u64>();
      taken = lower.part(first_mbarrier + 16 * stages + 8 * sum_buffers + 8, 8).template as<u64>();
      totals = lower.part(first_total, totals_bytes).template as<float>();
      first_stage = lower.address();
      to_next_stage = table.address() + Table::bytes - first_stage;
    }

    /// Of a copier's own stage; the first one's also all others.
    NIBBLE_DEVICE void init(u32 stage, u32 log2_splits) const {
      mbar_init(full + stage, 2);  // that the copies have started, and that absmax is there
      mbar_init(empty + stage, warps);
      if (stage == 0) {
        NIBBLE_UNROLL for (u32 i = 0; i < sum_buffers; ++i) mbar_init(sums + i, warps);
        mbar_init(sent, warps << log2_splits);
        mbar_init(taken, warps << log2_splits);
      }
      mbar_init_fence();
    }
    /// How far the stage is from the first.
    [[nodiscard]] NIBBLE_DEVICE u32 offset_of(u32 stage) const {
      return stage == 0 ? 0 : to_next_stage + (stage - 1) * stage_bytes;
    }
    [[nodiscard]] NIBBLE_DEVICE Shared<u8> stage(u32 i) const { return all.with_address(first_stage + offset_of(i)); }
  };

  // -- What a block does, tile by tile and step by step

  struct Position {
    u32 tile, step, end;  // steps from 0 on
  };

  // A block's number in its cluster.
  [[nodiscard]] NIBBLE_DEVICE u32 split() const { return block_x() & ((1 << log2_splits) - 1); }
  [[nodiscard]] NIBBLE_DEVICE u32 steps() const { return ceil_div(groups, step_groups); }
  [[nodiscard]] NIBBLE_DEVICE u32 own_tiles() const { return items[block_z()]; }
  // Of the block's cluster. Surplus clusters start past the last tile.
  [[nodiscard]] NIBBLE_DEVICE u32 first_tile() const {
    const u32 cluster = block_x() >> log2_splits;
    return cluster < clusters[block_z()] ? cluster : own_tiles();
  }
  [[nodiscard]] NIBBLE_DEVICE u32 tile_after(u32 tile) const { return tile + clusters[block_z()]; }
  [[nodiscard]] NIBBLE_DEVICE u32 turn_of(u32 tile) const { return (tile - first_tile()) / clusters[block_z()]; }
  [[nodiscard]] NIBBLE_DEVICE Position start_of(u32 tile) const {
    return {tile, steps() * split() >> log2_splits, steps() * (split() + 1) >> log2_splits};
  }
  [[nodiscard]] NIBBLE_DEVICE Position after(Position at) const {
    return ++at.step < at.end ? at : start_of(tile_after(at.tile));
  }

  // -- Copiers: each fills its stage with every fourth step of the block

  [[nodiscard]] NIBBLE_DEVICE Position ahead(Position at, u32 steps) const {
    for (u32 i = 0; i < steps && at.tile < own_tiles(); ++i) at = after(at);
    return at;
  }
  [[nodiscard]] NIBBLE_DEVICE Position first_of_stage(u32 stage) const { return ahead(start_of(first_tile()), stage); }
  // The groups of a step before the end of k.
  [[nodiscard]] NIBBLE_DEVICE u32 groups_in(const Position& at) const {
    const u32 left = groups - step_groups * at.step;
    return left < step_groups ? left : step_groups;
  }

  // By one thread. Also says how many bytes will come in all.
  NIBBLE_DEVICE void copy_codes(const Memory& memory, u32 stage, const Position& at) const {
    const u32 own_groups = groups_in(at), boxes = ceil_div(own_groups, 4u);
    mbar_expect_tx_arrive(memory.full + stage, boxes * 128 * tile_n + own_groups * 128 * (copies_rows ? m : max_m));
    const Shared<u8> to = memory.stage(stage);
    for (u32 i = 0; i < boxes; ++i) {
      tma_load_2d(to.part(i * codes_box, 128 * tile_n), codes_map[block_z()],
                  static_cast<i32>(32 * (step_groups * at.step + 4 * i)), static_cast<i32>(at.tile * tile_n),
                  memory.full + stage);
    }
  }
  NIBBLE_DEVICE void copy_x(const Memory& memory, u32 stage, const Position& at) const {
    const Shared<u8> to = memory.stage(stage) + codes_bytes;
    if constexpr (copies_rows) {
      Global<const Half> from = x + i64{at.step} * block_k;
      for (u32 row = 0; row < m; ++row) {
        bulk_g2s(to.part(row * x_row_bytes, 2 * block_k), from.template as<const u8>(), 128 * groups_in(at),
                 memory.full + stage);
        from = from + x_stride;
      }
    } else {
      for (u32 i = 0; i < groups_in(at); ++i) {
        tma_load_2d(to.part(i * x_box, x_box), x_map, static_cast<i32>(64 * (step_groups * at.step + i)), 0,
                    memory.full + stage);
      }
    }
  }

  // What a warp needs of absmax from memory is loaded while the stage is still full of an earlier step.
  NIBBLE_DEVICE void load_absmax(Absmax& to, const Position& at) const {
    to.load(product[block_z()].weight, at.tile * tile_n, step_groups * at.step, groups_in(at));
  }

  // `at` is the first step of the stage, whose codes are being copied, and `absmax` its own.
  NIBBLE_DEVICE void fill(const Memory& memory, u32 stage, Position at, Absmax& absmax, float offset) const {
    u32 parity = 0;  // of the next time that the stage is emptied
    for (bool is_first = true; at.tile < own_tiles(); is_first = false) {
      if (!is_first) {
        mbar_wait(memory.empty + stage, parity);
        parity ^= 1;
      }
      if (lane_id() == 0) {
        if (!is_first) copy_codes(memory, stage, at);
        copy_x(memory, stage, at);
      }
      const Shared<float> scales = (memory.scales + stage * scales_bytes).template as<float>();
      absmax.template store<block_n>(scales, 0, memory.nested, offset);
      sync_warp();  // all lanes have stored theirs
      if (lane_id() == 0) mbar_arrive(memory.full + stage);
      at = ahead(at, stages);
      if (at.tile < own_tiles()) load_absmax(absmax, at);
    }
  }

  // -- Products

  // Where a lane finds its operands in the first stage: addresses. TMA swizzles: piece i of 16 bytes of row r is where
  // piece i ^ r % 8 would be. The rows of a fragment are in another order than n: the codes of 0, 2, 4 and 6, which
  // half a warp loads at once, are in different banks.
  struct Source {
    u32 code, x, scale;

    NIBBLE_DEVICE Source(const Memory& memory, const Lane& lane, u32 m) {
      const u32 in_8 = row_in_8(lane), row = lane.n_warp * 16 * n_tiles + in_8, group = lane.k_warp;
      code = group / 4 * codes_box + 128 * row + ((group % 4 * 32 + lane.q / 2 * 16) ^ 16 * in_8) + lane.q % 2 * 8;
      if constexpr (copies_rows)  // rows that do not exist are not there: their sums are not stored
        x = codes_bytes + x_row_bytes * (lane.g < m ? lane.g : m - 1) + 128 * group + 32 * lane.q;
      else
        x = codes_bytes + group * x_box + 128 * lane.g + 16 * (2 * lane.q ^ lane.g);
      // The compiler would rather calculate them again in each step.
      code = opaque(memory.first_stage + code);
      x = opaque(memory.first_stage + x);
      scale = opaque(memory.scales.address() + 4 * (row * scale_row + group));
    }
    /// Of the second piece of 16 bytes of x, whose first one is at `one`.
    [[nodiscard]] NIBBLE_DEVICE static u32 other_x(u32 one) { return copies_rows ? one + 16 : one ^ 16; }
    [[nodiscard]] NIBBLE_DEVICE static u32 row_in_8(const Lane& lane) { return 2 * (lane.g % 4) + lane.g / 4; }
  };

  // With OwnTiles tiles of 16 of n; with 1, the warp may also have none.
  template <u32 OwnTiles>
  NIBBLE_DEVICE void multiply_all(const Memory& memory, const Table& table, const Lane& lane) const {
    const Source source(memory, lane, m);
    u32 step = 0, batch = 0;  // of the block; of 8 rows of a tile
    for (u32 tile = first_tile(); tile < own_tiles(); tile = tile_after(tile)) {
      Sums sum = {};
      // Of the last step of k, some warps have no group.
      const Position at = start_of(tile);
      const bool has_n = OwnTiles == 2 || 32 * lane.n_warp < tile_n;
      const bool has_last = has_n && (at.end < steps() || lane.k_warp < groups - step_groups * (at.end - 1));
      for (u32 left = at.end - at.step; left > 0; --left) {
        const u32 stage = step % stages;
        mbar_wait(memory.full + stage, step / stages % 2);
        if (left > 1 ? has_n : has_last) multiply<OwnTiles>(sum, memory, stage, table, source);
        sync_warp();  // all lanes have read the stage
        if (lane.id == 0) mbar_arrive(memory.empty + stage);
        ++step;
      }
      // The other blocks of the cluster have begun, or have read the totals of the tile before.
      if (log2_splits > 0) {
        if (tile == first_tile())
          cluster_wait();
        else
          mbar_wait_cluster(memory.taken, (turn_of(tile) - 1) % 2);
      }
      NIBBLE_NO_UNROLL for (u32 t = 0; 8 * t < m; ++t) {
        float own[n_tiles][4];
        NIBBLE_UNROLL for (u32 other = 0; other < m_tiles; ++other) {
          NIBBLE_UNROLL for (u32 i = 0; i < n_tiles * 4; ++i) {
            if (other == 0 || other == t) own[i / 4][i % 4] = sum[other][i / 4][i % 4];
          }
        }
        put<OwnTiles>(own, memory, table, batch, lane, 8 * t);
        add_sums(tile, memory, table, batch, 8 * t);
        ++batch;
      }
      if (log2_splits > 0) add_totals(tile, memory, lane);
    }
  }

  // The warp's group of a step.
  template <u32 OwnTiles>
  NIBBLE_DEVICE void multiply(Sums& sum, const Memory& memory, u32 stage, const Table& table,
                              const Source& source) const {
    const u32 offset = memory.offset_of(stage);
    const Shared<u8> codes = memory.all.with_address(source.code + offset);
    const Shared<u8> one_x = memory.all.with_address(source.x + offset);
    const Shared<u8> other_x = memory.all.with_address(Source::other_x(source.x + offset));
    const Shared<u8> scales = memory.scales.with_address(source.scale + stage * scales_bytes);
    u32 weights[OwnTiles][4][4];
    float scale[OwnTiles][2];
    NIBBLE_UNROLL for (u32 tile = 0; tile < OwnTiles; ++tile) {
      NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
        const u32 row = 16 * tile + 8 * half;
        const u32x2 packed = lds((codes + 128 * row).template as<u32x2>());
        scale[tile][half] = lds((scales + 4 * scale_row * row).template as<float>());
        NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) {
          const u32 word = f < 2 ? packed.x : packed.y;
          weights[tile][f][half] = table.pair_of(word, f % 2 * 2);
          weights[tile][f][2 + half] = table.pair_of(word, f % 2 * 2 + 1);
        }
      }
    }
    // Two tiles of 8 rows at a time: a warp does not wait for one product before it starts the next. Rows that do not
    // exist are multiplied, too.
    constexpr u32 at_once = m_tiles < 2 ? 1 : 2;
    NIBBLE_UNROLL for (u32 first = 0; first < m_tiles; first += at_once) {
      u32 own_x[at_once][4][2];
      NIBBLE_UNROLL for (u32 t = 0; t < at_once; ++t) {
        const u32x4 low = lds((one_x + 1024 * (first + t)).template as<u32x4>()),
                    high = lds((other_x + 1024 * (first + t)).template as<u32x4>());
        const u32 words[4][2] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};
        NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) {
          NIBBLE_UNROLL for (u32 i = 0; i < 2; ++i) own_x[t][f][i] = words[f][i];
        }
      }
      NIBBLE_UNROLL for (u32 tile = 0; tile < OwnTiles; ++tile) {
        float products[at_once][4] = {};
        NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) {
          NIBBLE_UNROLL for (u32 t = 0; t < at_once; ++t) mma<Half>(products[t], weights[tile][f], own_x[t][f]);
        }
        NIBBLE_UNROLL for (u32 t = 0; t < at_once; ++t) {
          float(&own)[4] = sum[first + t][tile];
          NIBBLE_UNROLL for (u32 e = 0; e < 4; ++e) own[e] = fma_rn(scale[tile][e / 2], products[t][e], own[e]);
        }
      }
    }
  }

  // -- The end of a tile: the sums of warps, 8 rows of y at a time. A warp's 32 sums of a row are in a gap of the
  // table. There are two buffers of 128 gaps, used in turn: whoever has waited for one has seen all warps leave the
  // other.

  [[nodiscard]] NIBBLE_DEVICE static u32 gap_of(u32 batch, u32 warp, u32 row) {
    return 8 * (warps * (batch % sum_buffers) + warp) + row;
  }
  /// Where a gap has column n of the row: what the lanes of a warp put at a time is in different banks.
  [[nodiscard]] NIBBLE_DEVICE static u32 place_of(u32 n, u32 row) { return n ^ 8 * (row / 2); }

  template <u32 OwnTiles>
  NIBBLE_DEVICE void put(const float (&sum)[n_tiles][4], const Memory& memory, const Table& table, u32 batch,
                         const Lane& lane, u32 first_row) const {
    const u32 warp = lane.k_warp * Tile.n_warps + lane.n_warp;
    NIBBLE_UNROLL for (u32 u = 0; u < 2; ++u) {
      const u32 row = 2 * lane.q + u;
      if (first_row + row >= m) continue;
      const Shared<float> gap = table.gap(gap_of(batch, warp, row)).template as<float>();
      NIBBLE_UNROLL for (u32 i = 0; i < 2 * OwnTiles; ++i) {
        sts(gap + place_of(8 * i + Source::row_in_8(lane), row), sum[i / 2][i % 2 * 2 + u]);
      }
    }
    sync_warp();  // all lanes have put theirs
    if (lane.id == 0) mbar_arrive(memory.sums + batch % sum_buffers);
    mbar_wait(memory.sums + batch % sum_buffers, batch / sum_buffers % 2);
  }

  /// Adds them, and stores y, or gives the totals to the blocks that add them: those of row r to block r % blocks.
  NIBBLE_DEVICE void add_sums(u32 tile, const Memory& memory, const Table& table, u32 batch, u32 first_row) const {
    const auto add = [&](u32 i) {
      const u32 in_8 = i / block_n, n = i % block_n, row = first_row + in_8;
      if (in_8 >= 8 || row >= m || n >= tile_n) return;
      const Shared<float> gap = table.gap(gap_of(batch, n / 32, in_8)).template as<float>() + place_of(n % 32, in_8);
      float total = 0;
      NIBBLE_UNROLL for (u32 k_warp = 0; k_warp < Tile.k_warps; ++k_warp) {
        total = add_rn(total, lds(gap + k_warp * (8 * Tile.n_warps * Table::gap_stride / 4)));
      }
      if (log2_splits == 0)
        store(tile, row, n, total);
      else
        st_cluster(mapa(memory.totals, row & ((1 << log2_splits) - 1)) + place_of_total(split(), row, n), total);
    };
    // A loop if nested, unrolled if not: the other way each runs out of registers.
    if constexpr (Nested) {
      NIBBLE_NO_UNROLL for (u32 i = thread_id(); i < 8 * block_n; i += consumers) add(i);
    } else {
      NIBBLE_UNROLL for (u32 i = 0; i < 8 * block_n; i += consumers) add(thread_id() + i);
    }
  }

  [[nodiscard]] NIBBLE_DEVICE u32 place_of_total(u32 split, u32 row, u32 n) const {
    return ((split << log2_max_m >> log2_splits) + (row >> log2_splits)) * block_n + n;
  }

  /// The totals of all blocks of the cluster, for this one's rows.
  NIBBLE_DEVICE void add_totals(u32 tile, const Memory& memory, const Lane& lane) const {
    const u32 blocks = 1 << log2_splits;
    sync_warp();  // all lanes have given theirs
    if (lane.id < blocks) mbar_arrive_cluster(mapa(memory.sent, lane.id));
    mbar_wait_cluster(memory.sent, turn_of(tile) % 2);
    for (u32 i = thread_id(); i < (max_m * block_n) >> log2_splits; i += consumers) {
      const u32 row = (i / block_n << log2_splits) + split(), n = i % block_n;
      if (row >= m) break;
      if (n >= tile_n) continue;
      float total = 0;
      for (u32 s = 0; s < blocks; ++s) total = add_rn(total, lds(memory.totals + place_of_total(s, row, n)));
      store(tile, row, n, total);
    }
    if (tile_after(tile) >= own_tiles()) return;  // nobody sends more
    sync_warp();                                  // all lanes have read them
    if (lane.id < blocks) mbar_arrive_cluster(mapa(memory.taken, lane.id));
  }

  NIBBLE_DEVICE void store(u32 tile, u32 row, u32 n, float total) const {
    const FourBitProduct<Half>& own = product[block_z()];
    const u32 at_n = tile * tile_n + n;
    if (at_n >= static_cast<u32>(own.weight.n)) return;
    if (own.out.is_sum())
      own.out.store_sum(row, at_n, total);
    else
      own.out.store(row, at_n, total);
  }
};

}  // namespace nibble::kernels
