// Sums of rows of codes times numbers of x in bf16, in integers of 16 bits, for processors with AVX512_VNNI and
// AVX512_VBMI.
//
// A column needs the sum of w[r] * absmax[r] * x[r] over rows r. For eight rows, the factor absmax[r] * x[r] becomes an
// integer with a power of two for each block, and w[r] one in units of the codebook. One instruction multiplies two
// rows of 16 columns and adds both products to their sums.
#include <array>
#include <bit>
#include <cassert>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/words/row_kernel.hpp"
#include "quant/simd/avx512.hpp"
#include "quant/simd/int16_table16.hpp"

#ifdef NIBBLE_AVX512_VBMI

namespace nibble::matmul::added_codes {
namespace {

constexpr std::size_t lanes = 16, row_pairs = 4, rows = 2 * row_pairs, columns = 128;
static_assert(rows == max_added_rows);
constexpr std::size_t smallest_blocksize = 64, max_blocks = max_columns_of_added_integers / smallest_blocksize;
// The largest factor of a block becomes 2^(bits - 1) to 2^bits, which has to fit 16 bits, as eight products have to fit
// 32.
constexpr int bits = 14;
static_assert((1 << bits) <= INT16_MAX && std::int64_t{rows} * Int16Codebook::most * (1 << bits) <= INT32_MAX);
// Integers are off by 2^-14 of the largest factor at most. That is 2^-9 of the geometric mean of the factors other than
// 0, which is what bf16 is off by, if their exponents are this much smaller on average.
constexpr int max_distance = bits - 9;
// Below this biased exponent of the largest factor, units could be subnormal. There is a margin.
constexpr int min_exponent = 40;

// absmax[r] * x[r] of eight rows: two rows in the halves of a word, and for each block the value of 1.
struct Factors {
  alignas(64) std::array<std::array<std::uint32_t, max_blocks>, row_pairs> pairs;
  alignas(64) std::array<float, max_blocks> unit;
};

// False if the factors of a block differ too much, or are too small or not finite.
NIBBLE_AVX512_VBMI bool make_factors(const CodeRows& weights, const float* x, Factors& factors) {
  const std::size_t blocks = weights.n / weights.blocksize;
  const __m512i zero = _mm512_setzero_si512(), magnitude = _mm512_set1_epi32(INT32_MAX);
  for (std::size_t b = 0; b < blocks; b += lanes) {
    const auto mask = static_cast<__mmask16>(blocks - b >= lanes ? 0xFFFF : (1u << (blocks - b)) - 1);
    __m512 factor[rows];
    __m512i most = zero;  // the bits of magnitudes are in the order of their values
    for (std::size_t r = 0; r < rows; ++r) {
      const __m512 absmax = _mm512_maskz_loadu_ps(mask, weights.absmax + r * weights.absmax_stride + b);
      factor[r] = _mm512_mul_ps(absmax, _mm512_set1_ps(x[r]));
      most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(factor[r]), magnitude));
    }
    const __m512i exponent = _mm512_srli_epi32(most, 23);  // biased
    const __m512i limit = _mm512_sub_epi32(exponent, _mm512_set1_epi32(max_distance));
    __m512i excess = zero;
    for (const __m512 f : factor) {
      const __m512i number = _mm512_and_si512(_mm512_castps_si512(f), magnitude);
      const __mmask16 is_not_zero = _mm512_test_epi32_mask(number, number);
      const __m512i below_limit = _mm512_sub_epi32(limit, _mm512_srli_epi32(number, 23));
      excess = _mm512_mask_add_epi32(excess, is_not_zero, excess, below_limit);
    }
    const __mmask16 is_not_zero = _mm512_test_epi32_mask(most, most);
    const auto any_of_blocks = [&](__mmask16 bad) { return (bad & is_not_zero) != 0; };
    if (any_of_blocks(_mm512_cmpgt_epi32_mask(excess, zero)) ||
        any_of_blocks(_mm512_cmplt_epi32_mask(exponent, _mm512_set1_epi32(min_exponent))) ||
        any_of_blocks(_mm512_cmpeq_epi32_mask(exponent, _mm512_set1_epi32(255))))
      return false;

    // 2^(bits - 1 - exponent), and its reciprocal. Factors of 0 have any.
    const __m512i log2 = _mm512_maskz_sub_epi32(is_not_zero, exponent, _mm512_set1_epi32(127 + bits - 1));
    const __m512i one = _mm512_set1_epi32(127);
    const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(one, log2), 23));
    const __m512 reciprocal = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(one, log2), 23));
    _mm512_store_ps(factors.unit.data() + b,
                    _mm512_mul_ps(reciprocal, _mm512_set1_ps(weights.tables.int16_codebook.unit)));
    for (std::size_t pair = 0; pair < row_pairs; ++pair) {
      const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(factor[2 * pair], scale));
      const __m512i second = _mm512_cvtps_epi32(_mm512_mul_ps(factor[2 * pair + 1], scale));
      _mm512_store_si512(factors.pairs[pair].data() + b,
                         _mm512_mask_blend_epi16(0xAAAAAAAA, first, _mm512_slli_epi32(second, 16)));
    }
  }
  return true;
}

// Codes of two rows are interleaved byte by byte, and then the two bytes of their values, so that a word has the values
// of both rows for one column. Interleaving works within 128 bits. So the words of a row's codes are transposed first:
// even[i] then has the even ones of columns 32 i to 32 i + 31, and odd[i] the odd ones.
NIBBLE_AVX512_VBMI void add(const CodeRows& weights, const Factors& factors, float* __restrict sums) {
  const Int16Table16 table(weights.tables.int16_codebook.lower, weights.tables.int16_codebook.upper);
  const int log2_blocksize = std::countr_zero(weights.blocksize);
  for (std::size_t column = 0; column < weights.n; column += columns, sums += columns) {
    const std::size_t blocks[2] = {column >> log2_blocksize, (column + columns / 2) >> log2_blocksize};
    __m512i even[4], odd[4];
    for (std::size_t i = 0; i < 4; ++i) even[i] = odd[i] = _mm512_setzero_si512();
    const std::uint8_t* from = weights.packed + column / 2;
    for (std::size_t pair = 0; pair < row_pairs; ++pair) {
      const auto next_row = [&]() NIBBLE_AVX512_VBMI {
        _mm_prefetch(reinterpret_cast<const char*>(from) + weights.ahead, _MM_HINT_T1);
        const __m512i codes = transposed_words(_mm512_loadu_si512(from));
        from += weights.packed_stride;
        return codes;
      };
      const __m512i first = next_row(), second = next_row();
      const __m512i of_half[2] = {_mm512_unpacklo_epi8(first, second), _mm512_unpackhi_epi8(first, second)};
      for (std::size_t half = 0; half < 2; ++half) {
        const __m512i x = _mm512_set1_epi32(static_cast<int>(factors.pairs[pair][blocks[half]]));
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
  if (weights.rows != rows || weights.blocksize < smallest_blocksize || weights.n % columns != 0) return false;
  Factors factors;
  if (!make_factors(weights, x, factors)) return false;
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
