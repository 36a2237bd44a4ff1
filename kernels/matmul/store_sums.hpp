// The end of a product whose sums are in memory: 4 + 2 bytes read and 2 written per value, bound by memory.
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/matmul/split_sums.hpp"

namespace nibble::kernels {
using namespace device;

/// Stores sums [m, n], without gaps, as MatmulOutput does. Grid: as many blocks as there is work, rows in turn.
template <class Half> struct StoreSums {
  static constexpr u32 threads = 256;

  Global<const float> sums;
  i64 n;
  u32 m;
  MatmulOutput<Half> out;

  NIBBLE_DEVICE void operator()() const {
    for (u32 row = block_x(); row < m; row += grid_x())
      for (i64 at_n = thread_id(); at_n < n; at_n += threads) out.store(row, at_n, ld(sums + (i64{row} * n + at_n)));
  }
};

}  // namespace nibble::kernels
