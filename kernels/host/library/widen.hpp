// 16-bit values as fp32, which can hold them exactly.
#pragma once
#include "kernels/device/types.hpp"

namespace nibble::kernels {

/// out[i] = in[i] for i < n.
void widen(const device::bf16* in, device::u64 n, float* out, device::StreamRef stream);
void widen(const device::f16* in, device::u64 n, float* out, device::StreamRef stream);

}  // namespace nibble::kernels
