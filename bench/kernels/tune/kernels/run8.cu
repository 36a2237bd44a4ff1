// Runs of 8 weights share an absmax.
#include "bench/kernels/tune/kernels/short_run_kernels.hpp"

void nibble::bench::add_kernels_of_run8(TunedKernels& to) { add_short_run_kernels<8>(to); }
