// A product without tensor cores, for any k and any address: a warp has one n and 8 of m, and its lanes take every 32nd
// k. What a weight is, and when it is scaled, is the kernel's business.
#pragma once
#include "kernels/device/device.hpp"

namespace nibble::kernels {
using namespace device;

template <class Half> struct MatmulByWarps {
  static constexpr u32 threads = 256, block_n = threads / 32, block_m = 8;
  using Sums = float[block_m];

  /// n by 8; pieces of 8 of m, which blocks take in turn; and `depth`, what the kernel makes of it.
  static Grid grid(u32 m, u64 n, u32 depth = 1) {
    const u32 pieces = ceil_div(m, block_m);
    return {static_cast<u32>(ceil_div<u64>(n, block_n)), pieces < max_grid_y ? pieces : max_grid_y, depth};
  }

  [[nodiscard]] NIBBLE_DEVICE static i64 at_n() { return i64{block_x()} * block_n + warp_id(); }

  Global<const Half> x;
  i64 stride;

  /// Calls body(first) for the pieces of rows [first, end) that are this block's.
  template <class Body> NIBBLE_DEVICE static void for_each_piece(u32 first, u32 end, Body&& body) {
    for (u64 at_m = u64{first} + block_y() * block_m; at_m < end; at_m += u64{grid_y()} * block_m)
      body(static_cast<u32>(at_m));
  }

  /// Adds the products of a weight with column at_k of x to the lane's sums: rows from `first` on, but before `end`.
  NIBBLE_DEVICE void add(Sums& sum, float weight, u32 first, u32 end, i64 at_k) const {
    NIBBLE_UNROLL for (u32 t = 0; t < block_m; ++t) {
      if (first + t < end) sum[t] = fma_rn(weight, to_float(ld(x + (i64{first + t} * stride + at_k))), sum[t]);
    }
  }

  /// Adds the sums of all lanes, and calls store(row of y, total) for each row, in one lane.
  template <class Store> NIBBLE_DEVICE static void store(Sums& sum, u32 first, u32 end, Store&& store) {
    NIBBLE_UNROLL for (u32 t = 0; t < block_m; ++t) {
      NIBBLE_UNROLL for (u32 distance = 16; distance > 0; distance /= 2) {
        sum[t] = add_rn(sum[t], shfl_xor(~0u, sum[t], distance));
      }
      if (lane_id() == t && first + t < end) store(first + t, sum[t]);
    }
  }

 private:
  static constexpr u32 max_grid_y = 65535;
};

}  // namespace nibble::kernels
