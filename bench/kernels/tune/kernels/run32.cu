// Runs of 32 weights share an absmax.
#include "bench/kernels/tune/kernels/short_run_kernels.hpp"

void nibble::bench::add_kernels_of_run32(TunedKernels& to) { add_short_run_kernels<32>(to); }
