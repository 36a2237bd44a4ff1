// All of x stays in shared memory.
#include "bench/kernels/tune/kernels/kernels.hpp"

void nibble::bench::add_kept_x_kernels(TunedKernels& to) { add_kernels<kernels::XBarrier::group, true, true>(to); }
