// A 4-bit weight as kernels read it, and the only code that decodes its absmax: fp32, or nested (double
// quantization),
//
//   absmax[i] = nested_codebook[codes[i]] * nested_absmax[i / 256] + nested_offset
//
// with two roundings and no fma, as the codec of the CPU (nibble/nested.hpp): the bits are the same.
#pragma once
#include "kernels/device/device.hpp"
#include "nibble/nested.hpp"

namespace nibble::kernels {
using namespace device;

/// The absmax of all blocks. A block's index may have any integer type. A kernel that loads ahead, or has the nested
/// codebook in shared memory, takes the steps of nested_of() apart: code_of(), nested_absmax_of(), decoded().
struct FourBitAbsmax {
  Global<const float> absmax;  // null if nested
  Global<const u8> codes;
  Global<const float> nested_absmax, nested_codebook, nested_offset;

  [[nodiscard]] NIBBLE_DEVICE bool is_nested() const { return absmax.is_null(); }

  /// The absmax of block i if it is not nested.
  template <class Index> [[nodiscard]] NIBBLE_DEVICE float plain_of(Index i) const { return ldg(absmax + i); }
  template <class Index> [[nodiscard]] NIBBLE_DEVICE u8 code_of(Index i) const { return ldg(codes + i); }
  template <class Index> [[nodiscard]] NIBBLE_DEVICE float nested_absmax_of(Index i) const {
    static_assert(nested::blocksize == 1 << 8);
    return ldg(nested_absmax + (i >> 8));
  }
  [[nodiscard]] NIBBLE_DEVICE static float decoded(float value, float nested_absmax, float offset) {
    return add_rn(mul_rn(value, nested_absmax), offset);
  }

  /// The absmax of block i if it is nested; `offset` is *nested_offset.
  template <class Index> [[nodiscard]] NIBBLE_DEVICE float nested_of(Index i, float offset) const {
    const u8 code = code_of(i);
    const float nested = nested_absmax_of(i);
    return decoded(ldg(nested_codebook + code), nested, offset);
  }
};

/// A 4-bit weight as the product's kernels read it. Weight [i][j] is element first + i * stride + j of the codes.
struct FourBitOperand {
  Global<const u8> packed;
  FourBitAbsmax absmax;
  i64 n, k;  // output features, input features
  i64 first, stride;
  u32 log2_blocksize;
  float value[16];  // the codebook
};

}  // namespace nibble::kernels
