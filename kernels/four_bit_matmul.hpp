// y [m, n] = x [m, k] * transposed(weight [n, k]) for m from 1 to 64; the NF4 or FP4 weight is never written as floats.
//
// Bytes per weight: 0.5 packed and 1/64 + 4/16384 of nested absmax, 0.5159, read once. Bound: memory; 4.3 TB/s of an
// H200 are 8.3e12 weights/s, and leave its 132 multiprocessors 3.6 to 4.0 instructions of a thread for each. Counted in
// the machine code of the loop: 2.2 to 2.9 for m up to 16, 3.2 for 32, 5.2 for 64 (docs/four-bit-matmul.md).
//
// Hence tensor cores from m = 1 on: one lookup in a table of pairs turns a byte of codes into a register of two
// weights, and mma.sync takes 16 of n as its large operand, 8 of m as its small one. The table has the codebook's
// values; absmax multiplies the accumulators of each 64 of k, 8 times less often than it would multiply weights, and no
// weight is rounded twice.
//
//   warp      n x k = 16 x 256 in a step, or 32 x 128: the packed bytes go from memory to registers, a step ahead
//   block     NWarps x KWarps warps, each with its own part of n and of a step's k; x comes through shared memory by
//             asynchronous copies
//   table     256 pairs in 32 copies: lane i reads only bank i, whatever its byte is
//   sums      of the KWarps warps with the same n: through shared memory at the end, in order of k
//   split     where n is too small for all multiprocessors, blocks divide k between them and leave partial sums in the
//             workspace, which SumPartials adds, in order
#pragma once
#include <type_traits>

#include "kernels/device/device.hpp"
#include "kernels/four_bit_matmul_tile.hpp"
#include "kernels/four_bit_weight.hpp"
#include "kernels/weights.hpp"

namespace nibble::kernels {
using namespace device;

/// The destination of the sums, and what is added to them.
template <class Half> struct MatmulOutput {
  Global<const Half> bias;  // or null
  Global<Half> y;
  i64 y_stride;

  NIBBLE_DEVICE void store(i64 at_m, i64 at_n, float sum) const {
    if (!bias.is_null()) sum = add_rn(sum, to_float(ldg(bias + at_n)));
    st(y + (at_m * y_stride + at_n), rounded<Half>(sum));
  }
};

/// For k that is a multiple of 64, a blocksize of at least 64, less than 2^32 blocks of 64, packed aligned to 8 bytes
/// and x and its rows to 16. Grid: tiles of n, splits (16 at most). The template arguments are those of
/// FourBitMatmulTile.
template <class Half, bool Nested, u32 MTiles, u32 NWarps, u32 KWarps, u32 NTiles = 2> struct FourBitMatmul {
  static constexpr FourBitMatmulTile sizes{MTiles, NWarps, KWarps, NTiles};
  static constexpr u32 threads = sizes.threads(), min_blocks = sizes.min_blocks();
  static constexpr u32 block_m = sizes.block_m(), block_n = sizes.block_n(), block_k = sizes.block_k();
  static constexpr u32 max_m = sizes.max_m(), groups = sizes.groups();
  static constexpr u32 stages = 2;  // steps whose x is there

  // The table has 32 copies of each pair. If shared memory allows it, a gap of the same size follows them: then the
  // code and the lane's offset are whole bytes of an address, which one instruction puts together. The codebook of
  // nested absmax is in the gaps, or after the table.
  static constexpr bool gaps = MTiles <= 4;
  static constexpr u32 pair_bytes = gaps ? 256 : 128, table_bytes = 256 * pair_bytes + (gaps ? 0 : 256 * 4);
  // Of a row of x. 16 bytes more than it needs: the 8 rows of a quarter of a 16-byte load are then in different banks.
  static constexpr u32 x_row_bytes = 2 * block_k + 16;
  // 4 floats more: what the 4 lanes of a quad store lies 8 banks apart.
  static constexpr u32 sum_stride = block_n + 4, sums = KWarps * block_m * sum_stride;

  // x in shared memory. A tile of m is always whole, but if it is the only one, a lane of a row that does not exist can
  // read the last that does: then there are fewer, and with m = 1 all lanes of a quarter read the same bytes.
  NIBBLE_DEVICE_AND_HOST static constexpr u32 stage_bytes(u32 m) { return x_row_bytes * (MTiles == 1 ? m : block_m); }
  NIBBLE_DEVICE_AND_HOST static constexpr u32 shared_bytes(u32 m) {
    const u32 ring = stages * stage_bytes(m);
    return table_bytes + (ring > 4 * sums ? ring : 4 * sums);
  }

  NIBBLE_DEVICE_AND_HOST static constexpr u32 max_block_shared_bytes() { return shared_bytes(max_m); }

  FourBitOperand weight;
  Global<const Half> x;
  i64 x_stride;
  u32 m;
  MatmulOutput<Half> out;
  Global<float> partial;  // [split][m][n], or null

  NIBBLE_DEVICE void operator()() const {
    const u32 lane = lane_id(), g = lane / 4, q = lane % 4;  // of a fragment: n = g and g + 8, a quarter of k
    const u32 n_warp = warp_id() % NWarps, k_warp = warp_id() / NWarps;
    const Shared<u8> table = dynamic_shared().part(0, table_bytes);
    const Shared<u8> ring = dynamic_shared().part(table_bytes, shared_bytes(m) - table_bytes);

    static_assert(max_block_shared_bytes() <= 99 << 10);  // what a block may have on 8.6 and 8.9
    // Steps of this block. Of all steps, 2^24 at most, the splits get whole ones.
    const u32 steps = ceil_div(static_cast<u32>(weight.k), block_k);
    const u32 first = steps * block_y() / grid_y(), last = steps * (block_y() + 1) / grid_y();

    // Issue the loads with the longest latency first: the operands, then the table's contents.
    Source source = source_of(i64{block_x()} * block_n + n_warp * (16 * NTiles), first * KWarps + k_warp, last);
    Operands next{};
    load(next, source);
    float nested_value = 0, offset = 0;
    static_assert(threads == 256);
    if constexpr (Nested) {
      nested_value = ldg(weight.absmax.nested_codebook + thread_id());
      offset = ldg(weight.absmax.nested_offset);
    }
    copy_x(ring, first, last);
    cp_commit();

    NIBBLE_UNROLL for (u32 i = 0; i < 256 * 8; i += threads) {
      const u32 byte = (i + thread_id()) / 8;  // the high nibble is first
      const u32 pair = rounded_pair<Half>(weight.value[byte >> 4], weight.value[byte & 15]);
      sts((table + (pair_bytes * byte + 16 * (thread_id() % 8))).template as<u32x4>(), {pair, pair, pair, pair});
    }
    if constexpr (Nested) sts(nested_at(table, thread_id()), nested_value);

    const u32 x_at = (MTiles > 1 || g < m ? g : m - 1) * x_row_bytes + k_warp * (128 * groups) + 32 * q;
    const u32 bank = 4 * lane;

    float sum[MTiles][NTiles][4] = {};
    u32 stage = 0;
    for (u32 step = first; step < last; ++step) {
      cp_wait<0>();
      sync_threads();  // the x of this step is here, and nobody reads that of the last one any more
      // A warp waits for all of its loads at once, so the next step's loads must not begin before this step's have
      // arrived: the copy ensures that.
      const Operands now = next;
      advance(source);
      load(next, source);
      copy_x(ring + (stage_bytes(m) - stage), step + 1, last);
      cp_commit();
      const Shared<u8> arrived = ring + stage;
      stage = stage_bytes(m) - stage;

      float low[groups][NTiles], high[groups][NTiles];
      NIBBLE_UNROLL for (u32 tile = 0; tile < NTiles; ++tile) NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) {
        float scale = now.absmax[tile][i / 2];
        if constexpr (Nested)
          scale = FourBitAbsmax::decoded(lds(nested_at(table, now.code[tile][i / 2])), scale, offset);
        low[i][tile] = shfl_idx(~0u, scale, 4 * g + i % 2);
        high[i][tile] = shfl_idx(~0u, scale, 4 * g + 2 + i % 2);
      }
      NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) {
        // Past the end there is nothing to multiply. With more sums the branch also keeps the compiler from loading
        // both groups' operands ahead of both groups' products, which would take more registers than there are; with
        // few it is better that it does, and x past the end is zeros.
        if (MTiles > 1 && source.group + i >= source.groups_end + groups * KWarps) break;
        // Fragment `f` has, of each 16 of k that lane q holds, the four from 4 * f on.
        u32 fragment[NTiles][4][4];
        NIBBLE_UNROLL for (u32 tile = 0; tile < NTiles; ++tile) {
          NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
            const u32x2 packed = now.packed[i][tile][half];
            NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) {
              const u32 word = f < 2 ? packed.x : packed.y;
              fragment[tile][f][half] = look_up(table, word, f % 2 * 2, bank);
              fragment[tile][f][2 + half] = look_up(table, word, f % 2 * 2 + 1, bank);
            }
          }
        }
        NIBBLE_UNROLL for (u32 t = 0; t < MTiles; ++t) {
          const Shared<u8> at = arrived + x_at + (8 * x_row_bytes * t + 128 * i);
          const u32x4 x0 = lds(at.template as<u32x4>()), x1 = lds((at + 16).template as<u32x4>());
          const u32 x_of[4][2] = {{x0.x, x0.y}, {x0.z, x0.w}, {x1.x, x1.y}, {x1.z, x1.w}};
          NIBBLE_UNROLL for (u32 tile = 0; tile < NTiles; ++tile) {
            float d[4] = {};
            NIBBLE_UNROLL for (u32 f = 0; f < 4; ++f) multiply(d, fragment[tile][f], x_of[f]);
            NIBBLE_UNROLL for (u32 e = 0; e < 4; ++e) sum[t][tile][e] =
                fma_rn(e < 2 ? low[i][tile] : high[i][tile], d[e], sum[t][tile][e]);
          }
        }
      }
    }
    finish(sum, ring.template as<float>(), n_warp, k_warp, g, q);
  }

 private:
  // Where a lane reads. A group is 64 weights of one n, contiguous along k.
  struct Source {
    Global<const u8> codes[NTiles][2];  // of n = g and g + 8
    u32 scale[NTiles];                  // of lane (g, q): of n = g + 8 * (q / 2) and groups q % 2, q % 2 + 2 ...
    u32 group, groups_end;              // the first group of the warp, and the end of the block's
  };
  // What a lane reads in a step.
  struct Operands {
    u32x2 packed[groups][NTiles][2];  // 16 weights each
    u32 code[NTiles][groups / 2];
    float absmax[NTiles][groups / 2];  // or nested_absmax
  };

  // From n = `first_n` on, and of the parts of k that are a warp's in a step the `part`-th, up to step `last`.
  NIBBLE_DEVICE Source source_of(i64 first_n, u32 part, u32 last) const {
    const u32 g = lane_id() / 4, q = lane_id() % 4, groups_of_k = static_cast<u32>(weight.k / 64);
    const i64 last_n = weight.n - 1;
    const u32 end = last * (groups * KWarps);
    Source source;
    source.group = part * groups;
    source.groups_end = end < groups_of_k ? end : groups_of_k;
    NIBBLE_UNROLL for (u32 tile = 0; tile < NTiles; ++tile) {
      // Any n past the end is read as the last one; its sums are not stored.
      NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
        const i64 at_n = first_n + 16 * tile + 8 * half + g;
        source.codes[tile][half] =
            weight.packed + ((at_n < last_n ? at_n : last_n) * (weight.k / 2) + i64{source.group} * 32 + 8 * q);
      }
      const i64 at_n = first_n + 16 * tile + 8 * (q / 2) + g;
      source.scale[tile] = static_cast<u32>(at_n < last_n ? at_n : last_n) * groups_of_k + q % 2;
    }
    return source;
  }

  NIBBLE_DEVICE static void advance(Source& source) {
    source.group += groups * KWarps;
    NIBBLE_UNROLL for (u32 tile = 0; tile < NTiles; ++tile) NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half)
        source.codes[tile][half] = source.codes[tile][half] + 32 * groups * KWarps;
  }

  // Past the end a lane keeps its old values: any numbers will do, because x is zeros there.
  NIBBLE_DEVICE void load(Operands& to, const Source& source) const {
    NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) {
      const bool inside = source.group + i < source.groups_end;
      NIBBLE_UNROLL for (u32 tile = 0; tile < NTiles; ++tile)
          NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) if (inside)
              to.packed[i][tile][half] = ldcs((source.codes[tile][half] + 32 * i).template as<const u32x2>());
    }
    NIBBLE_UNROLL for (u32 i = 0; i < groups; i += 2) {
      const bool inside = source.group + i + lane_id() % 2 < source.groups_end;
      NIBBLE_UNROLL for (u32 tile = 0; tile < NTiles; ++tile) {
        const u32 scale = (source.scale[tile] + source.group + i) >> (weight.log2_blocksize - 6);
        if constexpr (Nested) {
          if (inside) to.code[tile][i / 2] = weight.absmax.code_of(scale);
          if (inside) to.absmax[tile][i / 2] = weight.absmax.nested_absmax_of(scale);
        } else {
          if (inside) to.absmax[tile][i / 2] = weight.absmax.plain_of(scale);
        }
      }
    }
  }

  // All m of one step's k, 16 bytes a thread; zeros past the end of k, and for m that do not exist.
  NIBBLE_DEVICE void copy_x(Shared<u8> to, u32 step, u32 last) const {
    constexpr u32 pieces = block_k / 8, at_a_time = threads / pieces;  // of a row of x; rows
    static_assert(threads % pieces == 0);
    if (step >= last) return;
    const u32 piece = thread_id() % pieces, at_k = step * block_k + 8 * piece, at_m = thread_id() / pieces;
    const i32 present = at_k < static_cast<u32>(weight.k) ? static_cast<i32>(m - at_m) : 0;  // from `at_m` on
    to = to + (at_m * x_row_bytes + 16 * piece);
    Global<const Half> from = x + (at_m * x_stride + at_k);
    NIBBLE_UNROLL for (u32 t = 0; t < max_m; t += at_a_time) {
      if (MTiles == 1 && t + at_m >= m) break;
      cp_async16(to + t * x_row_bytes, from.template as<const u8>(), static_cast<i32>(t) < present ? 16 : 0);
      from = from + at_a_time * x_stride;
    }
  }

  // The two weights of a byte of `word`.
  NIBBLE_DEVICE static u32 look_up(Shared<u8> table, u32 word, u32 byte, u32 bank) {
    u32 at;
    if constexpr (gaps)
      at = prmt(word, bank, 0x5504 | byte << 4);
    else
      at = lop3<(0xf0 & 0xcc) | 0xaa>(byte == 0 ? word << 7 : word >> (8 * byte - 7), 0x7f80, bank);
    return lds((table + at).template as<u32>());
  }

  // 32 neighbours are in different banks, with gaps as without.
  NIBBLE_DEVICE static Shared<float> nested_at(Shared<u8> table, u32 code) {
    return (table + (gaps ? pair_bytes * code + 128 + 4 * (code % 32) : 256 * pair_bytes + 4 * code))
        .template as<float>();
  }

  NIBBLE_DEVICE static void multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (std::is_same_v<Half, bf16>)
      mma_bf16_16816(d, a, b);
    else
      mma_f16_16816(d, a, b);
  }

  // Adds the sums of the warps with the same n, and stores.
  NIBBLE_DEVICE void finish(const float (&sum)[MTiles][NTiles][4], Shared<float> sums_of_warps, u32 n_warp, u32 k_warp,
                            u32 g, u32 q) const {
    sync_threads();  // the memory was that of x
    NIBBLE_UNROLL for (u32 t = 0; t < MTiles; ++t) NIBBLE_UNROLL for (u32 tile = 0; tile < NTiles; ++tile)
        NIBBLE_UNROLL for (u32 e = 0; e < 4; ++e) {
      const u32 in_m = 8 * t + 2 * q + e % 2, in_n = 16 * (n_warp * NTiles + tile) + g + 8 * (e / 2);
      sts(sums_of_warps + ((k_warp * block_m + in_m) * sum_stride + in_n), sum[t][tile][e]);
    }
    sync_threads();
    for (u32 i = thread_id(); i < m * block_n; i += threads) {
      const u32 at_m = i / block_n;
      const i64 at_n = i64{block_x()} * block_n + i % block_n;
      if (at_n >= weight.n) continue;
      float total = 0;
      NIBBLE_UNROLL for (u32 w = 0; w < KWarps; ++w) total =
          add_rn(total, lds(sums_of_warps + ((w * block_m + at_m) * sum_stride + i % block_n)));
      if (partial.is_null())
        out.store(at_m, at_n, total);
      else
        st(partial + ((i64{block_y()} * m + at_m) * weight.n + at_n), total);
    }
  }
};

/// Adds the sums of the splits in order. Grid: n by 256, m.
template <class Half> struct SumPartials {
  static constexpr u32 threads = 256;

  Global<const float> partial;  // [split][m][n]
  u32 splits;
  i64 n;
  MatmulOutput<Half> out;

  NIBBLE_DEVICE void operator()() const {
    const i64 at_n = i64{block_x()} * threads + thread_id();
    if (at_n >= n) return;
    float total = 0;
    for (u32 split = 0; split < splits; ++split)
      total = add_rn(total, ld(partial + ((i64{split} * grid_y() + block_y()) * n + at_n)));
    out.store(block_y(), at_n, total);
  }
};

}  // namespace nibble::kernels
