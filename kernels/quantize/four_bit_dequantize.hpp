// NF4 and FP4 to bf16, fp16 and fp32, nested absmax in the same pass.
//
// Bytes per weight with blocks of 64: 0.5 packed + 1/64 absmax code + 4/16384 nested absmax read, 2 or 4 written.
// Bound: memory, 2.516 bytes to 16 bits and 4.516 to fp32. A GPU that copies 4.3 TB/s (H200) does 1.71e12 and 0.95e12
// weights/s and could issue 17 and 31 instructions for each weight meanwhile; the loop below has 7 to 8
// (bench/results/kernel_instructions.jsonl).
//
// Hence traffic in whole lines, and little else. A warp stores 512 contiguous bytes at once: a lane has as many weights
// as 16 bytes hold, and loads their codes, 4 bytes or 2, next to its neighbours'. Each lane keeps a value of the
// codebook in a register, from which others fetch it by shuffle: a table in shared memory takes as long, but this needs
// no barrier. A warp's 1024 weights are in 32 blocks at most, so each lane decodes one absmax for the whole warp: the
// chain of three loads for a nested absmax is paid once for 1024 weights instead of once for 8.
//
// Tiles begin at multiples of 1024 of the weight, not of the rows that are asked for. So blocks never straddle tiles
// (or a tile lies within one), whatever the rows are.
#pragma once
#include "kernels/four_bit_weight.hpp"
#include "kernels/quantize/divisor.hpp"
#include "kernels/weights.hpp"

namespace nibble::kernels {

/// Where results go.
enum class Rows {
  contiguous,  // one after the other, the first aligned to 16 bytes and a multiple of in_vector into the weight
  strided,     // with gaps; k and stride are multiples of in_vector, the first aligned to 16 bytes
  any,         // all else: weight by weight
};

template <class T, Rows rows> struct FourBitDequantize {
  static constexpr u32 threads = 256;
  static constexpr u32 min_blocks = sizeof(T) == 4 ? 5 : 6;          // 48 and 40 registers
  static constexpr u32 tile = 1024;                                  // weights of a warp
  static constexpr u32 each = rows == Rows::any ? 1 : in_vector<T>;  // weights of a lane at a time

  Global<const u8> packed;
  FourBitAbsmax absmax;
  Global<T> out;
  u64 begin, end;  // elements of the weight
  u64 gap;         // elements of `out` between rows
  Divisor k;
  u32 log2_blocksize;
  bool aligned;  // what a lane loads of `packed` at once
  float codebook[16];

  NIBBLE_DEVICE void operator()() const {
    const float value = codebook[lane_id() % 16];
    const float offset = absmax.is_nested() ? ldg(absmax.nested_offset) : 0.0f;
    const u64 stride = u64{grid_x()} * (threads / 32) * tile;
    for (u64 first = begin / tile * tile + (u64{block_x()} * (threads / 32) + warp_id()) * tile; first < end;
         first += stride) {
      if (rows != Rows::any && aligned && first >= begin && end - first >= tile) {
        whole_tile(first, value, offset);
        continue;
      }
      const u32 low = begin > first ? static_cast<u32>(begin - first) : 0;
      const u32 high = end - first < tile ? static_cast<u32>(end - first) : tile;
      const float scale = scale_of_lane(first, low, high, offset);
      NIBBLE_NO_UNROLL for (u32 index = 0; index < tile; index += 32 * each)
          part_of_tile<each>(first, low, high, value, scale, index);
      // The odd end of the weight.
      if (high % each != 0) part_of_tile<1>(first, low, high, value, scale, high - high % each);
    }
  }

 private:
  template <u32 Each> static constexpr u32 bytes_of = Each == 1 ? 1 : Each / 2;

  // Lane l has the absmax of the tile's block l. Blocks without an element from low to high are not touched.
  NIBBLE_DEVICE float scale_of_lane(u64 first, u32 low, u32 high, float offset) const {
    const u32 block = lane_id() << log2_blocksize, next = block + (1u << log2_blocksize);
    if (block >= high || next <= low) return 0.0f;
    const auto i = static_cast<i64>((first >> log2_blocksize) + lane_id());
    return absmax.is_nested() ? absmax.nested_of(i, offset) : absmax.plain_of(i);
  }

  NIBBLE_DEVICE i64 index_in_out(u64 element) const {
    const u64 i = element - begin;
    if (rows == Rows::contiguous || (rows == Rows::any && gap == 0)) return static_cast<i64>(i);
    return static_cast<i64>(i + k.quotient(i) * gap);
  }

  // Weight i of those whose codes are in `codes`: the high nibble of a byte comes first. A shuffle takes the lowest 5
  // bits of its index, a code and a bit of the next one, which does not matter: lanes 16 apart have the same value.
  NIBBLE_DEVICE static float decoded(u32 codes, u32 i, float value, float scale) {
    return mul_rn(shfl_idx(~0u, value, codes >> 4 * (i ^ 1)), scale);
  }

  // All loads come first, so that they are in flight together.
  NIBBLE_DEVICE void whole_tile(u64 first, float value, float offset) const {
    constexpr u32 steps = tile / (32 * each);
    Number<bytes_of<each>> codes[steps];
    NIBBLE_UNROLL for (u32 step = 0; step < steps; ++step) {
      const u64 element = first + (step * 32 + lane_id()) * each;
      codes[step] = ldcs((packed + static_cast<i64>(element / 2)).as<const Number<bytes_of<each>>>());
    }
    const float scales = scale_of_lane(first, 0, tile, offset);
    NIBBLE_UNROLL for (u32 step = 0; step < steps; ++step) {
      const u32 index = (step * 32 + lane_id()) * each;
      const float scale = shfl_idx(~0u, scales, index >> log2_blocksize);
      float weight[each];
      NIBBLE_UNROLL for (u32 i = 0; i < each; ++i) weight[i] = decoded(codes[step], i, value, scale);
      store(out + index_in_out(first + index), weight);
    }
  }

  // Weights from `first_index` on, of which a lane has `Each` in a row; those from low to high, by bytes.
  template <u32 Each>
  NIBBLE_DEVICE void part_of_tile(u64 first, u32 low, u32 high, float value, float scales, u32 first_index) const {
    const u32 index = first_index + lane_id() * Each;
    const bool inside = index >= low && index + Each <= high;
    u32 codes = 0;
    if (inside) codes = load_bytes<bytes_of<Each>>(packed + static_cast<i64>((first + index) / 2));
    const float scale = shfl_idx(~0u, scales, index >> log2_blocksize);
    float weight[Each];
    NIBBLE_UNROLL for (u32 i = 0; i < Each; ++i) weight[i] = decoded(codes, Each == 1 ? index % 2 : i, value, scale);
    if (inside) store(out + index_in_out(first + index), weight);
  }
};

}  // namespace nibble::kernels
