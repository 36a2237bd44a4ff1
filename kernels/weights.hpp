// Weights that are stored: rounded to the type of the result, 16 bytes at a time.
#pragma once
#include "kernels/device/device.hpp"

namespace nibble::kernels {

using namespace device;

/// Values of type T in 16 bytes, the most that one thread stores at once.
template <class T> inline constexpr u32 in_vector = 16 / sizeof(T);

/// To the nearest, ties to even.
template <class T> NIBBLE_DEVICE T rounded(float value) {
  if constexpr (std::is_same_v<T, bf16>)
    return to_bf16(value);
  else if constexpr (std::is_same_v<T, f16>)
    return to_f16(value);
  else
    return value;
}
template <class T> NIBBLE_DEVICE u32 rounded_pair(float low, float high) {
  if constexpr (std::is_same_v<T, bf16>)
    return pack_bf16(low, high);
  else
    return pack_f16(low, high);
}

/// Stores one weight, or in_vector<T> at an address that is a multiple of 16. The next kernel will read them: they
/// stay in the caches as long as there is room.
template <class T> NIBBLE_DEVICE void store(Global<T> to, const float (&w)[1]) { st(to, rounded<T>(w[0])); }
template <class T> NIBBLE_DEVICE void store(Global<T> to, const float (&w)[in_vector<T>]) {
  const Global<u32x4> vector = to.template as<u32x4>();
  if constexpr (sizeof(T) == 4)
    st(vector, u32x4{bits_of(w[0]), bits_of(w[1]), bits_of(w[2]), bits_of(w[3])});
  else
    st(vector, u32x4{rounded_pair<T>(w[0], w[1]), rounded_pair<T>(w[2], w[3]), rounded_pair<T>(w[4], w[5]),
                     rounded_pair<T>(w[6], w[7])});
}

/// Bytes as a number, the first the lowest.
template <u32 Bytes>
using Number =
    std::conditional_t<Bytes == 8, u64, std::conditional_t<Bytes == 4, u32, std::conditional_t<Bytes == 2, u16, u8>>>;

/// The bytes from p on, whatever its alignment is.
template <u32 Bytes> NIBBLE_DEVICE Number<Bytes> load_bytes(Global<const u8> p) {
  static_assert(sizeof(Number<Bytes>) == Bytes);
  Number<Bytes> number = 0;
  NIBBLE_UNROLL for (u32 i = 0; i < Bytes; ++i) {
    number = static_cast<Number<Bytes>>(number | Number<Bytes>{ldg(p + i)} << 8 * i);
  }
  return number;
}

}  // namespace nibble::kernels
