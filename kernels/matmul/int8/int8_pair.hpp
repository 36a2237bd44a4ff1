// Two int8 codes turned into two 16-bit floats: one register of an operand of mma.sync.
//
// bf16 and fp16 hold every integer from -128 to 127 exactly. There is no conversion of packed integers, so the code's
// bits are put under an exponent for which the last bit is worth 1, and a subtraction takes away what that adds. Its
// result is one of these integers, so nothing is rounded.
//
//   fp16  0x6400 | u is 1024 + u for u < 1024. With u = code + 128: (0x6400 | u) - 1152.      1.25 instructions a code
//   bf16  0x4300 | u is 128 + u for u < 128 only. So the sign bit is taken away separately:
//         (0x4300 | low 7 bits) - (0x4300 | sign bit), whose second value is 128 or 256.      2 instructions a code
#pragma once
#include <type_traits>

#include "kernels/device/device.hpp"

namespace nibble::kernels {
using namespace device;

/// Codes 2 * Pair (in the low half) and 2 * Pair + 1 of the four in `word`.
template <class Half, u32 Pair> NIBBLE_DEVICE u32 int8_pair(u32 word) {
  constexpr u32 selector = Pair == 0 ? 0x4140 : 0x4342;  // a code's byte, and over it one of the other operand
  if constexpr (std::is_same_v<Half, bf16>) {
    const u32 pair = prmt(word, 0x43434343, selector);
    return sub_bf16x2(pair & 0xff7fff7f, pair & 0xff80ff80);
  } else {
    return sub_f16x2(prmt(word ^ 0x80808080, 0x64646464, selector), 0x64806480);
  }
}

}  // namespace nibble::kernels
