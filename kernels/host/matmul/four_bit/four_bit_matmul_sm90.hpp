// Launches the product for many rows of x where there is code with wgmma.
#pragma once
#include "kernels/device/types.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_arguments.hpp"
#include "kernels/host/matmul/matmul_memory.hpp"

namespace nibble::kernels {

/// For arguments with fits_sm90. Half is bf16 or f16. False: the current device has no code for sm_90a, and nothing was
/// launched.
template <class Half>
bool run_sm90(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, device::StreamRef stream);

}  // namespace nibble::kernels
