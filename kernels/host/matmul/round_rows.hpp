// An x of fp32 rounded to the type that a product multiplies.
#pragma once
#include "kernels/device/types.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels {

/// out [m, k], without gaps, from an x of F32.
void round_rows(const nibble_matrix& x, device::bf16* out, device::StreamRef stream);
void round_rows(const nibble_matrix& x, device::f16* out, device::StreamRef stream);

}  // namespace nibble::kernels
