// y [m, n] = x [m, k] * transposed(weight [n, k]) for the weights that four_bit_matmul.hpp does not support: any k, so
// that rows of the weight may begin within a byte, and a block end at any weight; pointers and strides that are not
// aligned.
//
// Bound: instructions, about 6 per weight and 8 of m. A warp has one n and 8 of m; its lanes take every 32nd k. Each
// lane sums the products of a block, and absmax multiplies that sum when the next block begins: the arithmetic is that
// of the other kernel, in another order.
#pragma once
#include "kernels/four_bit_matmul.hpp"

namespace nibble::kernels {

/// Grid: n by 8; pieces of 8 of m, which blocks take in turn; experts, as of FourBitMatmul.
template <class Half> struct FourBitMatmulAny {
  static constexpr u32 threads = 256, block_n = threads / 32, block_m = 8;
  static constexpr u32 max_grid_y = 65535;

  FourBitOperand weight;
  Global<const Half> x;
  i64 x_stride;
  u32 m;
  MatmulOutput<Half> out;
  Global<const u32> ends;

  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(float, value, 16);
    dependency_wait();
    if (thread_id() < 16) sts(value + thread_id(), to_float(rounded<Half>(weight.value[thread_id()])));
    sync_threads();
    const i64 at_n = i64{block_x()} * block_n + warp_id();
    if (at_n >= weight.n) return;

    const MatmulRows rows = MatmulRows::of_block(ends, m);
    const i64 row = (ends.is_null() ? 0 : i64{block_z()} * weight.n) + at_n;
    for (u64 first = u64{rows.first} + block_y() * block_m; first < rows.end; first += u64{grid_y()} * block_m)
      multiply(weight.first + row * weight.stride, value, static_cast<u32>(first), rows.end, at_n);
  }

 private:
  // The rows of x from `first` on, 8 at most, with the row of the weight that begins at `first_element`.
  NIBBLE_DEVICE void multiply(i64 first_element, Shared<float> value, u32 first, u32 end, i64 at_n) const {
    const u32 lane = lane_id();
    float sum[block_m] = {}, block_sum[block_m] = {};
    float scale = 0;
    i64 block = -1;
    for (i64 at_k = lane; at_k < weight.k; at_k += 32) {
      const i64 element = first_element + at_k;
      if (element >> weight.log2_blocksize != block) {
        add_block(sum, block_sum, scale);
        block = element >> weight.log2_blocksize;
        scale = absmax_of(block);
      }
      const u32 byte = ldg(weight.packed + element / 2);
      const float w = lds(value + (element % 2 == 0 ? byte >> 4 : byte & 15));
      NIBBLE_UNROLL for (u32 t = 0; t < block_m; ++t) if (first + t < end) block_sum[t] =
          fma_rn(w, to_float(ld(x + (i64{first + t} * x_stride + at_k))), block_sum[t]);
    }
    add_block(sum, block_sum, scale);

    NIBBLE_UNROLL for (u32 t = 0; t < block_m; ++t) {
      NIBBLE_UNROLL for (u32 distance = 16; distance > 0; distance /= 2) sum[t] =
          add_rn(sum[t], shfl_xor(~0u, sum[t], distance));
      if (lane == t && first + t < end) out.store(first + t, at_n, sum[t]);
    }
  }

  NIBBLE_DEVICE static void add_block(float (&sum)[block_m], float (&block_sum)[block_m], float scale) {
    NIBBLE_UNROLL for (u32 t = 0; t < block_m; ++t) {
      sum[t] = fma_rn(scale, block_sum[t], sum[t]);
      block_sum[t] = 0;
    }
  }

  NIBBLE_DEVICE float absmax_of(i64 block) const {
    const FourBitAbsmax& absmax = weight.absmax;
    return absmax.is_nested() ? absmax.nested_of(block, ldg(absmax.nested_offset)) : absmax.plain_of(block);
  }
};

}  // namespace nibble::kernels
