// Weights in runs of 16 bytes, one access, and as fp32.
#pragma once
#include <limits>

#include "kernels/device/device.hpp"

namespace nibble::kernels {
using namespace device;

inline constexpr float infinity = std::numeric_limits<float>::infinity();

template <class T> inline constexpr u32 weights_per_run = 16 / sizeof(T);

/// The weights of a run; the type of the last argument is theirs.
NIBBLE_DEVICE void widen_run(u32x4 bits, float (&w)[4], float) {
  w[0] = float_of(bits.x), w[1] = float_of(bits.y), w[2] = float_of(bits.z), w[3] = float_of(bits.w);
}
NIBBLE_DEVICE void widen_run(u32x4 bits, float (&w)[8], bf16) {
  const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
  NIBBLE_UNROLL for (u32 i = 0; i < 4; ++i) {
    w[2 * i] = float_of(words[i] << 16);
    w[2 * i + 1] = float_of(words[i] & 0xffff0000u);
  }
}
NIBBLE_DEVICE void widen_run(u32x4 bits, float (&w)[8], f16) {
  const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
  NIBBLE_UNROLL for (u32 i = 0; i < 4; ++i) {
    w[2 * i] = to_float(f16{static_cast<u16>(words[i])});
    w[2 * i + 1] = to_float(f16{static_cast<u16>(words[i] >> 16)});
  }
}
/// One weight, and its bits.
NIBBLE_DEVICE float widen(float value) { return value; }
NIBBLE_DEVICE float widen(bf16 value) { return to_float(value); }
NIBBLE_DEVICE float widen(f16 value) { return to_float(value); }
NIBBLE_DEVICE u32 bits_of_weight(float value) { return bits_of(value); }
NIBBLE_DEVICE u32 bits_of_weight(bf16 value) { return value.bits; }
NIBBLE_DEVICE u32 bits_of_weight(f16 value) { return value.bits; }

}  // namespace nibble::kernels
