// y = x * transposed(weight) for 1 to 64 rows of x, the weight in NF4 or FP4 and never written out.
//
// Bytes per weight: 0.5 packed and 1/64 + 4/16384 of nested absmax, 0.5159, read once. Bound: memory; 4.3 TB/s of an
// H200 are 8.3e12 weights/s, and leave its 132 multiprocessors 3.6 to 4.0 instructions of a thread for each. Counted in
// the machine code of the loop: 2.2 to 2.9 for up to 16 rows, 3.2 for 32, 5.2 for 64 (docs/four-bit-matmul.md).
//
// Hence tensor cores from the first row of x on: a byte of codes becomes a register of two weights by one look into a
// table of pairs, and mma.sync takes the 16 rows of the weight as its large operand, 8 rows of x ("tokens") as its
// small one. What is looked up are the codebook's values; absmax multiplies the accumulators of each 64 inputs, 8 times
// less often than it would multiply weights, and no weight is rounded twice.
//
//   warp      16 rows x 256 inputs a step, or 32 x 128: the packed bytes go from memory to registers, a step ahead
//   block     RowWarps warps below each other share the inputs, InputWarps side by side share the rows;
//             tokens come through shared memory by asynchronous copies
//   table     256 pairs, 32 times: lane i reads bank i alone, whatever its byte is
//   sums      of the warps side by side: through shared memory at the end, in order of their inputs
//   split     where the rows are too few for all multiprocessors, blocks share the inputs too and leave partial sums in
//             the workspace, which SumPartials adds, in order
#pragma once
#include <type_traits>

#include "kernels/device/device.hpp"
#include "kernels/four_bit_matmul_tile.hpp"
#include "kernels/four_bit_weight.hpp"
#include "kernels/weights.hpp"

namespace nibble::kernels {
using namespace device;

/// Where sums go, and what is added to them.
template <class Half> struct MatmulOutput {
  Global<const Half> bias;  // or null
  Global<Half> y;
  i64 y_stride;

  NIBBLE_DEVICE void store(i64 token, i64 row, float sum) const {
    if (!bias.is_null()) sum = add_rn(sum, to_float(ldg(bias + row)));
    st(y + (token * y_stride + row), rounded<Half>(sum));
  }
};

/// For columns that are a multiple of 64, a blocksize of at least 64, less than 2^32 blocks of 64, packed aligned to 8
/// bytes and x and its rows to 16. Grid: tiles of rows, splits (16 at most).
template <class Half, bool Nested, u32 TokenTiles, u32 RowWarps, u32 InputWarps, u32 RowTiles = 2>
struct FourBitMatmul {
  static constexpr FourBitMatmulTile sizes{TokenTiles, RowWarps, InputWarps, RowTiles};
  static constexpr u32 threads = sizes.threads(), min_blocks = sizes.min_blocks();
  static constexpr u32 tokens = sizes.block_m(), rows = sizes.block_n(), max_tokens = sizes.max_m();
  static constexpr u32 groups = sizes.groups(), inputs = sizes.block_k();
  static constexpr u32 stages = 2;  // steps whose tokens are there

  // A pair lies in the table 32 times. Where shared memory allows it, as many bytes are left out before the next: then
  // a byte of codes and the offset of a lane are the bytes of an address, which one instruction puts together. The
  // codebook of nested absmax lies in the gaps, or after the table.
  static constexpr bool gaps = TokenTiles <= 4;
  static constexpr u32 pair_bytes = gaps ? 256 : 128, table_bytes = 256 * pair_bytes + (gaps ? 0 : 256 * 4);
  // 16 bytes more than the tokens need: the 8 rows of a quarter of a 16-byte load then lie in different banks.
  static constexpr u32 token_bytes = 2 * inputs + 16;
  // 4 floats more: what the 4 lanes of a quad store lies 8 banks apart.
  static constexpr u32 sum_row = rows + 4, sums = InputWarps * tokens * sum_row;

  // Tokens in shared memory. A tile is always whole, but if it is the only one, a lane of a token that does not exist
  // can read the last that does: then there are fewer, and for one token all lanes of a quarter read the same bytes.
  NIBBLE_DEVICE_AND_HOST static constexpr u32 stage_bytes(u32 m) {
    return token_bytes * (TokenTiles == 1 ? m : tokens);
  }
  NIBBLE_DEVICE_AND_HOST static constexpr u32 shared_bytes(u32 m) {
    const u32 ring = stages * stage_bytes(m);
    return table_bytes + (ring > 4 * sums ? ring : 4 * sums);
  }

  NIBBLE_DEVICE_AND_HOST static constexpr u32 max_block_shared_bytes() { return shared_bytes(max_tokens); }

  FourBitOperand weight;
  Global<const Half> x;
  i64 x_stride;
  u32 m;
  MatmulOutput<Half> out;
  Global<float> partial;  // [split][token][row], or null

  NIBBLE_DEVICE void operator()() const {
    const u32 lane = lane_id(), g = lane / 4, q = lane % 4;  // of a fragment: rows g and g + 8, a quarter of the inputs
    const u32 row_warp = warp_id() % RowWarps, input_warp = warp_id() / RowWarps;
    const Shared<u8> table = dynamic_shared().part(0, table_bytes);
    const Shared<u8> ring = dynamic_shared().part(table_bytes, shared_bytes(m) - table_bytes);

    static_assert(max_block_shared_bytes() <= 99 << 10);  // what a block may have on 8.6 and 8.9
    // Steps of this block. Of all steps, 2^24 at most, the splits get whole ones.
    const u32 steps = ceil_div(static_cast<u32>(weight.columns), inputs);
    const u32 first = steps * block_y() / grid_y(), last = steps * (block_y() + 1) / grid_y();

    // Issue the loads with the longest latency first: the operands, then the table's contents.
    Source source =
        source_of(i64{block_x()} * rows + row_warp * (16 * RowTiles), first * InputWarps + input_warp, last);
    Operands next{};
    load(next, source);
    float nested_value = 0, offset = 0;
    static_assert(threads == 256);
    if constexpr (Nested) {
      nested_value = ldg(weight.absmax.nested_codebook + thread_id());
      offset = ldg(weight.absmax.nested_offset);
    }
    copy_tokens(ring, first, last);
    cp_commit();

    NIBBLE_UNROLL for (u32 i = 0; i < 256 * 8; i += threads) {
      const u32 byte = (i + thread_id()) / 8;  // the high nibble is first
      const u32 pair = rounded_pair<Half>(weight.value[byte >> 4], weight.value[byte & 15]);
      sts((table + (pair_bytes * byte + 16 * (thread_id() % 8))).template as<u32x4>(), {pair, pair, pair, pair});
    }
    if constexpr (Nested) sts(nested_at(table, thread_id()), nested_value);

    const u32 token_at = (TokenTiles > 1 || g < m ? g : m - 1) * token_bytes + input_warp * (128 * groups) + 32 * q;
    const u32 bank = 4 * lane;

    float sum[TokenTiles][RowTiles][4] = {};
    u32 stage = 0;
    for (u32 step = first; step < last; ++step) {
      cp_wait<0>();
      sync_threads();  // the tokens of this step are here, and nobody reads those of the last one any more
      // A warp waits for all of its loads at once, so the next step's may not be asked for before this one's are here:
      // copying them sees to that.
      const Operands now = next;
      advance(source);
      load(next, source);
      copy_tokens(ring + (stage_bytes(m) - stage), step + 1, last);
      cp_commit();
      const Shared<u8> arrived = ring + stage;
      stage = stage_bytes(m) - stage;

      float low[groups][RowTiles], high[groups][RowTiles];
      NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile) NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) {
        float scale = now.absmax[tile][i / 2];
        if constexpr (Nested)
          scale = FourBitAbsmax::decoded(lds(nested_at(table, now.code[tile][i / 2])), scale, offset);
        low[i][tile] = shfl_idx(~0u, scale, 4 * g + i % 2);
        high[i][tile] = shfl_idx(~0u, scale, 4 * g + 2 + i % 2);
      }
      NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) {
        // Past the end there is nothing to multiply. With more sums the branch also keeps the compiler from loading
        // both groups' operands ahead of both groups' products, which would take more registers than there are; with
        // few it is better that it does, and tokens past the end are zeros.
        if (TokenTiles > 1 && source.group + i >= source.groups_end + groups * InputWarps) break;
        // Fragment `k` has, of each 16 inputs that lane q holds, the four from 4 * k on.
        u32 fragment[RowTiles][4][4];
        NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile) {
          NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
            const u32x2 packed = now.packed[i][tile][half];
            NIBBLE_UNROLL for (u32 k = 0; k < 4; ++k) {
              const u32 word = k < 2 ? packed.x : packed.y;
              fragment[tile][k][half] = look_up(table, word, k % 2 * 2, bank);
              fragment[tile][k][2 + half] = look_up(table, word, k % 2 * 2 + 1, bank);
            }
          }
        }
        NIBBLE_UNROLL for (u32 t = 0; t < TokenTiles; ++t) {
          const Shared<u8> at = arrived + token_at + (8 * token_bytes * t + 128 * i);
          const u32x4 x0 = lds(at.template as<u32x4>()), x1 = lds((at + 16).template as<u32x4>());
          const u32 inputs_of[4][2] = {{x0.x, x0.y}, {x0.z, x0.w}, {x1.x, x1.y}, {x1.z, x1.w}};
          NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile) {
            float d[4] = {};
            NIBBLE_UNROLL for (u32 k = 0; k < 4; ++k) multiply(d, fragment[tile][k], inputs_of[k]);
            NIBBLE_UNROLL for (u32 e = 0; e < 4; ++e) sum[t][tile][e] =
                fma_rn(e < 2 ? low[i][tile] : high[i][tile], d[e], sum[t][tile][e]);
          }
        }
      }
    }
    finish(sum, ring.template as<float>(), row_warp, input_warp, g, q);
  }

 private:
  // Where a lane reads. A group is 64 inputs of a row.
  struct Source {
    Global<const u8> row[RowTiles][2];  // its codes of rows g and g + 8
    u32 scale[RowTiles];                // of lane (g, q): of row g + 8 * (q / 2) and groups q % 2, q % 2 + 2 ...
    u32 group, groups_end;              // the first group of the warp, and the end of the block's
  };
  // What a lane reads in a step.
  struct Operands {
    u32x2 packed[groups][RowTiles][2];  // 16 weights each
    u32 code[RowTiles][groups / 2];
    float absmax[RowTiles][groups / 2];  // or nested_absmax
  };

  // Of the rows from `first_row` on, and of the inputs that are a warp's in a step the `part`-th, up to step `last`.
  NIBBLE_DEVICE Source source_of(i64 first_row, u32 part, u32 last) const {
    const u32 g = lane_id() / 4, q = lane_id() % 4, row_groups = static_cast<u32>(weight.columns / 64);
    const i64 last_row = weight.rows - 1;
    const u32 end = last * (groups * InputWarps);
    Source source;
    source.group = part * groups;
    source.groups_end = end < row_groups ? end : row_groups;
    NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile) {
      // Rows past the end are read as the last one; nobody stores their sums.
      NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
        const i64 row = first_row + 16 * tile + 8 * half + g;
        source.row[tile][half] =
            weight.packed + ((row < last_row ? row : last_row) * (weight.columns / 2) + i64{source.group} * 32 + 8 * q);
      }
      const i64 row = first_row + 16 * tile + 8 * (q / 2) + g;
      source.scale[tile] = static_cast<u32>(row < last_row ? row : last_row) * row_groups + q % 2;
    }
    return source;
  }

  NIBBLE_DEVICE static void advance(Source& source) {
    source.group += groups * InputWarps;
    NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile) NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half)
        source.row[tile][half] = source.row[tile][half] + 32 * groups * InputWarps;
  }

  // Past the end a lane keeps what it has: any numbers will do, for the tokens there are zeros.
  NIBBLE_DEVICE void load(Operands& to, const Source& source) const {
    NIBBLE_UNROLL for (u32 i = 0; i < groups; ++i) {
      const bool inside = source.group + i < source.groups_end;
      NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile)
          NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) if (inside)
              to.packed[i][tile][half] = ldcs((source.row[tile][half] + 32 * i).template as<const u32x2>());
    }
    NIBBLE_UNROLL for (u32 i = 0; i < groups; i += 2) {
      const bool inside = source.group + i + lane_id() % 2 < source.groups_end;
      NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile) {
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

  // The inputs of one step for all tokens, 16 bytes a thread; zeros past the end of a row, and for tokens that do not
  // exist.
  NIBBLE_DEVICE void copy_tokens(Shared<u8> to, u32 step, u32 last) const {
    constexpr u32 pieces = inputs / 8, at_a_time = threads / pieces;  // of a token; tokens
    static_assert(threads % pieces == 0);
    if (step >= last) return;
    const u32 piece = thread_id() % pieces, input = step * inputs + 8 * piece, token = thread_id() / pieces;
    const i32 present = input < static_cast<u32>(weight.columns) ? static_cast<i32>(m - token) : 0;  // from `token` on
    to = to + (token * token_bytes + 16 * piece);
    Global<const Half> from = x + (token * x_stride + input);
    NIBBLE_UNROLL for (u32 t = 0; t < max_tokens; t += at_a_time) {
      if (TokenTiles == 1 && t + token >= m) break;
      cp_async16(to + t * token_bytes, from.template as<const u8>(), static_cast<i32>(t) < present ? 16 : 0);
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

  // In gaps, 32 neighbours lie in different banks, as they do without.
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

  // Adds the sums of the warps side by side, and stores.
  NIBBLE_DEVICE void finish(const float (&sum)[TokenTiles][RowTiles][4], Shared<float> sums_of_warps, u32 row_warp,
                            u32 input_warp, u32 g, u32 q) const {
    sync_threads();  // the memory was the tokens'
    NIBBLE_UNROLL for (u32 t = 0; t < TokenTiles; ++t) NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile)
        NIBBLE_UNROLL for (u32 e = 0; e < 4; ++e) {
      const u32 token = 8 * t + 2 * q + e % 2, row = 16 * (row_warp * RowTiles + tile) + g + 8 * (e / 2);
      sts(sums_of_warps + ((input_warp * tokens + token) * sum_row + row), sum[t][tile][e]);
    }
    sync_threads();
    for (u32 i = thread_id(); i < m * rows; i += threads) {
      const u32 token = i / rows;
      const i64 row = i64{block_x()} * rows + i % rows;
      if (row >= weight.rows) continue;
      float total = 0;
      NIBBLE_UNROLL for (u32 w = 0; w < InputWarps; ++w) total =
          add_rn(total, lds(sums_of_warps + ((w * tokens + token) * sum_row + i % rows)));
      if (partial.is_null())
        out.store(token, row, total);
      else
        st(partial + ((i64{block_y()} * m + token) * weight.rows + row), total);
    }
  }
};

/// Adds the sums of the splits in order. Grid: 256 rows, tokens.
template <class Half> struct SumPartials {
  static constexpr u32 threads = 256;

  Global<const float> partial;  // [split][token][row]
  u32 splits;
  i64 rows;
  MatmulOutput<Half> out;

  NIBBLE_DEVICE void operator()() const {
    const i64 row = i64{block_x()} * threads + thread_id();
    if (row >= rows) return;
    float total = 0;
    for (u32 split = 0; split < splits; ++split)
      total = add_rn(total, ld(partial + ((i64{split} * grid_y() + block_y()) * rows + row)));
    out.store(block_y(), row, total);
  }
};

}  // namespace nibble::kernels
