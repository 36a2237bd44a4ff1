// y = x * transposed(weight) for 1 to 64 rows of x, the weight in NF4 or FP4 and never written out.
//
// Bytes per weight: 0.5 packed and 1/64 + 4/16384 of nested absmax, 0.5159, read once. Bound: memory; 4.3 TB/s of an
// H200 are 8.3e12 weights/s, and leave its 132 multiprocessors 3.6 to 4.0 instructions of a thread for each. Counted in
// the machine code of the loop: 2.9 to 3.2 for up to 16 rows, 3.8 for 32, 5.0 for 64 (docs/four-bit-matmul.md).
//
// Hence tensor cores from the first row of x on: a byte of codes becomes a register of two weights by one look into a
// table of pairs, and mma.sync takes the 16 rows of the weight as its large operand, 8 rows of x ("tokens") as its
// small one. What is looked up are the codebook's values; absmax multiplies the accumulators of each 64 inputs, 8 times
// less often than it would multiply weights, and no weight is rounded twice.
//
//   warp      16 * RowTiles rows x 128 inputs a step: the packed bytes go from memory to registers, a step ahead
//   block     RowWarps warps below each other share the inputs, InputWarps side by side share the rows;
//             tokens come through shared memory by asynchronous copies
//   table     256 pairs, 32 times: lane i reads bank i alone, whatever its byte is
//   sums      of the warps side by side: through shared memory at the end, in order of their inputs
//   split     where the rows are too few for all multiprocessors, blocks share the inputs too and leave partial sums in
//             the workspace, which SumPartials adds, in order
#pragma once
#include <type_traits>

#include "kernels/device/device.hpp"
#include "kernels/weights.hpp"

namespace nibble::kernels {
using namespace device;

/// A 4-bit weight as kernels read it.
struct FourBitOperand {
  Global<const u8> packed;
  Global<const float> absmax;  // null if nested
  Global<const u8> absmax_codes;
  Global<const float> nested_absmax, nested_codebook, nested_offset;
  i64 rows, columns;
  u32 log2_blocksize;
  float value[16];  // the codebook
};

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
/// bytes and x and its rows to 16. Grid: tiles of rows, splits.
template <class Half, bool Nested, u32 TokenTiles, u32 RowWarps, u32 InputWarps, u32 RowTiles = 2>
struct FourBitMatmul {
  static constexpr u32 threads = 32 * RowWarps * InputWarps;
  static constexpr u32 min_blocks = TokenTiles <= 2 ? 2 : 1;
  static constexpr u32 tokens = 8 * TokenTiles, rows = 16 * RowTiles * RowWarps;  // of a block
  static constexpr u32 inputs = 128 * InputWarps;                                 // of a block in a step
  static constexpr u32 stages = TokenTiles > 4 ? 2 : 3;                           // steps whose tokens are in flight

  static constexpr u32 table_bytes = 256 * 32 * 4, nested_bytes = 256 * 4;
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
    return table_bytes + nested_bytes + (ring > 4 * sums ? ring : 4 * sums);
  }

  NIBBLE_DEVICE_AND_HOST static constexpr u32 most_shared_bytes() { return shared_bytes(tokens); }

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
    const Shared<float> nested = dynamic_shared().part(table_bytes, nested_bytes).template as<float>();
    const Shared<u8> ring =
        dynamic_shared().part(table_bytes + nested_bytes, shared_bytes(m) - table_bytes - nested_bytes);

    // Steps of this block. A row has `blocks` times 64 inputs; of these the splits get whole steps.
    const u32 blocks = static_cast<u32>(weight.columns / 64), steps = ceil_div(blocks, 2 * InputWarps);
    const u32 first = u32(u64{steps} * block_y() / grid_y()), last = u32(u64{steps} * (block_y() + 1) / grid_y());
    const u32 blocks_end = 2 * InputWarps * last < blocks ? 2 * InputWarps * last : blocks;

    NIBBLE_UNROLL for (u32 i = 0; i + 1 < stages; ++i) {
      copy_tokens(ring + i * stage_bytes(m), first + i, last);
      cp_commit();
    }

    Ahead ahead{};
    const i64 warp_row = i64{block_x()} * rows + row_warp * (16 * RowTiles);
    const i64 last_row = weight.rows - 1;
    u32 block = 2 * (first * InputWarps + input_warp);  // the first of the warp's two, in units of 64 inputs
    NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile) {
      // Rows past the end are read as the last one; nobody stores their sums.
      NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
        const i64 row = warp_row + 16 * tile + 8 * half + g;
        ahead.row[tile][half] =
            weight.packed + ((row < last_row ? row : last_row) * (weight.columns / 2) + i64{block} * 32 + 8 * q);
        NIBBLE_UNROLL for (u32 b = 0; b < 2; ++b) load_packed(ahead, b, tile, half, block + b < blocks_end);
      }
      // Lane (g, q) looks after the scale of row g + 8 * (q / 2) and block q % 2.
      const i64 row = warp_row + 16 * tile + 8 * (q / 2) + g;
      ahead.scale_block[tile] = static_cast<u32>(row < last_row ? row : last_row) * blocks + q % 2;
      load_scale(ahead, tile, block, block + q % 2 < blocks_end);
    }

    for (u32 i = thread_id(); i < 256 * 8; i += threads) {
      const u32 pair =
          rounded_pair<Half>(weight.value[i / 8 >> 4], weight.value[i / 8 & 15]);  // the high nibble is first
      sts((table + 16 * i).template as<u32x4>(), {pair, pair, pair, pair});
    }
    float offset = 0;
    if constexpr (Nested) {
      for (u32 i = thread_id(); i < 256; i += threads) sts(nested + i, ldg(weight.nested_codebook + i));
      offset = ldg(weight.nested_offset);
    }

    const u32 token_at = (TokenTiles > 1 || g < m ? g : m - 1) * token_bytes + input_warp * 256 + 32 * q;
    const u32 bank = 4 * lane;

    float sum[TokenTiles][RowTiles][4] = {};
    u32 stage = 0;
    for (u32 step = first; step < last; ++step) {
      cp_wait<stages - 2>();
      sync_threads();  // the tokens of this step are here, and nobody reads those of the last one any more
      copy_tokens(ring + ((stage > 0 ? stage : stages * stage_bytes(m)) - stage_bytes(m)), step + stages - 1, last);
      cp_commit();
      const Shared<u8> arrived = ring + stage;
      stage = stage == (stages - 1) * stage_bytes(m) ? 0 : stage + stage_bytes(m);
      block += 2 * InputWarps;

      float low[2][RowTiles], high[2][RowTiles];
      NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile) {
        float scale = ahead.absmax[tile];
        if constexpr (Nested) scale = add_rn(mul_rn(lds(nested + ahead.code[tile]), scale), offset);
        NIBBLE_UNROLL for (u32 b = 0; b < 2; ++b) {
          low[b][tile] = shfl_idx(~0u, scale, 4 * g + b);
          high[b][tile] = shfl_idx(~0u, scale, 4 * g + 2 + b);
        }
        load_scale(ahead, tile, block, block + q % 2 < blocks_end);
        NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) ahead.row[tile][half] =
            ahead.row[tile][half] + 64 * InputWarps;
      }
      NIBBLE_UNROLL for (u32 b = 0; b < 2; ++b) {
        // Past the end there is nothing to multiply. With many sums the branch also keeps the compiler from loading
        // both blocks' operands ahead of both blocks' products, which would take more registers than there are; with
        // few it is better that it does, and tokens past the end are zeros.
        if (TokenTiles > 4 && block + b >= blocks_end + 2 * InputWarps) break;
        // Fragment `k` has, of each 16 inputs that lane q holds, the four from 4 * k on.
        u32 fragment[RowTiles][4][4];
        NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile) {
          NIBBLE_UNROLL for (u32 half = 0; half < 2; ++half) {
            const u32x2 packed = ahead.packed[b][tile][half];
            NIBBLE_UNROLL for (u32 k = 0; k < 4; ++k) {
              const u32 word = k < 2 ? packed.x : packed.y;
              fragment[tile][k][half] = look_up(table, k % 2 == 0 ? word << 7 : word >> 9, bank);
              fragment[tile][k][2 + half] = look_up(table, k % 2 == 0 ? word >> 1 : word >> 17, bank);
            }
            load_packed(ahead, b, tile, half, block + b < blocks_end);
          }
        }
        NIBBLE_UNROLL for (u32 t = 0; t < TokenTiles; ++t) {
          const Shared<u8> at = arrived + token_at + (8 * token_bytes * t + 128 * b);
          const u32x4 x0 = lds(at.template as<u32x4>()), x1 = lds((at + 16).template as<u32x4>());
          const u32 inputs_of[4][2] = {{x0.x, x0.y}, {x0.z, x0.w}, {x1.x, x1.y}, {x1.z, x1.w}};
          NIBBLE_UNROLL for (u32 tile = 0; tile < RowTiles; ++tile) {
            float d[4] = {};
            NIBBLE_UNROLL for (u32 k = 0; k < 4; ++k) multiply(d, fragment[tile][k], inputs_of[k]);
            NIBBLE_UNROLL for (u32 e = 0; e < 4; ++e) sum[t][tile][e] =
                fma_rn(e < 2 ? low[b][tile] : high[b][tile], d[e], sum[t][tile][e]);
          }
        }
      }
    }
    finish(sum, ring.template as<float>(), row_warp, input_warp, g, q);
  }

 private:
  // What a lane has on its way for the next step.
  struct Ahead {
    Global<const u8> row[RowTiles][2];  // where its bytes of that step are
    u32x2 packed[2][RowTiles][2];       // [block of 64 inputs][tile][row g or g + 8]: 16 weights
    u32 scale_block[RowTiles];
    u32 code[RowTiles];
    float absmax[RowTiles];  // or nested_absmax
  };

  // Past the end a lane keeps what it has: any numbers will do, for the tokens there are zeros.
  NIBBLE_DEVICE static void load_packed(Ahead& ahead, u32 b, u32 tile, u32 half, bool inside) {
    if (inside) ahead.packed[b][tile][half] = ldcs((ahead.row[tile][half] + 32 * b).template as<const u32x2>());
  }

  NIBBLE_DEVICE void load_scale(Ahead& ahead, u32 tile, u32 block, bool inside) const {
    const u32 i = (ahead.scale_block[tile] + block) >> (weight.log2_blocksize - 6);
    if constexpr (Nested) {
      if (inside) ahead.code[tile] = ldg(weight.absmax_codes + i);
      if (inside) ahead.absmax[tile] = ldg(weight.nested_absmax + (i >> 8));
    } else {
      if (inside) ahead.absmax[tile] = ldg(weight.absmax + i);
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
    NIBBLE_UNROLL for (u32 t = 0; t < tokens; t += at_a_time) {
      if (TokenTiles > 1 || t + token < m)
        cp_async16(to + t * token_bytes, from.template as<const u8>(), static_cast<i32>(t) < present ? 16 : 0);
      from = from + at_a_time * x_stride;
    }
  }

  // Two weights for the byte that lies in bits 7 to 14.
  NIBBLE_DEVICE static u32 look_up(Shared<u8> table, u32 bits, u32 bank) {
    return lds((table + lop3<(0xf0 & 0xcc) | 0xaa>(bits, 0x7f80, bank)).template as<u32>());
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
