// Which weights a lane of FourBitMatmulSm90 has, and how it gets them.
//
// Of each four bytes of codes, which are 8 of k, lane q of a quad needs byte q: in a fragment of wgmma it has the
// weights 2q and 2q + 1 of each 8. TMA copies x as it is, so its k cannot be renumbered as in four_bit_matmul.hpp.
// Instead each lane loads two words of four bytes, and the quad transposes them.
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/matmul/four_bit/quad_transpose.hpp"

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
  [[nodiscard]] NIBBLE_DEVICE u32x2 transposed(u32x2 words) const { return transpose_(words); }

 private:
  [[nodiscard]] NIBBLE_DEVICE u32 row_in_8() const { return 2 * (g % 4) + g / 4; }

  // A value that passes through a shuffle stays in its register: without that, the compiler computes it for each group
  // again.
  [[nodiscard]] NIBBLE_DEVICE static u32 in_register(u32 value) { return shfl_idx(~0u, value, lane_id()); }

  u32 first_code_ = in_register(128 * row() + (16 * (q / 2) ^ 16 * row_in_8()) + 8 * (q % 2));
  QuadTranspose transpose_ = QuadTranspose::of_lane<in_register>(q);
};

}  // namespace nibble::kernels
