// y [m, n] = x [m, k] * transposed(weight [n, k]) for what int8_matmul.hpp does not support: any k, and pointers and
// strides that are not aligned.
//
// Bound: instructions, 69 per weight and 8 of m on sm_90a. The arithmetic is that of the other kernel, in another
// order.
#pragma once
#include "kernels/matmul/int8/int8_matmul.hpp"
#include "kernels/matmul/matmul_by_warps.hpp"

namespace nibble::kernels {

/// Grid: as of MatmulByWarps.
template <class Half> struct Int8MatmulAny {
  using ByWarps = MatmulByWarps<Half>;
  static constexpr u32 threads = ByWarps::threads, block_n = ByWarps::block_n, block_m = ByWarps::block_m;

  Int8Operand weight;
  Global<const Half> x;
  i64 x_stride;
  u32 m;
  MatmulOutput<Half> out;

  NIBBLE_DEVICE void operator()() const {
    dependency_wait();
    const i64 at_n = ByWarps::at_n();
    if (at_n >= weight.n) return;
    ByWarps::for_each_piece(0, m, [&](u32 first) { multiply(first, at_n); });
  }

 private:
  // The rows of x from `first` on, 8 at most, with row at_n of the weight.
  NIBBLE_DEVICE void multiply(u32 first, i64 at_n) const {
    const ByWarps by_warps{x, x_stride};
    typename ByWarps::Sums sum = {};
    for (i64 at_k = lane_id(); at_k < weight.k; at_k += 32) {
      const float code = static_cast<float>(static_cast<i8>(ldg(weight.codes + (at_n * weight.k + at_k))));
      by_warps.add(sum, code, first, m, at_k);
    }
    ByWarps::store(sum, first, m, [&](u32 at_m, float total) { out.store(at_m, at_n, weight.scaled(total, at_n)); });
  }
};

}  // namespace nibble::kernels
