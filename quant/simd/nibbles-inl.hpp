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

#if HWY_TARGET != HWY_SCALAR

// Two vectors of integers as bytes, saturated to [0, 255]; where vectors have several blocks of 128 bits, block by
// block.
template <class V16> HWY_INLINE auto pack_bytes(V16 a, V16 b) {
  const hn::Repartition<std::uint8_t, hn::DFromV<V16>> d8;
#if HWY_TARGET <= HWY_SSSE3 && HWY_ARCH_X86
  if constexpr (hn::MaxLanes(d8) == 16) return hn::Vec<decltype(d8)>{_mm_packus_epi16(a.raw, b.raw)};
#if HWY_TARGET <= HWY_AVX2
  if constexpr (hn::MaxLanes(d8) == 32) return hn::Vec<decltype(d8)>{_mm256_packus_epi16(a.raw, b.raw)};
#endif
#if HWY_TARGET <= HWY_AVX3
  if constexpr (hn::MaxLanes(d8) == 64) return hn::Vec<decltype(d8)>{_mm512_packus_epi16(a.raw, b.raw)};
#endif
#else
  const hn::Half<decltype(d8)> half;
  return hn::Combine(d8, hn::DemoteTo(half, b), hn::DemoteTo(half, a));
#endif
}

// Bytes (a, b) as 16 * a + b, in 16 bits.
template <class V8> HWY_INLINE auto join_nibbles(V8 bytes) {
  const hn::Repartition<std::int16_t, hn::DFromV<V8>> d16;
#if HWY_TARGET <= HWY_SSSE3 && HWY_ARCH_X86
  const auto weights = hn::Set(d16, 0x0110);
  if constexpr (hn::MaxLanes(d16) == 8) return hn::Vec<decltype(d16)>{_mm_maddubs_epi16(bytes.raw, weights.raw)};
#if HWY_TARGET <= HWY_AVX2
  if constexpr (hn::MaxLanes(d16) == 16) return hn::Vec<decltype(d16)>{_mm256_maddubs_epi16(bytes.raw, weights.raw)};
#endif
#if HWY_TARGET <= HWY_AVX3
  if constexpr (hn::MaxLanes(d16) == 32) return hn::Vec<decltype(d16)>{_mm512_maddubs_epi16(bytes.raw, weights.raw)};
#endif
#else
  const hn::RebindToUnsigned<decltype(d16)> du16;
  const auto pairs = hn::BitCast(du16, bytes);
  const auto joined = hn::Or(hn::ShiftLeft<4>(pairs), hn::ShiftRight<8>(pairs));
  return hn::BitCast(d16, hn::And(joined, hn::Set(du16, 0xFF)));
#endif
}

// Stores numbers in [0, 15] that pack_bytes() made, two to a byte.
template <class V8> HWY_INLINE void store_nibbles(V8 bytes, std::uint8_t* HWY_RESTRICT to) {
  const auto joined = join_nibbles(bytes);
  const auto twice = pack_bytes(joined, joined);
  const hn::DFromV<V8> d8;
  if constexpr (hn::MaxLanes(d8) == 16) {
    hn::StoreU(hn::LowerHalf(twice), hn::Half<decltype(d8)>(), to);
  } else {
    static_assert(hn::MaxLanes(d8) == 32);
    const hn::Half<decltype(d8)> half8;
    const hn::Repartition<std::uint32_t, decltype(half8)> d32;
    hn::StoreU(hn::BitCast(half8, hn::InterleaveLower(d32, hn::BitCast(d32, hn::LowerHalf(half8, twice)),
                                                      hn::BitCast(d32, hn::UpperHalf(half8, twice)))),
               half8, to);
  }
}

// Stores a vector whose blocks of 128 bits b = 0, 1, ... hold units u = 0, 1, ... that belong at u * blocks + b.
template <class Unit, class V8> HWY_INLINE void store_interleaved(V8 bytes, std::uint8_t* HWY_RESTRICT to) {
  const hn::DFromV<V8> d8;
  const hn::Full128<std::uint8_t> block8;
  const hn::Full128<Unit> block;
  if constexpr (hn::MaxLanes(d8) == 16) {
    hn::StoreU(bytes, d8, to);
  } else if constexpr (hn::MaxLanes(d8) == 32) {
    const auto b0 = hn::BitCast(block, hn::LowerHalf(block8, bytes));
    const auto b1 = hn::BitCast(block, hn::UpperHalf(block8, bytes));
    hn::StoreU(hn::BitCast(block8, hn::InterleaveLower(block, b0, b1)), block8, to);
    hn::StoreU(hn::BitCast(block8, hn::InterleaveUpper(block, b0, b1)), block8, to + 16);
  } else {
    const hn::Half<decltype(d8)> half;
    const auto lower = hn::LowerHalf(half, bytes), upper = hn::UpperHalf(half, bytes);
    const auto b0 = hn::BitCast(block, hn::LowerHalf(block8, lower));
    const auto b1 = hn::BitCast(block, hn::UpperHalf(block8, lower));
    const auto b2 = hn::BitCast(block, hn::LowerHalf(block8, upper));
    const auto b3 = hn::BitCast(block, hn::UpperHalf(block8, upper));
    const auto store_half = [&](auto even, auto odd, std::uint8_t* HWY_RESTRICT out) HWY_ATTR {
      hn::StoreU(hn::BitCast(block8, hn::InterleaveLower(block, even, odd)), block8, out);
      hn::StoreU(hn::BitCast(block8, hn::InterleaveUpper(block, even, odd)), block8, out + 16);
    };
    store_half(hn::InterleaveLower(block, b0, b2), hn::InterleaveLower(block, b1, b3), to);
    store_half(hn::InterleaveUpper(block, b0, b2), hn::InterleaveUpper(block, b1, b3), to + 32);
  }
}

#endif

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
