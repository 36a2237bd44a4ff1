#include "quant/codecs/nested_table.hpp"

#include <bit>

#include "quant/simd/avx512.hpp"

namespace nibble::nested {
namespace {

#ifdef NIBBLE_AVX512_VBMI

constexpr std::size_t codes_at_a_time = 64;

// The four bytes of 64 values are looked up apart and then put together. That takes 46 instructions for 64 values, and
// lookups of whole numbers (nested.cpp) take 84.
NIBBLE_AVX512_VBMI void decode_64(const std::array<std::array<std::uint8_t, 256>, 4>& bytes, const std::uint8_t* codes,
                                  float scale, float offset, float* absmax) {
  // Instructions that put bytes together do so within 128 bits. In this order, the values come out in theirs.
  const __m512i code = transposed_words(_mm512_loadu_si512(codes));
  const __mmask64 is_in_upper_half = _mm512_movepi8_mask(code);
  const auto look_up = [&](const std::array<std::uint8_t, 256>& table) NIBBLE_AVX512_VBMI {
    const auto half = [&](std::size_t at) NIBBLE_AVX512_VBMI {
      return _mm512_permutex2var_epi8(_mm512_load_si512(table.data() + at), code,
                                      _mm512_load_si512(table.data() + at + 64));
    };
    return _mm512_mask_blend_epi8(is_in_upper_half, half(0), half(128));
  };
  const __m512i byte0 = look_up(bytes[0]), byte1 = look_up(bytes[1]);
  const __m512i byte2 = look_up(bytes[2]), byte3 = look_up(bytes[3]);
  const __m512i lower[] = {_mm512_unpacklo_epi8(byte0, byte1), _mm512_unpackhi_epi8(byte0, byte1)};
  const __m512i upper[] = {_mm512_unpacklo_epi8(byte2, byte3), _mm512_unpackhi_epi8(byte2, byte3)};
  for (std::size_t i = 0; i < 4; ++i) {
    const __m512i value = i % 2 == 0 ? _mm512_unpacklo_epi16(lower[i / 2], upper[i / 2])
                                     : _mm512_unpackhi_epi16(lower[i / 2], upper[i / 2]);
    const __m512 scaled = _mm512_mul_ps(_mm512_castsi512_ps(value), _mm512_set1_ps(scale));
    _mm512_storeu_ps(absmax + 16 * i, _mm512_add_ps(scaled, _mm512_set1_ps(offset)));
  }
}

#endif

}  // namespace

Table::Table(std::span<const float, 256> values) : values_(values.data()) {
#ifdef NIBBLE_AVX512_VBMI
  has_bytes_ = has_avx512_vbmi();
  if (!has_bytes_) return;
  for (std::size_t code = 0; code < values.size(); ++code) {
    const auto bits = std::bit_cast<std::uint32_t>(values[code]);
    for (std::size_t b = 0; b < bytes_.size(); ++b) bytes_[b][code] = static_cast<std::uint8_t>(bits >> 8 * b);
  }
#endif
}

void Table::decode_slice(std::uint64_t first, std::span<const std::uint8_t> codes, std::span<const float> nested_absmax,
                         float offset, std::span<float> absmax) const {
  if (!has_bytes_)
    return nested::decode_slice(first, codes, nested_absmax, std::span<const float, 256>(values_, 256), offset, absmax);
#ifdef NIBBLE_AVX512_VBMI
  for_each_part_of_a_block(first, absmax.size(), [&](std::uint64_t at, std::uint64_t n) {
    const std::span<const std::uint8_t> of_block = codes.subspan(at, n);
    const std::span<float> out = absmax.subspan(at - first, n);
    const float scale = nested_absmax[at / blocksize];
    std::size_t i = 0;
    for (; i + codes_at_a_time <= n; i += codes_at_a_time)
      decode_64(bytes_, of_block.data() + i, scale, offset, out.data() + i);
    for (; i < n; ++i) out[i] = values_[of_block[i]] * scale + offset;
  });
#endif
}

}  // namespace nibble::nested
