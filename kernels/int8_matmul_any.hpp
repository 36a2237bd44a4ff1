// y [m, n] = x [m, k] * transposed(weight [n, k]) for what int8_matmul.hpp does not support: any k, and pointers and
// strides that are not aligned.
//
// Bound: instructions, about 5 per weight and 8 of m. A warp has one n and 8 of m; its lanes take every 32nd k. The
// arithmetic is that of the other kernel, in another order.
#pragma once
#include "kernels/int8_matmul.hpp"

namespace nibble::kernels {

/// Grid: n by 8; pieces of 8 of m, which blocks take in turn.
template <class Half> struct Int8MatmulAny {
  static constexpr u32 threads = 256, block_n = threads / 32, block_m = 8;
  static constexpr u32 max_grid_y = 65535;

  Int8Operand weight;
  Global<const Half> x;
  i64 x_stride;
  u32 m;
  MatmulOutput<Half> out;

  NIBBLE_DEVICE void operator()() const {
    dependency_wait();
    const i64 at_n = i64{block_x()} * block_n + warp_id();
    if (at_n >= weight.n) return;
    for (u64 first = u64{block_y()} * block_m; first < m; first += u64{grid_y()} * block_m)
      multiply(static_cast<u32>(first), at_n);
  }

 private:
  // The rows of x from `first` on, 8 at most, with row at_n of the weight.
  NIBBLE_DEVICE void multiply(u32 first, i64 at_n) const {
    float sum[block_m] = {};
    for (i64 at_k = lane_id(); at_k < weight.k; at_k += 32) {
      const float code = static_cast<float>(static_cast<i8>(ldg(weight.codes + (at_n * weight.k + at_k))));
      NIBBLE_UNROLL for (u32 t = 0; t < block_m; ++t) if (first + t < m) sum[t] =
          fma_rn(code, to_float(ld(x + (i64{first + t} * x_stride + at_k))), sum[t]);
    }
    NIBBLE_UNROLL for (u32 t = 0; t < block_m; ++t) {
      NIBBLE_UNROLL for (u32 distance = 16; distance > 0; distance /= 2) sum[t] =
          add_rn(sum[t], shfl_xor(~0u, sum[t], distance));
      if (lane_id() == t && first + t < m) out.store(first + t, at_n, weight.scaled(sum[t], at_n));
    }
  }
};

}  // namespace nibble::kernels
