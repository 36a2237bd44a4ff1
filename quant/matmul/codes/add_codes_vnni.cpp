// Sums of rows of codes times numbers of x in bf16, for processors with AVX512_VNNI that look up words in one step.
#include <bit>
#include <cassert>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/codes/int16_factors.hpp"
#include "quant/simd/avx512.hpp"
#include "quant/simd/prefetch.hpp"

#ifdef NIBBLE_AVX512_VNNI

namespace nibble::matmul::added_in_vnni {
namespace {

#define NIBBLE_CODES_TARGET NIBBLE_AVX512_VNNI
#include "quant/matmul/codes/add_codes_vnni-inl.hpp"

// Codes of two rows are interleaved four at a time, in 16 bits. Shifted right by 0, 4, 8 and 12 bits, they are the
// index of each in a table of 32 that holds the 16 values twice. So a vector of values, or of sums, has every fourth
// column.
class PairValues {
 public:
  NIBBLE_CODES_TARGET explicit PairValues(const Int16Codebook& codebook)
      : values_(_mm512_load_si512(codebook.repeated.data())) {}

  NIBBLE_CODES_TARGET static TwoVectors interleaved(__m512i first, __m512i second) {
    return {{_mm512_unpacklo_epi16(first, second), _mm512_unpackhi_epi16(first, second)}};
  }

  // Of columns 4 i + 1, 4 i, 4 i + 3 and 4 i + 2: the first code of a byte is in its upper bits.
  NIBBLE_CODES_TARGET FourVectors of(__m512i codes) const {
    return {{_mm512_permutexvar_epi16(codes, values_), _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), values_),
             _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), values_),
             _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), values_)}};
  }

  NIBBLE_CODES_TARGET static FourVectors in_order(const FourVectors& sums) {
    return {{_mm512_unpacklo_epi32(sums.v[1], sums.v[3]), _mm512_unpackhi_epi32(sums.v[1], sums.v[3]),
             _mm512_unpacklo_epi32(sums.v[0], sums.v[2]), _mm512_unpackhi_epi32(sums.v[0], sums.v[2])}};
  }

 private:
  __m512i values_;
};

#undef NIBBLE_CODES_TARGET

}  // namespace
}  // namespace nibble::matmul::added_in_vnni

namespace nibble::matmul {

AddIntegers add_code_rows_vnni() {
  return has_avx512_vnni() ? added_in_vnni::add_integers<added_in_vnni::PairValues> : nullptr;
}

}  // namespace nibble::matmul

#else

namespace nibble::matmul {

AddIntegers add_code_rows_vnni() { return nullptr; }

}  // namespace nibble::matmul

#endif
