#pragma once

#include <array>
#include <cstdint>

#include "quant/simd/avx512.hpp"

#ifdef NIBBLE_AVX512_VBMI

namespace nibble {

/// 16 numbers of 16 bits, whose two bytes are looked up apart and then put together. Processors of Intel take one step
/// to look up bytes, and two to look up words.
class Int16Table16 {
 public:
  struct Vectors {
    __m512i lower, upper;  ///< the numbers of the lower and of the upper eight bytes of every 16 of an index
  };

  /// Of the lower and upper bytes of the numbers.
  NIBBLE_AVX512_VBMI Int16Table16(const std::array<std::uint8_t, 16>& lower, const std::array<std::uint8_t, 16>& upper)
      : lower_(repeated(lower)), upper_(repeated(upper)) {}

  /// By the lower four bits of each byte of the index; the others do not matter.
  NIBBLE_AVX512_VBMI Vectors operator[](__m512i index) const {
    const __m512i lower = _mm512_permutexvar_epi8(index, lower_), upper = _mm512_permutexvar_epi8(index, upper_);
    return {_mm512_unpacklo_epi8(lower, upper), _mm512_unpackhi_epi8(lower, upper)};
  }

 private:
  // The instruction uses six bits of an index, so the table has the 16 bytes four times.
  NIBBLE_AVX512_VBMI static __m512i repeated(const std::array<std::uint8_t, 16>& bytes) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes.data())));
  }

  __m512i lower_, upper_;
};

}  // namespace nibble

#endif
