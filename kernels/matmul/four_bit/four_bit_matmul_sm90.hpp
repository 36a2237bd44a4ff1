// y [m, n] = x [m, k] * transposed(weight [n, k]) for more rows of x than four_bit_matmul.hpp takes at a time: wgmma,
// with the weight in registers. For sm_90a.
//
// Bound: shared memory, 3 * Rows + 240 clocks for 128 x 64 weights, where the tensor cores need 4 * Rows.
// docs/four-bit-matmul.md compares both with mma.sync.
//
// The arithmetic is that of the other kernel: a table of pairs makes two weights of a byte, the tensor cores multiply
// them, and absmax multiplies the sums of each 64 of k. A warpgroup has 64 of n, so each x in shared memory meets twice
// as many weights as in a warp of the other kernel.
//
//   block     two warpgroups, each with 64 of n, and one that copies, for which a thread is enough: registers are given
//             to warpgroups
//   copies    TMA, into two rings: codes in steps of 256 of k, x in groups of 64. They run ahead into the next item
//   group     four wgmma of 16 of k; while they run, the warpgroup decodes the next group
//   item      a tile of n, a chunk of m, a split of k; a weight's blocks take them in turn
//   split     as in the other kernel: the last block to finish adds the sums (split_sums.hpp)
#pragma once
#include <type_traits>

#include "kernels/device/device.hpp"
#include "kernels/four_bit_weight.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_ring.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_sm90_lane.hpp"
#include "kernels/matmul/four_bit/four_bit_pair_table.hpp"
#include "kernels/matmul/split_sums.hpp"

namespace nibble::kernels {
using namespace device;

/// For the weights of FourBitMatmul, but packed is aligned to 16 bytes, and there are no experts. Rows of x at a time:
/// 64, 96 or 128.
///
/// Grid: as of FourBitMatmul, without experts. A map has the codes of each weight, as
/// bytes [n, k / 2], and `x_map` has x [m, k].
template <class Half, bool Nested, u32 Rows> struct FourBitMatmulSm90 {
  static constexpr bool needs_sm90a = true;
  static constexpr u32 consumers = 256, threads = consumers + 128, min_blocks = 1, max_weights = 4;
  static constexpr u32 max_m = Rows, block_n = 128, step_groups = 4;  // of 64 along k
  static constexpr u32 code_stages = 4, x_stages = Rows == 128 ? 6 : 8, codes_ahead = 2;
  static_assert(Rows == 64 || Rows == 96 || Rows == 128);

  // What TMA copies of a row at a time; of block_n or Rows rows.
  static constexpr u32 codes_box_bytes = 32 * step_groups, x_box_columns = 64;
  static constexpr u32 codes_bytes = codes_box_bytes * block_n, x_bytes = 128 * Rows;

  using Table = FourBitPairTable<Half, PairTableGaps::for_nested>;
  static constexpr u32 first_codes = Table::bytes, first_x = first_codes + code_stages * codes_bytes;
  static constexpr u32 first_mbarrier = first_x + x_stages * x_bytes;
  static constexpr u32 shared_bytes = first_mbarrier + 16 * (code_stages + x_stages) + 1024;  // 1024 to align tiles
  NIBBLE_DEVICE_AND_HOST static constexpr u32 max_block_shared_bytes() { return shared_bytes; }
  static_assert(shared_bytes <= 227 << 10);

  FourBitProduct<Half> product[max_weights];
  TensorMap codes_map[max_weights], x_map;
  u32 m;
  SplitSums sums;

  NIBBLE_DEVICE void operator()() const {
    const Memory memory(dynamic_shared_aligned(1024));
    const Table table(memory.table);
    const bool copies = thread_id() >= consumers, is_copier = thread_id() == consumers;
    const Lane lane;
    Copier copier{first_position(), {}};
    Scales next = {};
    float offset = 0;
    if (is_copier) {
      memory.init();
      // Codes do not depend on the kernel before.
      NIBBLE_UNROLL for (u32 i = 0; i < codes_ahead; ++i) copy_codes(memory, copier);
    }
    if (!copies) {
      const FourBitOperand& weight = product[block_z()].weight;
      load_scales(next, scale_source_of(block_x(), lane), first_position(), lane);
      float nested_value = 0;
      if constexpr (Nested) {
        nested_value = ldg(weight.absmax.nested_codebook + thread_id());
        offset = ldg(weight.absmax.nested_offset);
      }
      table.template fill<Nested>(weight.value, nested_value);
    }
    dependency_wait();  // an earlier kernel may have written x
    dependency_launch();
    sync_threads();  // the mbarriers and the table are there
    if (copies) {
      setmaxnreg_dec<40>();
      if (is_copier) copy_all(memory, copier);
    } else {
      setmaxnreg_inc<232>();
      multiply_all(memory, table, next, offset, lane);
    }
  }

 private:
  using Lane = FourBitMatmulSm90Lane;
  using Fragments = u32[4][4];  // of a group: four of 16 along k
  using Sums = float[Rows / 2];

  struct Memory {
    Shared<u8> table, codes, x;
    Shared<u64> codes_full, codes_empty, x_full, x_empty;

    NIBBLE_DEVICE explicit Memory(Shared<u8> all)
        : table(all.part(0, Table::bytes)),
          codes(all.part(first_codes, first_x - first_codes)),
          x(all.part(first_x, first_mbarrier - first_x)),
          codes_full(all.part(first_mbarrier, 8 * code_stages).template as<u64>()),
          codes_empty(all.part(first_mbarrier + 8 * code_stages, 8 * code_stages).template as<u64>()),
          x_full(all.part(first_mbarrier + 16 * code_stages, 8 * x_stages).template as<u64>()),
          x_empty(all.part(first_mbarrier + 16 * code_stages + 8 * x_stages, 8 * x_stages).template as<u64>()) {}

    NIBBLE_DEVICE void init() const {
      NIBBLE_UNROLL for (u32 i = 0; i < code_stages; ++i) {
        mbar_init(codes_full + i, 1);
        mbar_init(codes_empty + i, consumers / 32);
      }
      NIBBLE_UNROLL for (u32 i = 0; i < x_stages; ++i) {
        mbar_init(x_full + i, 1);
        mbar_init(x_empty + i, consumers / 32);
      }
      mbar_init_fence();
    }
  };

  // -- What a block does, item by item and step by step

  struct Position {
    u32 item, step, end;  // ((tile of n) * chunks + (chunk of m)) * splits + (split of k); steps from 0 on
  };

  [[nodiscard]] NIBBLE_DEVICE u32 groups() const { return static_cast<u32>(product[0].weight.k) / 64; }
  [[nodiscard]] NIBBLE_DEVICE u32 steps() const { return ceil_div(groups(), step_groups); }
  [[nodiscard]] NIBBLE_DEVICE u32 chunks() const { return ceil_div(m, Rows); }
  [[nodiscard]] NIBBLE_DEVICE u32 items() const {
    return static_cast<u32>(ceil_div<i64>(product[block_z()].weight.n, block_n)) * chunks() * sums.splits;
  }
  [[nodiscard]] NIBBLE_DEVICE u32 chunk_of(u32 item) const { return item / sums.splits % chunks(); }
  [[nodiscard]] NIBBLE_DEVICE u32 tile_of(u32 item) const { return item / sums.splits / chunks(); }
  [[nodiscard]] NIBBLE_DEVICE Position position_of(u32 item) const {
    const u32 split = item % sums.splits;
    return {item, steps() * split / sums.splits, steps() * (split + 1) / sums.splits};
  }
  // A block that the weight has not is past the last item.
  [[nodiscard]] NIBBLE_DEVICE Position first_position() const {
    return position_of(block_x() < product[block_z()].blocks ? block_x() : items());
  }
  [[nodiscard]] NIBBLE_DEVICE Position after(Position at) const {
    return ++at.step < at.end ? at : position_of(at.item + product[block_z()].blocks);
  }
  [[nodiscard]] NIBBLE_DEVICE u32 groups_of(const Position& at) const {
    const u32 left = groups() - step_groups * at.step;
    return left < step_groups ? left : step_groups;
  }

  // -- Copies, by one thread

  struct Copier {
    Position at;  // of the next codes; x comes codes_ahead steps later
    FourBitMatmulRing<code_stages> ring;
  };

  NIBBLE_DEVICE void copy_codes(const Memory& memory, Copier& copier) const {
    if (copier.at.item >= items()) return;
    const u32 stage = copier.ring.stage;
    mbar_wait(memory.codes_empty + stage, copier.ring.parity ^ 1);
    mbar_expect_tx_arrive(memory.codes_full + stage, codes_bytes);
    tma_load_2d(memory.codes.part(stage * codes_bytes, codes_bytes), codes_map[block_z()],
                static_cast<i32>(copier.at.step * codes_box_bytes), static_cast<i32>(tile_of(copier.at.item) * block_n),
                memory.codes_full + stage);
    copier.ring.advance();
    copier.at = after(copier.at);
  }

  NIBBLE_DEVICE void copy_all(const Memory& memory, Copier& copier) const {
    FourBitMatmulRing<x_stages> ring;
    for (Position at = first_position(); at.item < items(); at = after(at)) {
      for (u32 i = 0; i < groups_of(at); ++i) {
        mbar_wait(memory.x_empty + ring.stage, ring.parity ^ 1);
        mbar_expect_tx_arrive(memory.x_full + ring.stage, x_bytes);
        tma_load_2d(memory.x.part(ring.stage * x_bytes, x_bytes), x_map,
                    static_cast<i32>(64 * (step_groups * at.step + i)), static_cast<i32>(chunk_of(at.item) * Rows),
                    memory.x_full + ring.stage);
        ring.advance();
      }
      copy_codes(memory, copier);
    }
  }

  // -- absmax: from memory to registers, a step ahead

  // Where a lane finds those of an item: of n = lane.row() and 8 more, in group lane.q of each step.
  struct ScaleSource {
    u32 group[2];  // of step 0
  };
  struct Scales {
    u32 code[2];
    float absmax[2];  // or nested_absmax
  };

  [[nodiscard]] NIBBLE_DEVICE ScaleSource scale_source_of(u32 item, const Lane& lane) const {
    const FourBitOperand& weight = product[block_z()].weight;
    ScaleSource source;
    NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
      const i64 at_n = i64{tile_of(item)} * block_n + lane.row() + 8 * half;
      const i64 row = at_n < weight.n ? at_n : weight.n - 1;  // its sums are not stored
      source.group[half] = static_cast<u32>(weight.first / 64 + row * (weight.stride / 64)) + lane.q;
    }
    return source;
  }
  NIBBLE_DEVICE void load_scales(Scales& to, const ScaleSource& source, const Position& at, const Lane& lane) const {
    if (at.item >= items() || lane.q >= groups_of(at)) return;
    const FourBitOperand& weight = product[block_z()].weight;
    NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
      const u32 block = (source.group[half] + step_groups * at.step) >> (weight.log2_blocksize - 6);
      if constexpr (Nested) {
        to.code[half] = weight.absmax.code_of(block);
        to.absmax[half] = weight.absmax.nested_absmax_of(block);
      } else {
        to.absmax[half] = weight.absmax.plain_of(block);
      }
    }
  }
  // What lane 4 * g + i has of group i.
  [[nodiscard]] NIBBLE_DEVICE static float decoded(const Scales& scales, u32 half, const Table& table, float offset) {
    if constexpr (Nested)
      return FourBitAbsmax::decoded(table.nested_value_of(scales.code[half]), scales.absmax[half], offset);
    return scales.absmax[half];
  }

  // -- Products, by two warpgroups

  struct Consumer {
    FourBitMatmulRing<code_stages> codes;
    FourBitMatmulRing<x_stages> x;
  };

  NIBBLE_DEVICE void multiply_all(const Memory& memory, const Table& table, Scales& next, float offset,
                                  const Lane& lane) const {
    Consumer ring;
    ScaleSource source = scale_source_of(block_x(), lane);
    for (Position at = first_position(); at.item < items();) {
      Sums sum = {};
      const u32 item = at.item;
      Fragments fragments[2];
      mbar_wait(memory.codes_full + ring.codes.stage, ring.codes.parity);
      decode(fragments[0], memory, table, ring, 0, lane);
      while (at.item == item) {
        // A warp waits for all loads of the loop at once, so the next must not begin before these have arrived.
        const Scales now = next;
        const Position following = after(at);
        if (following.item != item) source = scale_source_of(following.item, lane);
        load_scales(next, source, following, lane);
        multiply(sum, fragments, now, memory, table, ring, groups_of(at), following.item == item, offset, lane);
        at = following;
      }
      finish(sum, item, lane);
    }
  }

  // The groups of a step. fragments[0] has the first of them, and afterwards that of the next step if `goes_on`.
  NIBBLE_DEVICE static void multiply(Sums& sum, Fragments (&fragments)[2], const Scales& now, const Memory& memory,
                                     const Table& table, Consumer& ring, u32 groups, bool goes_on, float offset,
                                     const Lane& lane) {
    const float scale[2] = {decoded(now, 0, table, offset), decoded(now, 1, table, offset)};
    NIBBLE_UNROLL for (u32 i = 0; i < step_groups; ++i) {
      if (i >= groups) break;
      Fragments& own = fragments[i % 2];
      Fragments& following = fragments[(i + 1) % 2];
      Sums d;
      const Shared<u8> x = memory.x + i64{ring.x.stage} * x_bytes;
      const u64 tile = tile_descriptor(x.address(), 16, 1024, Swizzle::bytes128);
      mbar_wait(memory.x_full + ring.x.stage, ring.x.parity);
      wgmma_fence(d, own);
      NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) wgmma(d, own[f], tile + 2 * f, f > 0);  // 2 * f times 16 bytes
      wgmma_commit();
      if (i + 1 == step_groups || i + 1 == groups) {
        sync_warp();  // all lanes have read the codes of the step
        if (lane.id == 0) mbar_arrive(memory.codes_empty + ring.codes.stage);
        ring.codes.advance();
        if (i + 1 == step_groups && goes_on) {
          mbar_wait(memory.codes_full + ring.codes.stage, ring.codes.parity);
          decode(following, memory, table, ring, 0, lane);
        }
      } else {
        decode(following, memory, table, ring, i + 1, lane);
      }
      const float low = shfl_idx(~0u, scale[0], 4 * lane.g + i), high = shfl_idx(~0u, scale[1], 4 * lane.g + i);
      wgmma_wait<0>(d, own);
      if (lane.id == 0) mbar_arrive(memory.x_empty + ring.x.stage);
      ring.x.advance();
      NIBBLE_UNROLL for (u32 j = 0; j < Rows / 2; ++j) sum[j] = fma_rn(j / 2 % 2 == 0 ? low : high, d[j], sum[j]);
    }
  }

  // The weights of group i of a step.
  NIBBLE_DEVICE static void decode(Fragments& fragments, const Memory& memory, const Table& table, const Consumer& ring,
                                   u32 i, const Lane& lane) {
    const Shared<u8> codes = memory.codes + i64{ring.codes.stage} * codes_bytes;
    NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
      const u32x2 words = lane.transposed(lds((codes + lane.code_at(i, half)).template as<u32x2>()));
      NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) {
        fragments[f][half] = table.pair_of(words.x, f);
        fragments[f][2 + half] = table.pair_of(words.y, f);
      }
    }
  }

  NIBBLE_DEVICE static void wgmma(Sums& d, u32 (&fragment)[4], u64 x, u32 adds) {
    if constexpr (std::is_same_v<Half, bf16>)
      wgmma_bf16<Rows>(d, fragment, x, adds);
    else
      wgmma_f16<Rows>(d, fragment, x, adds);
  }

  // -- The end

  NIBBLE_DEVICE void finish(const Sums& sum, u32 item, const Lane& lane) const {
    const FourBitProduct<Half>& own = product[block_z()];
    const u32 first_m = chunk_of(item) * Rows;
    const i64 first_n = i64{tile_of(item)} * block_n;
    // Calls body(row of y, n, sum) for each of the lane's sums that exists.
    const auto for_each = [&](auto&& body) {
      NIBBLE_UNROLL for (u32 j = 0; j < Rows / 2; ++j) {
        const u32 at_m = first_m + 8 * (j / 4) + 2 * lane.q + j % 2;
        const i64 at_n = first_n + lane.row() + 8 * (j / 2 % 2);
        if (at_m < m && at_n < own.weight.n) body(at_m, at_n, sum[j]);
      }
    };
    if (sums.splits > 1)
      for_each([&](u32 at_m, i64 at_n, float value) {
        sums.put(item % sums.splits, own.first_sum + i64{at_m} * own.weight.n + at_n, value);
      });
    else if (own.out.is_sum())  // the compiler asks once, not for each value
      for_each([&](u32 at_m, i64 at_n, float value) { own.out.store_sum(at_m, at_n, value); });
    else
      for_each([&](u32 at_m, i64 at_n, float value) { own.out.store(at_m, at_n, value); });
    if (sums.splits == 1 || !sums.template is_last<consumers>(own.first_group + item / sums.splits)) return;
    // Value i of the tile: rows of y of block_n values each.
    const auto m_of = [&](u32 i) { return first_m + i / block_n; };
    const auto n_of = [&](u32 i) { return first_n + i % block_n; };
    sums.template for_each_total<consumers>(
        Rows * block_n,
        [&](u32 i) {
          const bool exists = m_of(i) < m && n_of(i) < own.weight.n;
          return exists ? own.first_sum + i64{m_of(i)} * own.weight.n + n_of(i) : i64{-1};
        },
        [&](u32 i, float total) { own.out.store(m_of(i), n_of(i), total); });
  }
};

}  // namespace nibble::kernels
