// y [m, n] = x [m, k] * transposed(weight [n, k]) for the weights that four_bit_matmul.hpp does not support: any k, so
// that rows of the weight may begin within a byte, and a block end at any weight; pointers and strides that are not
// aligned.
//
// Bound: instructions, 131 for a weight and 8 of m. Each lane sums the products of a block, and absmax multiplies
// that sum when the next block begins: the arithmetic is that of the other kernel, in another order.
#pragma once
#include "kernels/matmul/four_bit/four_bit_matmul.hpp"
#include "kernels/matmul/matmul_by_warps.hpp"

namespace nibble::kernels {

/// Grid: as of MatmulByWarps; experts, as of FourBitMatmul.
template <class Half> struct FourBitMatmulAny {
  using ByWarps = MatmulByWarps<Half>;
  static constexpr u32 threads = ByWarps::threads, block_n = ByWarps::block_n, block_m = ByWarps::block_m;

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
    const i64 at_n = ByWarps::at_n();
    if (at_n >= weight.n) return;

    const MatmulRows rows = MatmulRows::of_block(ends, m);
    const i64 row = (ends.is_null() ? 0 : i64{block_z()} * weight.n) + at_n;
    ByWarps::for_each_piece(rows.first, rows.end, [&](u32 first) {
      multiply(weight.first + row * weight.stride, value, first, rows.end, at_n);
    });
  }

 private:
  using Sums = typename ByWarps::Sums;

  // The rows of x from `first` on, 8 at most, with the row of the weight that begins at `first_element`.
  NIBBLE_DEVICE void multiply(i64 first_element, Shared<float> value, u32 first, u32 end, i64 at_n) const {
    const ByWarps by_warps{x, x_stride};
    Sums sum = {}, block_sum = {};
    float scale = 0;
    i64 block = -1;
    for (i64 at_k = lane_id(); at_k < weight.k; at_k += 32) {
      const i64 element = first_element + at_k;
      if (element >> weight.log2_blocksize != block) {
        add_block(sum, block_sum, scale);
        block = element >> weight.log2_blocksize;
        scale = absmax_of(block);
      }
      const u32 byte = ldg(weight.packed + element / 2);
      const float w = lds(value + (element % 2 == 0 ? byte >> 4 : byte & 15));
      by_warps.add(block_sum, w, first, end, at_k);
    }
    add_block(sum, block_sum, scale);
    ByWarps::store(sum, first, end, [&](u32 at_m, float total) { out.store(at_m, at_n, total); });
  }

  NIBBLE_DEVICE static void add_block(Sums& sum, Sums& block_sum, float scale) {
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
