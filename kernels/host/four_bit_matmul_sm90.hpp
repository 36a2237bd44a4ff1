// Launches the product for many rows of x on devices that have wgmma.
#pragma once
#include "kernels/device/types.hpp"
#include "kernels/host/four_bit_matmul_arguments.hpp"
#include "kernels/host/matmul_memory.hpp"

namespace nibble::kernels {

/// Whether the current device runs code for sm_90a.
bool has_sm90();

/// For arguments with fits_sm90, where has_sm90(). Half is bf16 or f16.
template <class Half>
void run_sm90(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, device::StreamRef stream);

}  // namespace nibble::kernels
