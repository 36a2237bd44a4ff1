// The product of tiles in bf16, for processors with AVX512_BF16.
#include "quant/matmul/avx512_bf16.hpp"
#include "quant/matmul/tile.hpp"

#ifdef NIBBLE_AVX512_BF16

namespace nibble::matmul::tiles_in_bf16 {
namespace {

constexpr std::size_t lanes = 16, width = 2 * lanes;
constexpr std::size_t max_rows = 12;

// As the loop of tile.cpp. The instruction adds the second product of a pair, then the first, and rounds after each.
template <std::size_t rows>
NIBBLE_AVX512_BF16 void multiply_rows(const std::uint32_t* __restrict a, std::size_t a_stride, std::size_t words,
                                      const std::uint32_t* __restrict panel, float* __restrict sums,
                                      std::size_t sums_stride) {
  __m512 left[rows], right[rows];
#pragma GCC unroll 12
  for (std::size_t r = 0; r < rows; ++r) left[r] = right[r] = _mm512_setzero_ps();
  for (std::size_t p = 0; p < words; ++p, panel += width) {
    const __m512i b0 = _mm512_load_si512(panel), b1 = _mm512_load_si512(panel + lanes);
#pragma GCC unroll 12
    for (std::size_t r = 0; r < rows; ++r) {
      const __m512i x = _mm512_set1_epi32(static_cast<int>(a[r * a_stride + p]));
      left[r] = _mm512_dpbf16_ps(left[r], bf16_pairs(x), bf16_pairs(b0));
      right[r] = _mm512_dpbf16_ps(right[r], bf16_pairs(x), bf16_pairs(b1));
    }
  }
#pragma GCC unroll 12
  for (std::size_t r = 0; r < rows; ++r, sums += sums_stride) {
    _mm512_store_ps(sums, _mm512_add_ps(_mm512_load_ps(sums), left[r]));
    _mm512_store_ps(sums + lanes, _mm512_add_ps(_mm512_load_ps(sums + lanes), right[r]));
  }
}

template <std::size_t rows = max_rows>
void multiply_as(std::size_t count, const std::uint32_t* a, std::size_t a_stride, std::size_t words,
                 const std::uint32_t* panel, float* sums, std::size_t sums_stride) {
  if (count == rows) return multiply_rows<rows>(a, a_stride, words, panel, sums, sums_stride);
  if constexpr (rows > 1) multiply_as<rows - 1>(count, a, a_stride, words, panel, sums, sums_stride);
}

void multiply(const std::uint32_t* a, std::size_t a_stride, std::size_t rows, std::size_t words,
              const std::uint32_t* panel, float* sums, std::size_t sums_stride) {
  const std::size_t parts = (rows + max_rows - 1) / max_rows;
  for (std::size_t part = 0, first = 0; part < parts; ++part) {
    const std::size_t end = rows * (part + 1) / parts;
    multiply_as(end - first, a + first * a_stride, a_stride, words, panel, sums + first * sums_stride, sums_stride);
    first = end;
  }
}

NIBBLE_AVX512_BF16 void to_words(const float* numbers, std::size_t n, std::uint32_t* words) {
  for (std::size_t i = 0; i < n; i += 2 * lanes, words += lanes) {
    const auto load = [&](std::size_t at) NIBBLE_AVX512_BF16 {
      const std::size_t left = at < n ? n - at : 0;
      const auto mask = static_cast<__mmask16>(left >= lanes ? 0xFFFF : (1u << left) - 1);
      return _mm512_maskz_loadu_ps(mask, numbers + at);
    };
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(load(i + lanes), load(i)));
    const std::size_t left = (n - i + 1) / 2;
    _mm512_mask_storeu_epi32(words, static_cast<__mmask16>(left >= lanes ? 0xFFFF : (1u << left) - 1), both);
  }
}

// bf16 in the lower half of every lane.
__attribute__((always_inline)) NIBBLE_AVX512_BF16 inline __m512i rounded(__m512 v) {
  return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
}

NIBBLE_AVX512_BF16 void side_by_side(const float* first, const float* second, std::size_t columns,
                                     std::uint32_t* words) {
  for (std::size_t i = 0; i < columns; i += lanes) {
    const std::size_t left = columns - i;
    const auto mask = static_cast<__mmask16>(left >= lanes ? 0xFFFF : (1u << left) - 1);
    __m512i both = rounded(_mm512_maskz_loadu_ps(mask, first + i));
    if (second != nullptr)
      both = _mm512_or_si512(both, _mm512_slli_epi32(rounded(_mm512_maskz_loadu_ps(mask, second + i)), 16));
    _mm512_mask_storeu_epi32(words + i, mask, both);
  }
}

// Numbers 0, 32, 1, 33, ... of two vectors, then 16, 48, ...
NIBBLE_AVX512_BF16 void pair_words(const std::uint32_t* first, const std::uint32_t* second, std::size_t columns,
                                   std::uint32_t* words) {
  alignas(64) static constexpr std::uint16_t lower[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                          8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(lower), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (std::size_t i = 0; i < columns; i += width, words += width) {
    const __m512i a = _mm512_loadu_si512(first + i / 2), b = _mm512_loadu_si512(second + i / 2);
    _mm512_storeu_si512(words, _mm512_permutex2var_epi16(a, low, b));
    _mm512_storeu_si512(words + lanes, _mm512_permutex2var_epi16(a, high, b));
  }
}

}  // namespace
}  // namespace nibble::matmul::tiles_in_bf16

namespace nibble::matmul {

std::optional<TileKernel> tile_bf16() {
  if (!has_avx512_bf16()) return std::nullopt;
  using namespace tiles_in_bf16;
  return TileKernel{width, 2, multiply, to_words, side_by_side, pair_words};
}

}  // namespace nibble::matmul

#else

namespace nibble::matmul {

std::optional<TileKernel> tile_bf16() { return std::nullopt; }

}  // namespace nibble::matmul

#endif
