// y [m, n] = x [m, k] * transposed(weight [n, k]) for up to 32 rows of x, where TMA feeds a multiprocessor. For sm_90a.
//
// The arithmetic is that of four_bit_matmul.hpp. There, each lane loads its own codes from memory, 8 bytes of a row at
// a time, and the L1 cache passes one row in a clock: as many clocks as the table of pairs takes, in the same pipe.
// Here, TMA brings codes and x to shared memory without that pipe, and a lane reads 8 bytes of its rows in two clocks.
// No register waits for memory, so one block of 16 warps that multiply keeps it busy.
//
//   block     16 warps that multiply, n_warps x k_warps of them, and a copier, a warp, for each of four stages
//   step      block_n x block_k weights, of which a warp has 32 x 64
//   stage     a step in shared memory: codes, x, absmax as floats; filled and emptied in turn
//   copier    fills its stage: one lane starts the copies, and all decode absmax
//   tiles     of n; a weight's blocks take them in turn, and the copiers are ahead by the stages that are free
//   sums      of the warps that divide k: through shared memory at the end, in order of k
//   split     as in the other kernel: the last block to finish adds the sums (split_sums.hpp)
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/four_bit_weight.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_bulk_tile.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_ring.hpp"
#include "kernels/matmul/four_bit/four_bit_pair_table.hpp"
#include "kernels/matmul/matmul_block.hpp"
#include "kernels/matmul/split_sums.hpp"

namespace nibble::kernels {
using namespace device;

/// For the weights of FourBitMatmul with runs of 64, but packed is aligned to 16 bytes, and there are no experts; m is
/// at most max_m.
///
/// Grid: as of FourBitMatmul, without experts. A map has the codes of each weight, as bytes [n, k / 2], and `x_map` has
/// x [m, k], whose rows are x_stride elements apart.
template <class Half, bool Nested, FourBitMatmulBulkTile Tile> struct FourBitMatmulBulk {
  static constexpr bool needs_sm90a = true;
  static constexpr u32 stages = 4, consumers = Tile.threads(), threads = consumers + 32 * stages, min_blocks = 1;
  static constexpr u32 m_tiles = Tile.m_tiles, n_tiles = 2, max_weights = 4;
  static constexpr u32 max_m = Tile.max_m(), block_n = Tile.block_n(), block_k = Tile.block_k();
  static constexpr u32 step_groups = block_k / 64;  // of 64 along k: one of each warp
  static_assert(consumers == 512 && step_groups % 4 == 0);

  // The boxes that TMA copies: so much of each of block_n or max_m rows. Up to 8 rows of x are copied one by one
  // instead: these are fewer copies than a step has groups.
  static constexpr u32 codes_box_bytes = 128, x_box_columns = 64;
  static constexpr u32 codes_box = 128 * block_n, codes_bytes = step_groups / 4 * codes_box, x_box = 128 * max_m;
  static constexpr bool copies_rows = m_tiles == 1;
  static constexpr u32 x_row_bytes = 2 * block_k + 16;  // the gap puts what lanes read at a time in different banks
  static constexpr u32 x_bytes = copies_rows ? (max_m * x_row_bytes + 1023) / 1024 * 1024 : step_groups * x_box;
  static constexpr u32 stage_bytes = codes_bytes + x_bytes;
  static constexpr u32 scale_row = step_groups + 1;  // from row to row: what lanes read at a time is in different banks

  // Sums are of 8 rows of y at a time.
  static constexpr FourBitMatmulBulkTile sums_tile{1, Tile.n_warps, Tile.k_warps};
  using Table = FourBitPairTable<Half, PairTableGaps::for_nested>;
  static constexpr u32 scales_bytes = 4 * scale_row * block_n, sums_bytes = WarpSums<sums_tile>::bytes(8);
  static constexpr u32 first_stage = Table::bytes, first_scale = first_stage + stages * stage_bytes;
  static constexpr u32 first_sum = first_scale + stages * scales_bytes, first_mbarrier = first_sum + sums_bytes;
  static constexpr u32 shared_bytes = first_mbarrier + 16 * stages + 1024;  // 1024 to align tiles
  NIBBLE_DEVICE_AND_HOST static constexpr u32 max_block_shared_bytes() { return shared_bytes; }
  static_assert(shared_bytes + 16 <= 227 << 10);  // static shared memory, that of SplitSums, takes 16

  FourBitProduct<Half> product[max_weights];
  TensorMap codes_map[max_weights], x_map;
  Global<const Half> x;
  i64 x_stride;
  u32 m;
  SplitSums sums;

  NIBBLE_DEVICE void operator()() const {
    // A grid has as many blocks for each weight as one with more tiles needs. These need not wait for the kernel
    // before: the launch ends with its other blocks, which do.
    if (first_item() >= items()) return;
    const Memory memory(dynamic_shared_aligned(1024));
    const Table table(memory.table);
    const Lane lane;
    const bool copies = thread_id() >= consumers;
    const u32 own_stage = warp_id() - consumers / 32;  // of a copier
    float offset = 0;
    if (thread_id() == consumers) memory.init();
    if (copies) {
      bar_sync(2, 32 * stages);  // the mbarriers are there
      // Codes do not depend on the kernel before.
      const Position first = first_of_stage(own_stage);
      if (lane.id == 0 && first.item < items()) copy_codes(memory, own_stage, first);
      if constexpr (Nested) offset = ldg(product[block_z()].weight.absmax.nested_offset);
    } else if (thread_id() < 256) {
      const FourBitOperand& weight = product[block_z()].weight;
      float nested_value = 0;
      if constexpr (Nested) nested_value = ldg(weight.absmax.nested_codebook + thread_id());
      table.template fill<Nested>(weight.value, nested_value);
    }
    dependency_wait();  // an earlier kernel may have written x
    dependency_launch();
    sync_threads();  // the mbarriers and the table are there
    if (copies)
      fill(memory, table, own_stage, offset, lane.id);
    else
      multiply_all(memory, table, lane);
  }

 private:
  using Lane = MatmulLane<sums_tile>;
  using Sums = MatmulSums<sums_tile>[m_tiles];

  struct Memory {
    Shared<u8> table, stage, scales, sums;
    Shared<u64> full, empty;  // a mbarrier for each stage

    NIBBLE_DEVICE explicit Memory(Shared<u8> all)
        : table(all.part(0, Table::bytes)),
          stage(all.part(first_stage, stages * stage_bytes)),
          scales(all.part(first_scale, stages * scales_bytes)),
          sums(all.part(first_sum, sums_bytes)),
          full(all.part(first_mbarrier, 8 * stages).template as<u64>()),
          empty(all.part(first_mbarrier + 8 * stages, 8 * stages).template as<u64>()) {}

    NIBBLE_DEVICE void init() const {
      NIBBLE_UNROLL for (u32 i = 0; i < stages; ++i) {
        mbar_init(full + i, 2);  // that the copies have started, and that absmax is there
        mbar_init(empty + i, consumers / 32);
      }
      mbar_init_fence();
    }
  };

  // -- What a block does, item by item and step by step

  struct Position {
    u32 item, step, end;  // (tile of n) * splits + (split of k); steps from 0 on
  };

  [[nodiscard]] NIBBLE_DEVICE u32 groups() const { return static_cast<u32>(product[0].weight.k) / 64; }
  [[nodiscard]] NIBBLE_DEVICE u32 steps() const { return ceil_div(groups(), step_groups); }
  [[nodiscard]] NIBBLE_DEVICE u32 items() const {
    return static_cast<u32>(ceil_div<i64>(product[block_z()].weight.n, block_n)) * sums.splits;
  }
  // Surplus blocks start past the last item.
  [[nodiscard]] NIBBLE_DEVICE u32 first_item() const {
    return block_x() < product[block_z()].blocks ? block_x() : items();
  }
  [[nodiscard]] NIBBLE_DEVICE Position position_of(u32 item) const {
    const u32 split = sums.split_of(item);
    return {item, sums.first_step(steps(), split), sums.first_step(steps(), split + 1)};
  }
  [[nodiscard]] NIBBLE_DEVICE Position after(Position at) const {
    return ++at.step < at.end ? at : position_of(at.item + product[block_z()].blocks);
  }

  // -- Copiers: each fills its stage with every fourth step of the block

  [[nodiscard]] NIBBLE_DEVICE Position ahead(Position at, u32 steps) const {
    for (u32 i = 0; i < steps && at.item < items(); ++i) at = after(at);
    return at;
  }
  [[nodiscard]] NIBBLE_DEVICE Position first_of_stage(u32 stage) const {
    return ahead(position_of(first_item()), stage);
  }
  // The groups of a step before the end of k.
  [[nodiscard]] NIBBLE_DEVICE u32 groups_in(const Position& at) const {
    const u32 left = groups() - step_groups * at.step;
    return left < step_groups ? left : step_groups;
  }

  // By one thread. Also says how many bytes will come in all.
  NIBBLE_DEVICE void copy_codes(const Memory& memory, u32 stage, const Position& at) const {
    const u32 own_groups = groups_in(at), boxes = ceil_div(own_groups, 4u);
    mbar_expect_tx_arrive(memory.full + stage, boxes * codes_box + own_groups * 128 * (copies_rows ? m : max_m));
    for (u32 i = 0; i < boxes; ++i) {
      tma_load_2d(memory.stage.part(stage * stage_bytes + i * codes_box, codes_box), codes_map[block_z()],
                  static_cast<i32>(32 * (step_groups * at.step + 4 * i)),
                  static_cast<i32>(sums.tile_of(at.item) * block_n), memory.full + stage);
    }
  }
  NIBBLE_DEVICE void copy_x(const Memory& memory, u32 stage, const Position& at) const {
    const u32 first = stage * stage_bytes + codes_bytes;
    if constexpr (copies_rows) {
      Global<const Half> from = x + i64{at.step} * block_k;
      for (u32 row = 0; row < m; ++row) {
        bulk_g2s(memory.stage.part(first + row * x_row_bytes, 2 * block_k), from.template as<const u8>(),
                 128 * groups_in(at), memory.full + stage);
        from = from + x_stride;
      }
    } else {
      for (u32 i = 0; i < groups_in(at); ++i) {
        tma_load_2d(memory.stage.part(first + i * x_box, x_box), x_map,
                    static_cast<i32>(64 * (step_groups * at.step + i)), 0, memory.full + stage);
      }
    }
  }

  // absmax of a step: each lane loads 16, and neighbouring lanes load those of neighbouring groups.
  static constexpr u32 lane_scales = step_groups * block_n / 32;
  struct Scales {
    u32 code[lane_scales];
    float absmax[lane_scales];  // or nested_absmax
  };
  NIBBLE_DEVICE void load_scales(Scales& to, const Position& at, u32 lane) const {
    constexpr u32 rows_at_once = 32 / step_groups;
    const FourBitOperand& weight = product[block_z()].weight;
    const u32 last_row = static_cast<u32>(weight.n) - 1, row_groups = static_cast<u32>(weight.stride / 64);
    const u32 group = lane % step_groups, last = groups_in(at) - 1, in_step = group < last ? group : last;
    const u32 first = static_cast<u32>(weight.first / 64) + at.step * step_groups + in_step;
    u32 row = sums.tile_of(at.item) * block_n + lane / step_groups;
    NIBBLE_UNROLL for (u32 i = 0; i < lane_scales; ++i) {
      // Past the end of n that of the last row: its sums are not stored.
      const u32 block = (first + (row < last_row ? row : last_row) * row_groups) >> (weight.log2_blocksize - 6);
      row += rows_at_once;
      if constexpr (Nested) {
        to.code[i] = weight.absmax.code_of(block);
        to.absmax[i] = weight.absmax.nested_absmax_of(block);
      } else {
        to.absmax[i] = weight.absmax.plain_of(block);
      }
    }
  }
  NIBBLE_DEVICE static void store_scales(const Scales& from, const Memory& memory, u32 stage, const Table& table,
                                         float offset, u32 lane) {
    constexpr u32 rows_at_once = 32 / step_groups;
    const Shared<u8> first =
        memory.scales + (stage * scales_bytes + 4 * (lane / step_groups * scale_row + lane % step_groups));
    NIBBLE_UNROLL for (u32 i = 0; i < lane_scales; ++i) {
      float scale = from.absmax[i];
      if constexpr (Nested) scale = FourBitAbsmax::decoded(table.nested_value_of(from.code[i]), scale, offset);
      sts((first + 4 * scale_row * rows_at_once * i).template as<float>(), scale);
    }
  }

  NIBBLE_DEVICE void fill(const Memory& memory, const Table& table, u32 stage, float offset, u32 lane) const {
    bool is_first = true;
    u32 parity = 0;  // of the next time that the stage is emptied
    for (Position at = first_of_stage(stage); at.item < items(); at = ahead(at, stages)) {
      Scales scales = {};
      load_scales(scales, at, lane);
      if (!is_first) {
        mbar_wait(memory.empty + stage, parity);
        parity ^= 1;
      }
      if (lane == 0) {
        if (!is_first) copy_codes(memory, stage, at);
        copy_x(memory, stage, at);
      }
      is_first = false;
      store_scales(scales, memory, stage, table, offset, lane);
      sync_warp();  // all lanes have stored theirs
      if (lane == 0) mbar_arrive(memory.full + stage);
    }
  }

  // -- Products

  // Where a lane finds its operands in a stage. TMA swizzles: piece i of 16 bytes of row r is where piece i ^ r % 8
  // would be. The rows of a fragment are in another order than n: the codes of 0, 2, 4 and 6, which half a warp loads
  // at once, are in different banks.
  struct Source {
    u32 code, x, other_x, scale;  // x in two pieces

    NIBBLE_DEVICE Source(const Lane& lane, u32 m) {
      const u32 in_8 = row_in_8(lane), row = lane.n_warp * 16 * n_tiles + in_8, group = lane.k_warp;
      code = group / 4 * codes_box + 128 * row + ((group % 4 * 32 + lane.q / 2 * 16) ^ 16 * in_8) + lane.q % 2 * 8;
      if constexpr (copies_rows) {  // rows that do not exist are not there: their sums are not stored
        x = other_x = codes_bytes + x_row_bytes * (lane.g < m ? lane.g : m - 1) + 128 * group + 32 * lane.q;
        other_x += 16;
      } else {
        x = codes_bytes + group * x_box + 128 * lane.g + 16 * (2 * lane.q ^ lane.g);
        other_x = x ^ 16;
      }
      scale = 4 * (row * scale_row + group);
    }
    [[nodiscard]] NIBBLE_DEVICE static u32 row_in_8(const Lane& lane) { return 2 * (lane.g % 4) + lane.g / 4; }
  };

  NIBBLE_DEVICE void multiply_all(const Memory& memory, const Table& table, const Lane& lane) const {
    const Source source(lane, m);
    FourBitMatmulRing<stages> ring;
    for (u32 item = first_item(); item < items(); item += product[block_z()].blocks) {
      Sums sum = {};
      Position at = position_of(item);
      i32 left = static_cast<i32>(groups() - step_groups * at.step) - static_cast<i32>(lane.k_warp);
      for (; at.step < at.end; ++at.step) {
        mbar_wait(memory.full + ring.stage, ring.parity);
        if (left > 0) multiply(sum, memory, ring.stage, table, source);
        left -= static_cast<i32>(step_groups);
        sync_warp();  // all lanes have read the stage
        if (lane.id == 0) mbar_arrive(memory.empty + ring.stage);
        ring.advance();
      }
      finish(sum, item, memory, lane);
    }
  }

  // The warp's group of a step.
  NIBBLE_DEVICE void multiply(Sums& sum, const Memory& memory, u32 stage, const Table& table,
                              const Source& source) const {
    const Shared<u8> codes = memory.stage + (stage * stage_bytes + source.code);
    const Shared<u8> one_x = memory.stage + (stage * stage_bytes + source.x);
    const Shared<u8> other_x = memory.stage + (stage * stage_bytes + source.other_x);
    const Shared<u8> scales = memory.scales + (stage * scales_bytes + source.scale);
    u32 weights[n_tiles][4][4];
    float scale[n_tiles][2];
    NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
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
    NIBBLE_UNROLL for (u32 t = 0; t < m_tiles; ++t) {
      if (t > 0 && 8 * t >= m) break;
      const u32x4 low = lds((one_x + 1024 * t).template as<u32x4>()),
                  high = lds((other_x + 1024 * t).template as<u32x4>());
      const u32 own_x[4][2] = {{low.x, low.y}, {low.z, low.w}, {high.x, high.y}, {high.z, high.w}};
      NIBBLE_UNROLL for (u32 tile = 0; tile < n_tiles; ++tile) {
        float products[4] = {};
        NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) mma<Half>(products, weights[tile][f], own_x[f]);
        float(&own)[4] = sum[t][0][tile];
        NIBBLE_UNROLL for (u32 e = 0; e < 4; ++e) own[e] = fma_rn(scale[tile][e / 2], products[e], own[e]);
      }
    }
  }

  // -- The end

  NIBBLE_DEVICE void finish(const Sums& sum, u32 item, const Memory& memory, Lane lane) const {
    lane.g = Source::row_in_8(lane);  // of n, as the sums are
    const FourBitProduct<Half>& own = product[block_z()];
    const u32 tile = sums.tile_of(item);
    const WarpSums<sums_tile> of_warps{memory.sums.template as<float>(), m < 8 ? m : 8};
    const auto store = [&](i64 at_m, i64 at_n, float total) { own.out.store(at_m, at_n, total); };
    NIBBLE_UNROLL for (u32 t = 0; t < m_tiles; ++t) {
      if (t > 0 && 8 * t >= m) break;
      const MatmulWork<sums_tile> work{item, 8 * t, m};
      bar_sync(1, consumers);  // the sums before were read: these may overwrite them
      of_warps.put(sum[t], lane);
      bar_sync(1, consumers);
      store_sums(work, of_warps, sums, tile, own.weight.n, own.first_sum, store);
    }
    if (sums.splits == 1 || !sums.template is_last<consumers>(own.first_group + tile)) return;
    store_totals_of_splits(MatmulWork<Tile>{item, 0, m}, sums, tile, own.weight.n, own.first_sum, store);
  }
};

}  // namespace nibble::kernels
