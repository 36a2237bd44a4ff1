// Launches the kernel for few rows of x where there is code for sm_90a.
#pragma once
#include "kernels/device/types.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_arguments.hpp"
#include "kernels/host/matmul/matmul_memory.hpp"

namespace nibble::kernels {

/// For arguments with fits_few_rows. Half is bf16 or f16. False: the current device has no code for sm_90a, or no room
/// for a cluster, and nothing was launched.
template <class Half>
bool run_few_rows(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, device::StreamRef stream);

}  // namespace nibble::kernels
