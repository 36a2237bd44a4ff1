// LLM.int8() to bf16, fp16 and fp32.
//
// Bytes per weight: 1 read, 2 or 4 written; absmax is one value for a row. Bound: memory, 3 bytes to 16 bits and 5 to
// fp32. A GPU that copies 4.3 TB/s (H200) does 1.43e12 and 0.86e12 weights/s and could issue 21 and 34 instructions for
// each weight meanwhile; the loop below has 8 to 12 (bench/results/kernel_instructions.jsonl).
//
// Hence traffic in whole lines: a lane has as many weights as 16 bytes hold, and a warp stores 512 contiguous bytes.
// Finding the row of a lane's weights, for its absmax and address, costs a multiplication
// (kernels/quantize/divisor.hpp).
#pragma once
#include "kernels/quantize/divisor.hpp"
#include "kernels/weights.hpp"
#include "nibble/int8.hpp"

namespace nibble::kernels {

/// `whole`: k and stride are multiples of in_vector, and `out` is aligned to 16 bytes. Otherwise weight by
/// weight.
template <class T, bool whole> struct Int8Dequantize {
  static constexpr u32 threads = 256;
  static constexpr u32 min_blocks = 6;
  static constexpr u32 each = whole ? in_vector<T> : 1;  // weights of a lane at a time
  static constexpr u32 steps = 4;
  static constexpr u32 tile = 32 * each * steps;  // weights of a warp

  Global<const u8> codes;      // of the first row that is asked for
  Global<const float> absmax;  // of the same
  Global<T> out;
  u64 size;  // elements that are asked for
  u64 gap;   // elements of `out` between rows
  Divisor k;
  bool aligned;  // what a lane loads of `codes` at once

  NIBBLE_DEVICE void operator()() const {
    const u64 stride = u64{grid_x()} * (threads / 32) * tile;
    for (u64 first = (u64{block_x()} * (threads / 32) + warp_id()) * tile; first < size; first += stride) {
      if (aligned && size - first >= tile) {
        whole_tile(first);
        continue;
      }
      NIBBLE_NO_UNROLL for (u64 i = first + lane_id() * each; i < first + tile && i < size; i += 32 * each) {
        decode(i, load_bytes<each>(codes + static_cast<i64>(i)));
      }
    }
  }

 private:
  // All loads come first, so that they are in flight together.
  NIBBLE_DEVICE void whole_tile(u64 first) const {
    Number<each> loaded[steps];
    NIBBLE_UNROLL for (u32 step = 0; step < steps; ++step) {
      loaded[step] = ldcs((codes + static_cast<i64>(first + (step * 32 + lane_id()) * each)).as<const Number<each>>());
    }
    NIBBLE_UNROLL for (u32 step = 0; step < steps; ++step) decode(first + (step * 32 + lane_id()) * each, loaded[step]);
  }

  // A lane's weights from element i on, which are in one row.
  NIBBLE_DEVICE void decode(u64 i, Number<each> loaded) const {
    const u64 row = k.quotient(i);
    const float scale = ldg(absmax + static_cast<i64>(row));
    float weight[each];
    NIBBLE_UNROLL for (u32 j = 0; j < each; ++j) {
      weight[j] = mul_rn(mul_rn(static_cast<float>(static_cast<i8>(loaded >> 8 * j)), scale), int8::inverse_127);
    }
    store(out + static_cast<i64>(i + row * gap), weight);
  }
};

}  // namespace nibble::kernels
