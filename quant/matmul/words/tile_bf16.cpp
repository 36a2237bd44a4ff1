// The product of tiles in bf16, for processors with AVX512_BF16.
#include <array>
#include <cstring>

#include "nibble/int8.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/counts.hpp"
#include "quant/matmul/words/tile.hpp"
#include "quant/simd/avx512.hpp"
#include "quant/simd/prefetch.hpp"

#ifdef NIBBLE_AVX512_BF16

namespace nibble::matmul::tiles_in_bf16 {
namespace {

constexpr std::size_t lanes = 16, vectors = 4, width = vectors * lanes;
constexpr std::size_t max_rows = 6;

// Numbers 0, 16, 1, 17, ... of 32.
alignas(64) constexpr auto alternating = [] {
  std::array<std::uint16_t, 2 * lanes> of{};
  for (std::size_t i = 0; i < of.size(); ++i) of[i] = static_cast<std::uint16_t>(i / 2 + i % 2 * lanes);
  return of;
}();

// As the loop of tile.cpp. The instruction adds the second product of a pair, then the first, and rounds after each.
template <std::size_t rows>
NIBBLE_AVX512_BF16 void multiply_rows(const std::byte* __restrict a, std::size_t a_stride, std::size_t words,
                                      const std::uint32_t* __restrict panel, float* __restrict sums,
                                      std::size_t sums_stride) {
  __m512 sum[rows][vectors];
  for (auto& row : sum)
    for (auto& v : row) v = _mm512_setzero_ps();
  for (std::size_t p = 0; p < words; ++p, panel += width) {
    __m512i b[vectors];
    for (std::size_t v = 0; v < vectors; ++v) b[v] = _mm512_load_si512(panel + v * lanes);
    for (std::size_t r = 0; r < rows; ++r) {
      int word = 0;
      std::memcpy(&word, a + r * a_stride + p * sizeof(word), sizeof(word));
      const __m512i x = _mm512_set1_epi32(word);
      for (std::size_t v = 0; v < vectors; ++v)
        sum[r][v] = _mm512_dpbf16_ps(sum[r][v], bf16_pairs(x), bf16_pairs(b[v]));
    }
  }
  for (std::size_t r = 0; r < rows; ++r, sums += sums_stride)
    for (std::size_t v = 0; v < vectors; ++v)
      _mm512_store_ps(sums + v * lanes, _mm512_add_ps(_mm512_load_ps(sums + v * lanes), sum[r][v]));
}

void multiply(const std::byte* a, std::size_t a_stride, std::size_t rows, std::size_t words, const std::uint32_t* panel,
              float* sums, std::size_t sums_stride, CacheLines ahead) {
  in_parts<max_rows>(rows, [&](auto count, std::size_t first) {
    prefetch(ahead.parts(first, first + count(), rows));
    multiply_rows<count()>(a + first * a_stride, a_stride, words, panel, sums + first * sums_stride, sums_stride);
  });
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

// Codes of two rows make indices into a table of the values of both, of which the second row has the upper half. Codes
// of 64 columns are first one to a byte, then pairs of them are in neighbouring 16 bits.
NIBBLE_AVX512_BF16 void pair_four_bit(const CodeRows& weights, std::uint32_t* panel, std::size_t group_stride) {
  const __m512 codebook = _mm512_load_ps(weights.tables.codebook.data());
  const __m512i code = _mm512_set1_epi8(15);
  const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi8(16), 1);
  // Byte 4 c of an index comes from column c of the first row, byte 4 c + 2 from the second, which is 32 bytes later.
  // Even columns are in the upper nibbles, which are the first of two sources; the others are 64 bytes later.
  alignas(64) static constexpr auto indices = [] {
    std::array<std::uint8_t, width> of{};
    for (std::size_t c = 0; c < lanes; ++c)
      for (std::size_t row = 0; row < 2; ++row)
        of[4 * c + 2 * row] = static_cast<std::uint8_t>(c / 2 + 32 * row + 64 * (c % 2));
    return of;
  }();
  const __m512i order = _mm512_load_si512(indices.data()), eight = _mm512_set1_epi8(8);
  const std::uint8_t *a = weights.packed, *b = weights.packed + weights.packed_stride;
  for (std::size_t c = 0; c < weights.n; c += width, a += width / 2, b += width / 2, panel += group_stride) {
    const float* const absmax = weights.absmax + c / weights.blocksize;
    const __m512i table = reinterpret_cast<__m512i>(
        _mm512_cvtne2ps_pbh(_mm512_mul_ps(codebook, _mm512_set1_ps(absmax[weights.absmax_stride])),
                            _mm512_mul_ps(codebook, _mm512_set1_ps(*absmax))));
    prefetch_to_l2(a + weights.ahead);
    prefetch_to_l2(b + weights.ahead);
    const __m512i both =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a))),
                           _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)), 1);
    // (both & 15) | second
    const __m512i upper = _mm512_ternarylogic_epi32(_mm512_srli_epi16(both, 4), code, second, 0xEA);
    const __m512i lower = _mm512_ternarylogic_epi32(both, code, second, 0xEA);
    __m512i from = order;
    for (std::size_t v = 0; v < vectors; ++v, from = _mm512_add_epi8(from, eight))
      _mm512_store_si512(panel + v * lanes,
                         _mm512_permutexvar_epi16(_mm512_permutex2var_epi8(upper, from, lower), table));
  }
}

NIBBLE_AVX512_BF16 void pair_int8(const Int8Pair& weights, std::size_t columns, std::uint32_t* panel,
                                  std::size_t group_stride) {
  const __m512 unit = _mm512_set1_ps(int8::inverse_127);
  const __m512 scales[2] = {_mm512_set1_ps(weights.first_absmax), _mm512_set1_ps(weights.second_absmax)};
  const __m512i order = _mm512_load_si512(alternating.data());
  for (std::size_t c = 0; c < columns; c += lanes) {
    const auto load = [&](const std::int8_t* codes, __m512 scale) NIBBLE_AVX512_BF16 {
      prefetch_to_l2(codes + c + weights.ahead);
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + c));
      return _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale), unit);
    };
    const __m512 a = load(weights.first, scales[0]), b = load(weights.second, scales[1]);
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
    _mm512_store_si512(panel + c / width * group_stride + c % width, _mm512_permutexvar_epi16(order, both));
  }
}

}  // namespace
}  // namespace nibble::matmul::tiles_in_bf16

namespace nibble::matmul {

std::optional<TileKernel> tile_bf16() {
  if (!has_avx512_bf16()) return std::nullopt;
  using namespace tiles_in_bf16;
  return TileKernel{width, 2, multiply, to_words, side_by_side, PairDecoder{width, pair_four_bit, pair_int8}};
}

namespace {

std::optional<bool>& forced_preference() {
  static std::optional<bool> answer;
  return answer;
}

}  // namespace

bool prefers_bf16() {
  static const bool is_intel = __builtin_cpu_is("intel") != 0;
  return has_avx512_bf16() && forced_preference().value_or(!is_intel);
}
void prefer_bf16(std::optional<bool> answer) { forced_preference() = answer; }

}  // namespace nibble::matmul

#else

namespace nibble::matmul {

std::optional<TileKernel> tile_bf16() { return std::nullopt; }
bool prefers_bf16() { return false; }
void prefer_bf16(std::optional<bool> /*answer*/) {}

}  // namespace nibble::matmul

#endif
