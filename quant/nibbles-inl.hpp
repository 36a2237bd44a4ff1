// Included once per Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_NIBBLES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_NIBBLES_INL
#undef NIBBLE_QUANT_NIBBLES_INL
#else
#define NIBBLE_QUANT_NIBBLES_INL
#endif

#include <hwy/highway.h>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

// Stores the upper 4 of 16 bits of 32 words side by side, in 16 bytes; of two words, the first makes the upper nibble.
template <class V16> HWY_INLINE void store_upper_nibbles(V16 words, std::uint8_t* HWY_RESTRICT to) {
  const auto even = _mm512_srli_epi32(words.raw, 8), odd = _mm512_srli_epi32(words.raw, 28);
  const auto joined = _mm512_ternarylogic_epi32(even, odd, _mm512_set1_epi32(0xF0), 0xE4);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(joined));
}

#endif

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
