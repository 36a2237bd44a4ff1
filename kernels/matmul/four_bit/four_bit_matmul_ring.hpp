// Stages of shared memory that are filled by some warps of a block and emptied by others, in turn.
#pragma once
#include "kernels/device/device.hpp"

namespace nibble::kernels {
using namespace device;

/// A place in a ring of stages, and the parity of the mbarriers that say that a stage was filled or emptied.
template <u32 Stages> struct FourBitMatmulRing {
  u32 stage = 0, parity = 0;
  /// By at most as many stages as there are.
  NIBBLE_DEVICE void advance(u32 by = 1) {
    stage += by;
    if (stage < Stages) return;
    stage -= Stages;
    parity ^= 1;
  }
};

}  // namespace nibble::kernels
