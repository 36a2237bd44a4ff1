// Sums of rows of codes times numbers of x in bf16, in integers of 16 bits, for processors with AVX512_VNNI and
// AVX512_VBMI.
//
// One instruction multiplies the values of two rows and 16 columns by their Int16Factors, and adds both products to
// their sums.
#include <bit>
#include <cassert>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/codes/int16_factors.hpp"
#include "quant/simd/avx512.hpp"
#include "quant/simd/int16_table16.hpp"

#ifdef NIBBLE_AVX512_VBMI

namespace nibble::matmul::added_codes {
namespace {

constexpr std::size_t lanes = 16, columns = 128;

// Codes of two rows are interleaved byte by byte, and then the two bytes of their values, so that a word has the values
// of both rows for one column. Interleaving works within 128 bits. So the words of a row's codes are transposed first:
// even[i] then has the even ones of columns 32 i to 32 i + 31, and odd[i] the odd ones.
NIBBLE_AVX512_VBMI void add(const CodeRows& weights, const Int16Factors& factors, float* __restrict sums) {
  const Int16Table16 table(weights.tables.int16_codebook.lower, weights.tables.int16_codebook.upper);
  const int log2_blocksize = std::countr_zero(weights.blocksize);
  for (std::size_t column = 0; column < weights.n; column += columns, sums += columns) {
    const std::size_t blocks[2] = {column >> log2_blocksize, (column + columns / 2) >> log2_blocksize};
    __m512i even[4], odd[4];
    for (std::size_t i = 0; i < 4; ++i) even[i] = odd[i] = _mm512_setzero_si512();
    const std::uint8_t* from = weights.packed + column / 2;
    for (const auto& of_pair : factors.of_pair) {
      const auto next_row = [&]() NIBBLE_AVX512_VBMI {
        _mm_prefetch(reinterpret_cast<const char*>(from) + weights.ahead, _MM_HINT_T1);
        const __m512i codes = transposed_words(_mm512_loadu_si512(from));
        from += weights.packed_stride;
        return codes;
      };
      const __m512i first = next_row(), second = next_row();
      const __m512i of_half[2] = {_mm512_unpacklo_epi8(first, second), _mm512_unpackhi_epi8(first, second)};
      for (std::size_t half = 0; half < 2; ++half) {
        const __m512i x = _mm512_set1_epi32(static_cast<int>(of_pair[blocks[half]]));
        const auto multiply = [&](__m512i codes, __m512i* to) NIBBLE_AVX512_VBMI {
          const auto [of_lower, of_upper] = table[codes];
          to[2 * half] = _mm512_dpwssd_epi32(to[2 * half], of_lower, x);
          to[2 * half + 1] = _mm512_dpwssd_epi32(to[2 * half + 1], of_upper, x);
        };
        multiply(_mm512_srli_epi16(of_half[half], 4), even);
        multiply(of_half[half], odd);
      }
    }
    for (std::size_t i = 0; i < 4; ++i) {
      const __m512 unit = _mm512_set1_ps(factors.unit[blocks[i / 2]]);
      float* const to = sums + 2 * lanes * i;
      _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(even[i]), unit, _mm512_load_ps(to)));
      _mm512_store_ps(to + lanes, _mm512_fmadd_ps(_mm512_cvtepi32_ps(odd[i]), unit, _mm512_load_ps(to + lanes)));
    }
  }
}

bool add_integers(const CodeRows& weights, const float* x, float* sums) {
  assert(weights.n <= max_columns_of_added_integers && weights.n % weights.blocksize == 0);
  if (weights.rows != Int16Factors::rows || weights.blocksize < Int16Factors::min_blocksize || weights.n % columns != 0)
    return false;
  Int16Factors factors;
  if (!make_int16_factors(weights, x, factors)) return false;
  add(weights, factors, sums);
  return true;
}

}  // namespace
}  // namespace nibble::matmul::added_codes

namespace nibble::matmul {

AddIntegers add_code_rows_vbmi() { return has_avx512_vbmi() ? added_codes::add_integers : nullptr; }

}  // namespace nibble::matmul

#else

namespace nibble::matmul {

AddIntegers add_code_rows_vbmi() { return nullptr; }

}  // namespace nibble::matmul

#endif
