// The next step's codes are loaded before the barrier of an input group.
#include "bench/kernels/tune/kernels/kernels.hpp"

void nibble::bench::add_group_kernels(TunedKernels& to) { add_kernels<kernels::XBarrier::group, true, false>(to); }
