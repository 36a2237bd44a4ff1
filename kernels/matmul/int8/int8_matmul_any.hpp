// y [m, n] = x [m, k] * transposed(weight [n, k]) for what int8_matmul.hpp does not support: any k, and pointers and
// strides that are not aligned.
//
// Bound: instructions, 23 per weight and 8 of m on sm_90a. A warp multiplies each x that it reads by four rows of the
// weight, because reading a value takes about five instructions and multiplying it one: with one row it would be 69.
// The arithmetic is that of the other kernel, in another order.
#pragma once
#include "kernels/matmul/int8/int8_matmul.hpp"
#include "kernels/matmul/matmul_by_warps.hpp"

namespace nibble::kernels {

template <class Half> struct Int8MatmulAny {
  using ByWarps = MatmulByWarps<Half>;
  static constexpr u32 threads = ByWarps::threads, block_m = ByWarps::block_m;
  static constexpr u32 warp_n = 4;  // rows of the weight that a warp multiplies

  static Grid grid(u32 rows, u64 n) { return ByWarps::grid(rows, ceil_div<u64>(n, warp_n)); }

  Int8Operand weight;
  Global<const Half> x;
  i64 x_stride;
  u32 m;
  MatmulOutput<Half> out;

  NIBBLE_DEVICE void operator()() const {
    dependency_wait();
    const i64 first_n = ByWarps::at_n() * warp_n;
    if (first_n >= weight.n) return;
    ByWarps::for_each_piece(0, m, [&](u32 first_m) { multiply(first_m, first_n); });
  }

 private:
  // Rows of x and of the weight, as far as they exist. Any that do not are read as the last one; their sums are not
  // stored.
  NIBBLE_DEVICE void multiply(u32 first_m, i64 first_n) const {
    Global<const Half> x_row[block_m];
    NIBBLE_UNROLL for (u32 t = 0; t < block_m; ++t) {
      const u32 at_m = first_m + t;
      x_row[t] = x + i64{at_m < m ? at_m : m - 1} * x_stride;
    }
    Global<const u8> codes[warp_n];
    NIBBLE_UNROLL for (u32 j = 0; j < warp_n; ++j) {
      const i64 at_n = first_n + j;
      codes[j] = weight.codes + (at_n < weight.n ? at_n : weight.n - 1) * weight.k;
    }
    typename ByWarps::Sums sum[warp_n] = {};
    for (i64 at_k = lane_id(); at_k < weight.k; at_k += 32) {
      float code[warp_n];
      NIBBLE_UNROLL for (u32 j = 0; j < warp_n; ++j) code[j] =
          static_cast<float>(static_cast<i8>(ldg(codes[j] + at_k)));
      NIBBLE_UNROLL for (u32 t = 0; t < block_m; ++t) {
        const float own_x = to_float(ld(x_row[t] + at_k));
        NIBBLE_UNROLL for (u32 j = 0; j < warp_n; ++j) sum[j][t] = fma_rn(code[j], own_x, sum[j][t]);
      }
    }
    for (u32 j = 0; j < warp_n && first_n + j < weight.n; ++j) {
      const i64 at_n = first_n + j;
      ByWarps::store(sum[j], first_m, m,
                     [&](u32 at_m, float total) { out.store(at_m, at_n, weight.scaled(total, at_n)); });
    }
  }
};

}  // namespace nibble::kernels
