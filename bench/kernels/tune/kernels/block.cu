// The next step's codes are loaded before the barrier of a block.
#include "bench/kernels/tune/kernels/kernels.hpp"

void nibble::bench::add_block_kernels(TunedKernels& to) { add_kernels<kernels::XBarrier::block, true, false>(to); }
