// Arithmetic in the roundings of the device. Compiled with -ffp-contract=off: one operation, one rounding.
#pragma once
#include <bit>
#include <cmath>

#include "kernels/device/types.hpp"

namespace nibble::device {

inline float fma_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline float mul_rn(float a, float b) { return a * b; }
inline float add_rn(float a, float b) { return a + b; }
inline float sub_rn(float a, float b) { return a - b; }
inline float div_rn(float a, float b) { return a / b; }
inline float rcp_rn(float a) { return 1.0f / a; }
/// The larger, and +0 is larger than -0; NaN if either is NaN.
inline float max_nan(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::bit_cast<float>(0x7fffffffu);
  if (a == 0 && b == 0) return std::signbit(a) ? b : a;
  return a < b ? b : a;
}
inline double fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline double mul_rn(double a, double b) { return a * b; }
inline double add_rn(double a, double b) { return a + b; }
inline double sub_rn(double a, double b) { return a - b; }
inline double div_rn(double a, double b) { return a / b; }

inline u32 bits_of(float value) { return std::bit_cast<u32>(value); }
inline float float_of(u32 bits) { return std::bit_cast<float>(bits); }

/// To the nearest bf16, ties to even; every NaN becomes 0x7fff, as cvt.rn.bf16.f32 does it.
inline bf16 to_bf16(float value) {
  const u32 bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return {0x7fff};
  return {static_cast<u16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
inline float to_float(bf16 value) { return float_of(u32{value.bits} << 16); }

/// To the nearest fp16, ties to even; every NaN becomes 0x7fff.
inline f16 to_f16(float value) {
  const u32 bits = bits_of(value), magnitude = bits & 0x7fffffff;
  const u32 sign = bits >> 16 & 0x8000;
  if (magnitude > 0x7f800000) return {0x7fff};
  if (magnitude >= 0x477ff000) return {static_cast<u16>(sign | 0x7c00)};  // 65520 and more round to infinity
  if (magnitude < 0x38800000) {
    // Subnormal: added to 0.5, whose last bit is worth as much as fp16's smallest value, it is rounded by the sum.
    const float sum = float_of(magnitude) + 0.5f;
    return {static_cast<u16>(sign | (bits_of(sum) - bits_of(0.5f)))};
  }
  const u32 rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return {static_cast<u16>(sign | ((rounded - 0x38000000) >> 13))};
}
inline float to_float(f16 value) {
  const u32 sign = u32{value.bits} & 0x8000u, exponent = value.bits >> 10 & 31u, fraction = value.bits & 0x3ffu;
  if (exponent == 0) return float_of(bits_of(static_cast<float>(fraction) * 0x1p-24f) | sign << 16);
  if (exponent == 31) return float_of(sign << 16 | 0x7f800000 | fraction << 13);
  return float_of(sign << 16 | (exponent + 112) << 23 | fraction << 13);
}

/// Two values in one register, the first in the low half.
inline u32 pack_bf16(float low, float high) { return to_bf16(low).bits | u32{to_bf16(high).bits} << 16; }
inline u32 pack_f16(float low, float high) { return to_f16(low).bits | u32{to_f16(high).bits} << 16; }

/// a - b of two pairs, rounded once: fp32 has more than twice the digits of both types, so that rounding its difference
/// gives what rounding the exact one would.
inline u32 sub_bf16x2(u32 a, u32 b) {
  const auto value = [](u32 bits) { return to_float(bf16{static_cast<u16>(bits)}); };
  return pack_bf16(value(a) - value(b), value(a >> 16) - value(b >> 16));
}
inline u32 sub_f16x2(u32 a, u32 b) {
  const auto value = [](u32 bits) { return to_float(f16{static_cast<u16>(bits)}); };
  return pack_f16(value(a) - value(b), value(a >> 16) - value(b >> 16));
}

/// The same value, of which a compiler for GPUs knows nothing.
inline u32 opaque(u32 value) { return value; }

/// Picks 4 of the 8 bytes b:a; bit 3 of a nibble of the selector spreads the sign of its byte instead.
inline u32 prmt(u32 a, u32 b, u32 selector) {
  const u64 bytes = u64{b} << 32 | a;
  u32 result = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 nibble = selector >> 4 * i & 15;
    u32 byte = static_cast<u32>(bytes >> 8 * (nibble & 7)) & 0xff;
    if ((nibble & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}
/// Any function of three bits, for all 32 at once; Table is its value for a = 0xf0, b = 0xcc, c = 0xaa.
template <u32 Table> u32 lop3(u32 a, u32 b, u32 c) {
  u32 result = 0;
  for (u32 i = 0; i < 8; ++i)
    if ((Table >> i & 1) != 0) result |= ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
  return result;
}

}  // namespace nibble::device
