// Sums of rows of codes times numbers of x in bf16, for processors with AVX512_VNNI and AVX512_VBMI that take one step
// to look up bytes, and two to look up words.
#include <bit>
#include <cassert>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/codes/int16_factors.hpp"
#include "quant/simd/avx512.hpp"
#include "quant/simd/int16_table16.hpp"
#include "quant/simd/prefetch.hpp"

#ifdef NIBBLE_AVX512_VBMI

namespace nibble::matmul::added_in_vbmi {
namespace {

#define NIBBLE_CODES_TARGET NIBBLE_AVX512_VBMI
#include "quant/matmul/codes/add_codes_vnni-inl.hpp"

// Codes of two rows are interleaved byte by byte, and then the two bytes of their values.
class PairValues {
 public:
  NIBBLE_CODES_TARGET explicit PairValues(const Int16Codebook& codebook) : table_(codebook.lower, codebook.upper) {}

  NIBBLE_CODES_TARGET static TwoVectors interleaved(__m512i first, __m512i second) {
    return {{_mm512_unpacklo_epi8(first, second), _mm512_unpackhi_epi8(first, second)}};
  }

  NIBBLE_CODES_TARGET FourVectors of(__m512i codes) const {
    const auto even = table_[_mm512_srli_epi16(codes, 4)], odd = table_[codes];
    return {{even.lower, even.upper, odd.lower, odd.upper}};
  }

  NIBBLE_CODES_TARGET static FourVectors in_order(const FourVectors& sums) { return sums; }

 private:
  Int16Table16 table_;
};

#undef NIBBLE_CODES_TARGET

}  // namespace
}  // namespace nibble::matmul::added_in_vbmi

namespace nibble::matmul {

AddIntegers add_code_rows_vbmi() {
  return has_avx512_vbmi() ? added_in_vbmi::add_integers<added_in_vbmi::PairValues> : nullptr;
}

}  // namespace nibble::matmul

#else

namespace nibble::matmul {

AddIntegers add_code_rows_vbmi() { return nullptr; }

}  // namespace nibble::matmul

#endif
