// 16-bit values as fp32, for a bias that is added to a y of fp32.
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/weights.hpp"

namespace nibble::kernels {
using namespace device;

/// out[i] = in[i]. Grid: as many blocks as there is work.
template <class Half> struct Widen {
  static constexpr u32 threads = 256;

  Global<const Half> in;
  Global<float> out;
  i64 n;

  NIBBLE_DEVICE void operator()() const {
    for (i64 i = i64{block_x()} * threads + thread_id(); i < n; i += i64{grid_x()} * threads)
      st(out + i, to_float(ld(in + i)));
  }
};

}  // namespace nibble::kernels
