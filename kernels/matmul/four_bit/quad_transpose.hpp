// Bytes that the four lanes of a quad exchange: each has a word, and then one byte of each word.
#pragma once
#include "kernels/device/device.hpp"

namespace nibble::kernels {
using namespace device;

/// Transposes two 4 x 4 matrices of bytes at once, whose rows are the words of the four lanes.
struct QuadTranspose {
  // Selectors of prmt for the two exchanges: what of its two words a lane sends, and how it merges each word with what
  // it receives.
  u32 send[2], merge[2][2];

  /// For lane q of a quad.
  [[nodiscard]] NIBBLE_DEVICE static QuadTranspose of_lane(u32 q) {
    const bool upper = q >= 2, odd = q % 2 != 0;
    return {
        {upper ? 0x5410U : 0x7632U, odd ? 0x6420U : 0x7531U},
        {{upper ? 0x3254U : 0x5410U, upper ? 0x3276U : 0x7610U}, {odd ? 0x3514U : 0x5240U, odd ? 0x3716U : 0x7260U}}};
  }

  /// To byte q of the words .x of lanes 0, 1, 2 and 3, and of the words .y. All lanes of a warp call it.
  [[nodiscard]] NIBBLE_DEVICE u32x2 operator()(u32x2 words) const {
    // Lanes q and q ^ 2 exchange halves of words, then q and q ^ 1 bytes; for both words at once.
    const u32 halves = shfl_xor(~0u, prmt(words.x, words.y, send[0]), 2);
    const u32 x = prmt(words.x, halves, merge[0][0]), y = prmt(words.y, halves, merge[0][1]);
    const u32 bytes = shfl_xor(~0u, prmt(x, y, send[1]), 1);
    return {prmt(x, bytes, merge[1][0]), prmt(y, bytes, merge[1][1])};
  }
};

}  // namespace nibble::kernels
