// absmax of a step, which a warp decodes to shared memory for the warps that multiply.
#pragma once
#include "kernels/device/device.hpp"
#include "kernels/four_bit_weight.hpp"

namespace nibble::kernels {
using namespace device;

/// Of `rows` rows of a weight, StepGroups groups of 64 each: a lane has LaneAbsmax of them, and neighbouring lanes
/// those of neighbouring groups. They are loaded before there is room for them, and decoded to floats when there is.
template <bool Nested, u32 StepGroups, u32 LaneAbsmax> struct FourBitMatmulAbsmax {
  static constexpr u32 rows_at_once = 32 / StepGroups, rows = rows_at_once * LaneAbsmax;
  // In shared memory: what lanes read at a time is in different banks.
  static constexpr u32 row_stride = StepGroups + 1;

  u32 code[LaneAbsmax];
  float value[LaneAbsmax];  // absmax or nested_absmax

  /// Of rows from `row` on, and of the step's groups, of which `first_group` is the first and the weight has `groups`.
  /// Past the end of n and k, those of the last row and group: their sums are not stored, and their products not added.
  NIBBLE_DEVICE void load(const FourBitOperand& weight, u32 row, u32 first_group, u32 groups) {
    const u32 group = lane_id() % StepGroups, in_step = group < groups ? group : groups - 1;
    const u32 first = static_cast<u32>(weight.first / 64) + first_group + in_step;
    const u32 last_row = static_cast<u32>(weight.n) - 1, row_groups = static_cast<u32>(weight.stride / 64);
    const u32 shift = weight.log2_blocksize - 6;
    row += lane_id() / StepGroups;
    NIBBLE_UNROLL for (u32 i = 0; i < LaneAbsmax; ++i) {
      const u32 block = (first + (row < last_row ? row : last_row) * row_groups) >> shift;
      row += rows_at_once;
      if constexpr (Nested) {
        code[i] = weight.absmax.code_of(block);
        value[i] = weight.absmax.nested_absmax_of(block);
      } else {
        value[i] = weight.absmax.plain_of(block);
      }
    }
  }

  /// To `tile`, which has BlockN rows, from `row` on. `nested` is the codebook of nested absmax.
  template <u32 BlockN>
  NIBBLE_DEVICE void store(Shared<float> tile, u32 row, Shared<float> nested, float nested_offset) const {
    row += lane_id() / StepGroups;
    const Shared<float> to = tile + (row * row_stride + lane_id() % StepGroups);
    NIBBLE_UNROLL for (u32 i = 0; i < LaneAbsmax; ++i) {
      float scale = value[i];
      if constexpr (Nested) scale = FourBitAbsmax::decoded(lds(nested + code[i]), scale, nested_offset);
      if (BlockN % rows == 0 || row + rows_at_once * i < BlockN) sts(to + row_stride * rows_at_once * i, scale);
    }
  }
};

}  // namespace nibble::kernels
