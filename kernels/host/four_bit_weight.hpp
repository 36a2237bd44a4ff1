// From a 4-bit weight of the C interface to what kernels take.
#pragma once
#include <algorithm>
#include <bit>

#include "kernels/four_bit_weight.hpp"
#include "nibble/fp4.hpp"
#include "nibble/kernels.h"
#include "nibble/nf4.hpp"

namespace nibble::kernels {

inline FourBitAbsmax absmax_of(const nibble_four_bit& weight) {
  return {.absmax = weight.absmax,
          .codes = weight.absmax_codes,
          .nested_absmax = weight.nested_absmax,
          .nested_codebook = weight.nested_codebook,
          .nested_offset = weight.nested_offset};
}

/// Blocksizes are powers of two.
inline u32 log2_of(u32 blocksize) { return static_cast<u32>(std::countr_zero(blocksize)); }

inline void copy_codebook(nibble_codebook codebook, float (&to)[16]) {
  std::copy_n(codebook == NIBBLE_NF4 ? nf4::codebook.value : fp4::codebook.value, 16, to);
}

inline FourBitOperand operand_of(const nibble_four_bit& weight) {
  FourBitOperand operand{.packed = weight.packed,
                         .absmax = absmax_of(weight),
                         .n = static_cast<i64>(weight.rows),
                         .k = static_cast<i64>(weight.columns),
                         .first = static_cast<i64>(weight.first),
                         .stride = static_cast<i64>(weight.stride),
                         .log2_blocksize = log2_of(weight.blocksize),
                         .value = {}};
  copy_codebook(weight.codebook, operand.value);
  return operand;
}

}  // namespace nibble::kernels
