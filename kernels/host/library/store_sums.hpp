// The bias and an old y of 16 bits, added to sums of fp32.
#pragma once
#include "kernels/device/types.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels {

/// y [m, n] = sums [m, n] + bias [n] + y, rounded once to y's type, F16 or BF16, which is also that of the bias. The
/// sums have no gaps.
void store_sums(const float* sums, const void* bias, const nibble_matrix& y, device::StreamRef stream);

}  // namespace nibble::kernels
