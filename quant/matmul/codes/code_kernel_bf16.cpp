// Products of few rows with codes in bf16, for processors with AVX512_BF16 (see tile_bf16.cpp).
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/codes/code_kernel.hpp"
#include "quant/matmul/counts.hpp"
#include "quant/simd/avx512.hpp"
#include "quant/simd/prefetch.hpp"

#ifdef NIBBLE_AVX512_BF16

namespace nibble::matmul::codes_in_bf16 {
namespace {

constexpr std::size_t lanes = 16, group = 4 * lanes;
constexpr std::size_t max_rows = 4, max_m = 4;

// A byte of two codes in 16 bits is an index for both: a lookup among 32 values sees five bits, and the table has the
// 16 values twice. So 64 weights take one load, a shift, and two lookups: the even ones, then the odd ones.
template <std::size_t rows, std::size_t m>
NIBBLE_AVX512_BF16 void multiply_block(const CodeRows& weights, std::size_t first, const std::uint32_t* __restrict x,
                                       std::size_t x_stride, float* __restrict sums) {
  const __m512 codebook = _mm512_load_ps(weights.tables.codebook.data());
  const std::size_t packed_stride = weights.packed_stride, absmax_stride = weights.absmax_stride;
  const std::uint8_t* __restrict packed = weights.packed + first * packed_stride;
  const float* __restrict absmax = weights.absmax + first * absmax_stride;
  __m512 sum[rows][m];
  for (auto& row : sum)
    for (auto& v : row) v = _mm512_setzero_ps();
  for (std::size_t left = weights.n; left > 0; left -= weights.blocksize, ++absmax) {
    __m512i table[rows];
    for (std::size_t r = 0; r < rows; ++r) {
      const __m512 values = _mm512_mul_ps(codebook, _mm512_set1_ps(absmax[r * absmax_stride]));
      table[r] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(values, values));
    }
    for (std::size_t i = 0; i < weights.blocksize; i += group, packed += group / 2, x += group / 2) {
      for (std::size_t r = 0; r < rows; ++r) {
        const std::uint8_t* const from = packed + r * packed_stride;
        prefetch_to_l2(from + weights.ahead);
        const __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        const __m512i even = _mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), table[r]);
        const __m512i odd = _mm512_permutexvar_epi16(codes, table[r]);
        for (std::size_t j = 0; j < m; ++j) {
          const __m512i x0 = _mm512_load_si512(x + j * x_stride), x1 = _mm512_load_si512(x + j * x_stride + lanes);
          sum[r][j] = _mm512_dpbf16_ps(sum[r][j], bf16_pairs(even), bf16_pairs(x0));
          sum[r][j] = _mm512_dpbf16_ps(sum[r][j], bf16_pairs(odd), bf16_pairs(x1));
        }
      }
    }
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < m; ++j) sums[r * m + j] += _mm512_reduce_add_ps(sum[r][j]);
}

void multiply(const CodeRows& weights, const std::uint32_t* x, std::size_t x_stride, std::size_t m, float* sums) {
  with_constant<max_m>(m, [&](auto count) {
    in_groups<max_rows>(weights.rows, [&](auto rows, std::size_t row) {
      multiply_block<rows(), count()>(weights, row, x, x_stride, sums + row * m);
    });
  });
}

NIBBLE_AVX512_BF16 void arrange(const void* x, std::size_t n, std::uint32_t* words) {
  const auto* from = static_cast<const std::byte*>(x);
  for (std::size_t i = 0; i < n; i += group, from += 2 * group, words += group / 2) {
    const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + group);
    const auto narrow = [&](__m512i first, __m512i second) NIBBLE_AVX512_BF16 {
      return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(first)), _mm512_cvtepi32_epi16(second), 1);
    };
    _mm512_store_si512(words, narrow(a, b));
    _mm512_store_si512(words + lanes, narrow(_mm512_srli_epi32(a, 16), _mm512_srli_epi32(b, 16)));
  }
}

}  // namespace
}  // namespace nibble::matmul::codes_in_bf16

namespace nibble::matmul {

std::optional<CodeKernel> code_kernel_bf16() {
  if (!has_avx512_bf16()) return std::nullopt;
  using namespace codes_in_bf16;
  return CodeKernel{{32, DType::bf16, arrange}, max_m, group, group, multiply};
}

}  // namespace nibble::matmul

#else

namespace nibble::matmul {

std::optional<CodeKernel> code_kernel_bf16() { return std::nullopt; }

}  // namespace nibble::matmul

#endif
