// How weights are decoded for AMX tiles, with AVX512_BF16 and AVX512_VBMI.
//
// A table of bytes has 32 values in bf16: those of one block, then those of another. Byte 2 c of a block is the lower
// byte of the value of code c, and byte 2 c + 1 the upper one. So one lookup of 64 bytes gives 32 weights, if both
// bytes of a weight have its code, shifted left by one, and the second of them has bit 0. On Intel, a lookup of bytes
// takes one step, and one of words two.
#include <array>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/matmul/amx/amx_kernel.hpp"
#include "quant/simd/avx512.hpp"

#ifdef NIBBLE_AVX512_BF16

namespace nibble::matmul::decoders_for_amx {
namespace {

using Bytes = std::array<std::uint8_t, 64>;

template <class F> constexpr Bytes bytes_of(const F& f) {
  Bytes bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(f(i));
  return bytes;
}

__attribute__((always_inline)) NIBBLE_AVX512_BF16 inline __m512i load(const Bytes& bytes) {
  return _mm512_loadu_si512(bytes.data());
}

// A term of 16 numbers that are not rounded yet.
template <int term> __attribute__((always_inline)) NIBBLE_AVX512_BF16 inline __m512 rest(__m512 numbers) {
  if constexpr (term == 0) return numbers;
  const __m512i first = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(numbers)));
  return _mm512_sub_ps(numbers, reinterpret_cast<__m512>(_mm512_slli_epi32(first, 16)));
}

// A term of the values of two blocks.
template <int term>
__attribute__((always_inline)) NIBBLE_AVX512_BF16 inline __m512i table_of(__m512 codebook, float first, float second) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(rest<term>(_mm512_mul_ps(codebook, _mm512_set1_ps(second))),
                                                       rest<term>(_mm512_mul_ps(codebook, _mm512_set1_ps(first)))));
}

// Looks up weights. Bits 1 to 4 of `shifted` are a code, and `others` has the bits that choose the byte and the block.
__attribute__((always_inline)) NIBBLE_AVX512_BF16 inline __m512i look_up(__m512i shifted, __m512i others,
                                                                         __m512i table) {
  const __m512i index = _mm512_ternarylogic_epi32(shifted, _mm512_set1_epi8(0x1E), others, 0xEA);  // (a & b) | c
  return _mm512_permutexvar_epi8(index, table);
}

// Of 64 weights, the even ones come first, then the odd ones. The upper 16 bytes of codes may be of another block.
template <int term>
NIBBLE_AVX512_BF16 void decode_row(const FourBitTables& tables, const std::uint8_t* packed, const float* absmax,
                                   std::size_t blocksize, std::size_t n, std::uint32_t* words) {
  static constexpr Bytes twice = bytes_of([](std::size_t i) { return i / 2; });
  static constexpr Bytes byte_and_block = bytes_of([](std::size_t i) { return i % 2 + i / 32 * 32; });
  const __m512 codebook = _mm512_load_ps(tables.codebook.data());
  const __m512i order = load(twice), others = load(byte_and_block);
  const auto decode_64 = [&](__m512i table) NIBBLE_AVX512_BF16 {
    const __m512i bytes = _mm512_permutexvar_epi8(
        order, _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed))));
    _mm512_store_si512(words, look_up(_mm512_srli_epi16(bytes, 3), others, table));
    _mm512_store_si512(words + 16, look_up(_mm512_add_epi8(bytes, bytes), others, table));
    packed += 32;
    words += 32;
  };
  if (blocksize == 32)
    for (std::size_t i = 0; i < n; i += 64, absmax += 2) decode_64(table_of<term>(codebook, absmax[0], absmax[1]));
  else
    for (std::size_t first = 0; first < n; first += blocksize, ++absmax) {
      const __m512i table = table_of<term>(codebook, *absmax, *absmax);
      for (std::size_t i = 0; i < blocksize; i += 64) decode_64(table);
    }
}

NIBBLE_AVX512_BF16 void decode_row_of(const FourBitTables& tables, const std::uint8_t* packed, const float* absmax,
                                      std::size_t blocksize, std::size_t n, std::size_t term, std::uint32_t* words) {
  (term == 0 ? decode_row<0> : decode_row<1>)(tables, packed, absmax, blocksize, n, words);
}

// 16 codes as fp32, of which bf16 keeps all bits.
__attribute__((always_inline)) NIBBLE_AVX512_BF16 inline __m512 widened(const std::int8_t* codes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
}

NIBBLE_AVX512_BF16 void decode_int8_row(const std::int8_t* codes, std::size_t n, std::uint32_t* words) {
  for (std::size_t i = 0; i < n; i += 32, words += 16)
    _mm512_store_si512(words,
                       reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(widened(codes + i + 16), widened(codes + i))));
}

NIBBLE_AVX512_BF16 void arrange(const void* x, std::size_t n, std::uint32_t* words) {
  alignas(64) static constexpr auto orders = [] {
    std::array<std::uint16_t, 64> of{};
    for (std::size_t i = 0; i < of.size(); ++i) of[i] = static_cast<std::uint16_t>(i % 32 * 2 + i / 32);
    return of;
  }();
  const __m512i even = _mm512_load_si512(orders.data()), odd = _mm512_load_si512(orders.data() + 32);
  const auto* from = static_cast<const std::uint16_t*>(x);
  for (std::size_t i = 0; i < n; i += 64, from += 64, words += 32) {
    const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 32);
    _mm512_storeu_si512(words, _mm512_permutex2var_epi16(a, even, b));
    _mm512_storeu_si512(words + 16, _mm512_permutex2var_epi16(a, odd, b));
  }
}

constexpr std::size_t columns_at_once = 32;

// Columns are in their usual order. The code of an even column is in the upper four bits of a byte, and that of an odd
// one in the lower, so the words of columns are rotated by 3 and by 31 bits in turns.
template <int term>
NIBBLE_AVX512_BF16 void decode_pairs(const CodeRows& weights, LinesAhead& ahead, std::uint32_t* panel,
                                     std::size_t group_stride) {
  // These take the codes of 16 columns from 16 bytes of the first row and 16 bytes of the second.
  static constexpr Bytes first_columns = bytes_of([](std::size_t i) { return i / 8 + i % 4 / 2 * 16; });
  static constexpr Bytes next_columns = bytes_of([](std::size_t i) { return 8 + i / 8 + i % 4 / 2 * 16; });
  static constexpr Bytes byte_and_row = bytes_of([](std::size_t i) { return i % 2 + i % 4 / 2 * 32; });
  const __m512 codebook = _mm512_load_ps(weights.tables.codebook.data());
  const __m512i orders[] = {load(first_columns), load(next_columns)}, others = load(byte_and_row);
  __m512i table = _mm512_setzero_si512();
  const __m512i rotations = _mm512_set1_epi64(std::int64_t{31} << 32 | 3);
  const auto decode = [&](const std::uint8_t* a, const float* absmax, std::uint32_t* to) NIBBLE_AVX512_BF16 {
    const std::uint8_t* b = a + weights.packed_stride;
    for (std::size_t c = 0; c < weights.n; c += columns_at_once, a += columns_at_once / 2, b += columns_at_once / 2) {
      if (c % weights.blocksize == 0) {
        table = table_of<term>(codebook, *absmax, absmax[weights.absmax_stride]);
        ++absmax;
      }
      const __m512i codes = _mm512_castsi256_si512(
          _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a))),
                                  _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1));
      for (const __m512i order : orders) {
        const __m512i bytes = _mm512_permutexvar_epi8(order, codes);
        _mm512_store_si512(to, look_up(_mm512_rorv_epi32(bytes, rotations), others, table));
        to += group_stride;
      }
    }
  };
  const std::size_t lines_of_pair = ceil_div(ahead.left_of_rows(), weights.rows);
  for (std::size_t row = 0; row < weights.rows; row += 2, panel += amx_words) {
    ahead.ask(lines_of_pair);
    decode(weights.packed + row * weights.packed_stride, weights.absmax + row * weights.absmax_stride, panel);
  }
}

NIBBLE_AVX512_BF16 void decode_pairs_of(const CodeRows& weights, std::size_t term, LinesAhead& ahead,
                                        std::uint32_t* panel, std::size_t group_stride) {
  (term == 0 ? decode_pairs<0> : decode_pairs<1>)(weights, ahead, panel, group_stride);
}

NIBBLE_AVX512_BF16 void decode_int8_pair(const std::int8_t* first, const std::int8_t* second, std::size_t columns,
                                         std::uint32_t* panel, std::size_t group_stride) {
  for (std::size_t c = 0; c < columns; c += amx_words, panel += group_stride) {
    const __m512i a = reinterpret_cast<__m512i>(widened(first + c)), b = reinterpret_cast<__m512i>(widened(second + c));
    _mm512_store_si512(panel, _mm512_or_si512(b, _mm512_srli_epi32(a, 16)));
  }
}

}  // namespace
}  // namespace nibble::matmul::decoders_for_amx

namespace nibble::matmul {

std::optional<AmxRowDecoder> amx_row_decoder() {
  if (!has_avx512_bf16()) return std::nullopt;
  using namespace decoders_for_amx;
  return AmxRowDecoder{64, decode_row_of, decode_int8_row, arrange};
}

std::optional<AmxPairDecoder> amx_pair_decoder() {
  if (!has_avx512_bf16()) return std::nullopt;
  using namespace decoders_for_amx;
  return AmxPairDecoder{columns_at_once, decode_pairs_of, decode_int8_pair};
}

}  // namespace nibble::matmul

#else

namespace nibble::matmul {

std::optional<AmxRowDecoder> amx_row_decoder() { return std::nullopt; }
std::optional<AmxPairDecoder> amx_pair_decoder() { return std::nullopt; }

}  // namespace nibble::matmul

#endif
