// Products of few rows in bf16, for processors with AVX512_BF16 (see tile_bf16.cpp).
#include "quant/matmul/words/row_kernel.hpp"

#include "nibble/int8.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/counts.hpp"
#include "quant/simd/avx512.hpp"
#include "quant/simd/prefetch.hpp"

#ifdef NIBBLE_AVX512_BF16

namespace nibble::matmul::rows_in_bf16 {
namespace {

constexpr std::size_t lanes = 16;

// Looks up 32 weights at once. The table has the 16 values twice, because an index has five bits.
NIBBLE_AVX512_BF16 void decode_four_bit(const FourBitTables& tables, const std::uint8_t* packed, const float* absmax,
                                        std::size_t blocksize, std::size_t n, std::size_t ahead, std::uint32_t* words) {
  const __m512 codebook = _mm512_load_ps(tables.codebook.data());
  for (std::size_t first = 0; first < n; first += blocksize, ++absmax) {
    const __m512 values = _mm512_mul_ps(codebook, _mm512_set1_ps(*absmax));
    prefetch_to_l2(packed + ahead);
    const auto table = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(values, values));
    for (std::size_t i = 0; i < blocksize; i += 2 * lanes, packed += lanes, words += lanes) {
      const __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(packed)));
      const __m512i codes = _mm512_or_si512(_mm512_srli_epi32(byte, 4), _mm512_slli_epi32(byte, 16));
      _mm512_store_si512(words, _mm512_permutexvar_epi16(codes, table));
    }
  }
}

NIBBLE_AVX512_BF16 void decode_int8(const std::int8_t* codes, float absmax, std::size_t n, std::size_t ahead,
                                    std::uint32_t* words) {
  const __m512 scale = _mm512_set1_ps(absmax), unit = _mm512_set1_ps(int8::inverse_127);
  for (std::size_t i = 0; i < n; i += 2 * lanes, words += lanes) {
    prefetch_to_l2(codes + i + ahead);
    const auto load = [&](std::size_t at) NIBBLE_AVX512_BF16 {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + at));
      return _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale), unit);
    };
    _mm512_store_si512(words, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(load(i + lanes), load(i))));
  }
}

constexpr std::size_t max_m = 6;

template <std::size_t rows, std::size_t m>
NIBBLE_AVX512_BF16 void multiply_block(const std::uint32_t* __restrict weights, std::size_t stride,
                                       const std::uint32_t* __restrict x, std::size_t x_stride, std::size_t words,
                                       float* __restrict sums, std::size_t sums_stride) {
  __m512 sum[rows][m];
  for (auto& row : sum)
    for (auto& v : row) v = _mm512_setzero_ps();
  for (std::size_t p = 0; p < words; p += lanes) {
    __m512i w[rows];
    for (std::size_t r = 0; r < rows; ++r) w[r] = _mm512_load_si512(weights + r * stride + p);
    for (std::size_t i = 0; i < m; ++i) {
      const __m512i v = _mm512_loadu_si512(x + i * x_stride + p);
      for (std::size_t r = 0; r < rows; ++r) sum[r][i] = _mm512_dpbf16_ps(sum[r][i], bf16_pairs(w[r]), bf16_pairs(v));
    }
  }
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t i = 0; i < m; ++i) sums[r * sums_stride + i] += _mm512_reduce_add_ps(sum[r][i]);
}

void multiply(const std::uint32_t* weights, std::size_t stride, std::size_t rows, const std::uint32_t* x,
              std::size_t x_stride, std::size_t m, std::size_t words, float* sums) {
  in_parts<max_m>(m, [&](auto count, std::size_t first) {
    if (rows == RowKernel::max_rows)
      multiply_block<RowKernel::max_rows, count()>(weights, stride, x + first * x_stride, x_stride, words, sums + first,
                                                   m);
    else
      for (std::size_t row = 0; row < rows; ++row)
        multiply_block<1, count()>(weights + row * stride, stride, x + first * x_stride, x_stride, words,
                                   sums + row * m + first, m);
  });
}

}  // namespace
}  // namespace nibble::matmul::rows_in_bf16

namespace nibble::matmul {

std::optional<RowKernel> row_kernel_bf16() {
  if (!has_avx512_bf16()) return std::nullopt;
  using namespace rows_in_bf16;
  return RowKernel{2, {decode_four_bit, decode_int8, nullptr}, multiply};
}

}  // namespace nibble::matmul

#else

namespace nibble::matmul {

std::optional<RowKernel> row_kernel_bf16() { return std::nullopt; }

}  // namespace nibble::matmul

#endif
