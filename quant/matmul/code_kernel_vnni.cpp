// Products of few rows in bf16 with codes, in integers of 16 bits, for processors with AVX512_VNNI.
#include <algorithm>
#include <array>
#include <bit>
#include <cassert>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/code_kernel.hpp"
#include "quant/matmul/counts.hpp"
#include "quant/matmul/int16_numbers.hpp"
#include "quant/simd/avx512.hpp"

#ifdef NIBBLE_AVX512_VNNI

namespace nibble::matmul::codes_in_vnni {
namespace {

constexpr std::size_t lanes = 16, block = Int16Numbers::count, pair = 2 * block;
// Words of a pair of blocks of x: its integers, and eight times the scale of each block.
constexpr std::size_t scales_at = pair / 2, upper_scale_at = scales_at + lanes / 2, pair_words = scales_at + lanes;
constexpr std::size_t rows_at_a_time = 4, max_in_registers = 4, max_m = 16;
constexpr __mmask16 lower_lanes = 0x00FF, upper_lanes = 0xFF00;  // of the blocks of a pair

enum class Part : std::uint8_t { first, second };

// One instruction looks up 16-bit values in a table of 32 and uses the lower five bits of each index. The table holds
// the 16 values twice, so the fifth bit does not matter. 16 bits hold four codes: shifted right by 0, 4, 8 and 12 bits,
// they are the index of each. So 128 weights take a load, three shifts, and four lookups. A lane then has the sum of
// eight products, all in one block.
template <Part part, std::size_t rows, std::size_t m>
NIBBLE_AVX512_VNNI void multiply_rows(const CodeRows& weights, std::size_t first_row, const std::uint32_t* __restrict x,
                                      std::size_t x_stride, float* __restrict sums, std::size_t sums_stride) {
  const Int16Codebook& codebook = weights.tables.int16_codebook;
  const __m512i values = _mm512_load_si512(codebook.repeated.data());
  const std::size_t packed_stride = weights.packed_stride, absmax_stride = weights.absmax_stride;
  const std::uint8_t* __restrict packed = weights.packed + first_row * packed_stride;
  const float* const __restrict absmax = weights.absmax + first_row * absmax_stride;
  const int log2_blocksize = std::countr_zero(weights.blocksize);
  __m512 sum[rows][m];
  for (auto& row : sum)
    for (auto& v : row) v = _mm512_setzero_ps();
  for (std::size_t at = 0; at < weights.n; at += pair, packed += pair / 2, x += pair_words) {
    if constexpr (part == Part::second) {
      std::uint32_t scales = 0;
      for (std::size_t j = 0; j < m; ++j) scales |= x[j * x_stride + scales_at] | x[j * x_stride + upper_scale_at];
      if (scales == 0) continue;
    }
    const float* const absmax_of_lower = absmax + (at >> log2_blocksize);
    const float* const absmax_of_upper = absmax + ((at + block) >> log2_blocksize);
    for (std::size_t r = 0; r < rows; ++r) {
      const std::uint8_t* const from = packed + r * packed_stride;
      // Into L2: one row took 1 to 3 % less time than with L1, on Emerald Rapids.
      if (part == Part::first) _mm_prefetch(reinterpret_cast<const char*>(from) + weights.ahead, _MM_HINT_T1);
      const __m512i codes = _mm512_loadu_si512(from);
      const __m512i w0 = _mm512_permutexvar_epi16(codes, values);
      const __m512i w1 = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), values);
      const __m512i w2 = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), values);
      const __m512i w3 = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), values);
      const __m512 absmax0 = _mm512_set1_ps(absmax_of_lower[r * absmax_stride]);
      const __m512 absmax1 = _mm512_set1_ps(absmax_of_upper[r * absmax_stride]);
      for (std::size_t j = 0; j < m; ++j) {
        const std::uint32_t* const numbers = x + j * x_stride;
        __m512i products = _mm512_madd_epi16(w0, _mm512_load_si512(numbers));
        products = _mm512_dpwssd_epi32(products, w1, _mm512_load_si512(numbers + lanes));
        products = _mm512_dpwssd_epi32(products, w2, _mm512_load_si512(numbers + 2 * lanes));
        products = _mm512_dpwssd_epi32(products, w3, _mm512_load_si512(numbers + 3 * lanes));
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(products), _mm512_load_ps(numbers + scales_at));
        sum[r][j] = _mm512_mask3_fmadd_ps(scaled, absmax0, sum[r][j], lower_lanes);
        sum[r][j] = _mm512_mask3_fmadd_ps(scaled, absmax1, sum[r][j], upper_lanes);
      }
    }
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < m; ++j) sums[r * sums_stride + j] += _mm512_reduce_add_ps(sum[r][j]) * codebook.unit;
}

template <Part part>
void multiply_part(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m, float* sums) {
  in_parts<max_in_registers>(m, [&](auto count, std::size_t i) {
    const std::uint32_t* const from = x + i * x_stride;
    std::size_t row = 0;
    for (; row + rows_at_a_time <= weights.rows; row += rows_at_a_time)
      multiply_rows<part, rows_at_a_time, count()>(weights, row, from, x_stride, sums + row * m + i, m);
    for (; row < weights.rows; ++row)
      multiply_rows<part, 1, count()>(weights, row, from, x_stride, sums + row * m + i, m);
  });
}

void multiply(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m, float* sums) {
  assert(weights.n % pair == 0);
  multiply_part<Part::first>(weights, x, x_stride, m, sums);
  const std::uint32_t* const second = x + m * x_stride;
  std::uint32_t scales = 0;
  for (std::size_t j = 0; j < m; ++j)
    for (const std::uint32_t *words = second + j * x_stride, *const end = words + weights.n / pair * pair_words;
         words != end; words += pair_words)
      scales |= words[scales_at] | words[upper_scale_at];
  if (scales != 0) multiply_part<Part::second>(weights, second, x_stride, m, sums);
}

// Integers of a block, in the order of the lookups, and their scale. `half` is 1 for the second block of a pair.
void store(const std::array<std::int16_t, block>& numbers, float scale, std::size_t half, std::uint32_t* words) {
  constexpr std::array<std::size_t, 4> code{1, 0, 3, 2};  // of four, from the lowest bits on
  for (std::size_t i = 0; i < code.size(); ++i) {
    auto* const to = reinterpret_cast<std::int16_t*>(words + i * lanes + half * lanes / 2);
    for (std::size_t four = 0; four < lanes; ++four) to[four] = numbers[4 * four + code[i]];
  }
  std::fill_n(words + scales_at + half * lanes / 2, lanes / 2, std::bit_cast<std::uint32_t>(scale));
}

void arrange(const void* x, std::size_t n, std::uint32_t* words) {
  assert(n % pair == 0);
  const auto* from = static_cast<const std::byte*>(x);
  std::uint32_t* second = words + n / pair * pair_words;
  for (std::size_t i = 0; i < n; i += pair, words += pair_words, second += pair_words)
    for (std::size_t half = 0; half < 2; ++half, from += 2 * block) {
      const Int16Numbers numbers = to_int16(from);
      store(numbers.first, numbers.first_scale, half, words);
      store(numbers.second, numbers.second_scale, half, second);
    }
}

}  // namespace
}  // namespace nibble::matmul::codes_in_vnni

namespace nibble::matmul {

std::optional<CodeKernel> code_kernel_vnni() {
  if (!has_avx512_vnni()) return std::nullopt;
  using namespace codes_in_vnni;
  return CodeKernel{{pair_words / 2, DType::bf16, arrange, 2}, max_m, block, pair, multiply};
}

}  // namespace nibble::matmul

#else

namespace nibble::matmul {

std::optional<CodeKernel> code_kernel_vnni() { return std::nullopt; }

}  // namespace nibble::matmul

#endif
