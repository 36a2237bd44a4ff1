// fp32 rows rounded to 16 bits, for products whose x is fp32: 4 + 2 bytes per value, bound by memory.
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/weights.hpp"

namespace nibble::kernels {
using namespace device;

/// out [m, k], without gaps, from x [m, k]. Grid: as many blocks as there is work, rows in turn.
template <class Half> struct RoundRows {
  static constexpr u32 threads = 256;

  Global<const float> x;
  i64 x_stride, k;
  u32 m;
  Global<Half> out;

  NIBBLE_DEVICE void operator()() const {
    for (u32 row = block_x(); row < m; row += grid_x())
      for (i64 at_k = thread_id(); at_k < k; at_k += threads)
        st(out + (i64{row} * k + at_k), rounded<Half>(ld(x + (i64{row} * x_stride + at_k))));
  }
};

}  // namespace nibble::kernels
