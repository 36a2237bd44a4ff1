// Bytes that the four lanes of a quad exchange: each has a word, and then one byte of each word.
#pragma once
#include "kernels/device/device.hpp"

namespace nibble::kernels {
using namespace device;

/// Transposes two 4 x 4 matrices of bytes at once, whose rows are the words of the four lanes.
struct QuadTranspose {
  // What prmt selects in the two exchanges: of both words, what a lane sends, and what it keeps of each.
  u32 sent[2], kept[2][2];

  [[nodiscard]] NIBBLE_DEVICE static u32 same(u32 value) { return value; }

  /// Lane q of a quad. Each number is what `kept` returns for it: a function may keep it in a register.
  template <auto kept = same> [[nodiscard]] NIBBLE_DEVICE static QuadTranspose of_lane(u32 q) {
    return {{kept(q >= 2 ? 0x5410U : 0x7632U), kept(q % 2 != 0 ? 0x6420U : 0x7531U)},
            {{kept(q >= 2 ? 0x3254U : 0x5410U), kept(q >= 2 ? 0x3276U : 0x7610U)},
             {kept(q % 2 != 0 ? 0x3514U : 0x5240U), kept(q % 2 != 0 ? 0x3716U : 0x7260U)}}};
  }

  /// To byte q of the words .x of lanes 0, 1, 2 and 3, and of the words .y. All lanes of a warp call it.
  [[nodiscard]] NIBBLE_DEVICE u32x2 operator()(u32x2 words) const {
    // Lanes q and q ^ 2 exchange halves of words, then q and q ^ 1 bytes; for both words at once.
    const u32 halves = shfl_xor(~0u, prmt(words.x, words.y, sent[0]), 2);
    const u32 x = prmt(words.x, halves, kept[0][0]), y = prmt(words.y, halves, kept[0][1]);
    const u32 bytes = shfl_xor(~0u, prmt(x, y, sent[1]), 1);
    return {prmt(x, bytes, kept[1][0]), prmt(y, bytes, kept[1][1])};
  }
};

}  // namespace nibble::kernels
