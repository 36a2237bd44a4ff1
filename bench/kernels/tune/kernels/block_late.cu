// The next step's codes are loaded after the barrier of a block.
#include "bench/kernels/tune/kernels/kernels.hpp"

void nibble::bench::add_block_late_kernels(TunedKernels& to) {
  add_kernels<kernels::XBarrier::block, false, false>(to);
}
