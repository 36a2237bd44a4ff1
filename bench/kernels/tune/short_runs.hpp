// The kernels of bench_tune for weights that are made of runs shorter than 64
// (kernels/matmul/four_bit/four_bit_matmul_run.hpp).
#pragma once
#include "bench/kernels/tune/tune.hpp"

namespace nibble::bench {

/// Add what kernels/short_run_kernels.hpp compiles; one function a source file.
void add_kernels_of_run32(TunedKernels& to);
void add_kernels_of_run16(TunedKernels& to);
void add_kernels_of_run8(TunedKernels& to);

}  // namespace nibble::bench
