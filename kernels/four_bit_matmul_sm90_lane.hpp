// Which weights a lane of FourBitMatmulSm90 has, and how it gets them.
//
// Of each four bytes of codes, which are 8 of k, lane q of a quad needs byte q: in a fragment of wgmma it has the
// weights 2q and 2q + 1 of each 8. TMA copies x as it is, so its k cannot be renumbered as in four_bit_matmul.hpp.
// Instead each lane loads two words of four bytes, and the quad transposes them.
#pragma once
#include "kernels/device/device.hpp"

namespace nibble::kernels {
using namespace device;

/// A thread of the warpgroups that multiply.
class FourBitMatmulSm90Lane {
 public:
  u32 id = lane_id(), g = lane_id() / 4, q = lane_id() % 4;

  /// Its first row of the block's 128 of n; the second is 8 more. Rows of a fragment are in another order than n: the
  /// codes of 0, 2, 4 and 6, which half a warp loads at once, are in different banks of a swizzled tile.
  [[nodiscard]] NIBBLE_DEVICE u32 row() const { return 16 * warp_id() + row_in_8(); }

  /// Where its two words of group i of a step are in a tile of codes, 128 bytes a row; `half` 1 is the second row.
  [[nodiscard]] NIBBLE_DEVICE u32 code_at(u32 i, u32 half) const { return (first_code_ ^ 32 * i) + 1024 * half; }

  /// From words 2q and 2q + 1 of a row's group to byte q of words 0, 2, 4 and 6, and of 1, 3, 5 and 7.
  [[nodiscard]] NIBBLE_DEVICE u32x2 transposed(u32x2 words) const {
    // Lanes q and q ^ 2 exchange halves of words, then q and q ^ 1 bytes; for both words at once.
    const u32 halves = shfl_xor(~0u, prmt(words.x, words.y, sent_[0]), 2);
    const u32 x = prmt(words.x, halves, kept_[0][0]), y = prmt(words.y, halves, kept_[0][1]);
    const u32 bytes = shfl_xor(~0u, prmt(x, y, sent_[1]), 1);
    return {prmt(x, bytes, kept_[1][0]), prmt(y, bytes, kept_[1][1])};
  }

 private:
  [[nodiscard]] NIBBLE_DEVICE u32 row_in_8() const { return 2 * (g % 4) + g / 4; }

  // A value that passes through a shuffle stays in its register: without that, the compiler computes it for each group
  // again.
  [[nodiscard]] NIBBLE_DEVICE static u32 kept(u32 value) { return shfl_idx(~0u, value, lane_id()); }

  u32 first_code_ = kept(128 * row() + (16 * (q / 2) ^ 16 * row_in_8()) + 8 * (q % 2));
  // What prmt selects in the two exchanges: of words 2q and 2q + 1, what it sends, and what it keeps of each.
  u32 sent_[2] = {kept(q >= 2 ? 0x5410 : 0x7632), kept(q % 2 != 0 ? 0x6420 : 0x7531)};
  u32 kept_[2][2] = {{kept(q >= 2 ? 0x3254 : 0x5410), kept(q >= 2 ? 0x3276 : 0x7610)},
                     {kept(q % 2 != 0 ? 0x3514 : 0x5240), kept(q % 2 != 0 ? 0x3716 : 0x7260)}};
};

}  // namespace nibble::kernels
