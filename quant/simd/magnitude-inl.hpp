// Included once per Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_MAGNITUDE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_MAGNITUDE_INL
#undef NIBBLE_QUANT_MAGNITUDE_INL
#else
#define NIBBLE_QUANT_MAGNITUDE_INL
#endif

#include <hwy/highway.h>
#include <cstddef>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The largest |w| in each lane as bits, which order as the magnitudes do. NaN and infinity sort above every finite
// value, so this finds them for free; a floating-point maximum drops NaN on some targets. D is of fp32, or of int16 for
// 16-bit types; n is a multiple of Lanes(d).
template <class D, typename T>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> largest_lanes(D d, const T* HWY_RESTRICT w, std::size_t n) {
  static_assert(sizeof(T) == sizeof(hn::TFromD<D>));
  using Bits = hn::TFromD<hn::RebindToSigned<D>>;
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::Set(di, hwy::LimitsMax<Bits>());
  const auto load = [&](const T* from)
                        HWY_ATTR { return hn::And(hn::LoadU(di, reinterpret_cast<const Bits*>(from)), magnitude); };
  const std::size_t lanes = hn::Lanes(d);
  if (n == 2 * lanes) return hn::Max(load(w), load(w + lanes));  // 64 of 16 bits, with AVX-512
  const T* const end = w + n;
  auto a = hn::Zero(di), b = a;  // two chains, because each maximum waits for the one before
  for (; static_cast<std::size_t>(end - w) >= 4 * lanes; w += 4 * lanes) {
    a = hn::Max(a, hn::Max(load(w), load(w + lanes)));
    b = hn::Max(b, hn::Max(load(w + 2 * lanes), load(w + 3 * lanes)));
  }
  for (; w < end; w += lanes) a = hn::Max(a, load(w));
  return hn::Max(a, b);
}

#if HWY_TARGET != HWY_SCALAR

// The maximum of both halves, then of the halves of that, and so on down to 128 bits.
template <class V> HWY_INLINE auto fold_to_128(V v) {
  const hn::DFromV<V> d;
  if constexpr (sizeof(hn::TFromV<V>) * hn::MaxLanes(d) == 16) {
    return v;
  } else {
    const hn::Half<decltype(d)> half;
    return fold_to_128(hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The same for four consecutive blocks of n fp32 numbers. Their lanes are permuted on the way, which takes a third of
// the steps of one block after the other.
template <class D>
HWY_INLINE hn::Vec<hn::Full128<std::int32_t>> four_largest_magnitudes(D d, const float* HWY_RESTRICT w, std::size_t n) {
  const hn::Full128<std::int32_t> d32;
  const hn::Full128<std::int64_t> d64;
  const auto pair = [&](const float* from) HWY_ATTR {
    const auto a = fold_to_128(largest_lanes(d, from, n)), b = fold_to_128(largest_lanes(d, from + n, n));
    return hn::BitCast(d64, hn::Max(hn::InterleaveLower(d32, a, b), hn::InterleaveUpper(d32, a, b)));
  };
  const auto ab = pair(w), cd = pair(w + 2 * n);
  return hn::Max(hn::BitCast(d32, hn::InterleaveLower(d64, ab, cd)),
                 hn::BitCast(d32, hn::InterleaveUpper(d64, ab, cd)));
}

#endif

// max |w| as bits.
template <class D, typename T>
HWY_INLINE hn::TFromD<hn::RebindToSigned<D>> largest_magnitude(D d, const T* HWY_RESTRICT w, std::size_t n) {
#if HWY_TARGET <= HWY_SSE4 && HWY_ARCH_X86
  if constexpr (sizeof(T) == 2) {  // one instruction finds the smallest of 8 words
    const auto words = fold_to_128(largest_lanes(d, w, n)), all = hn::Set(hn::DFromV<decltype(words)>(), -1);
    return static_cast<std::int16_t>(~_mm_cvtsi128_si32(_mm_minpos_epu16(hn::Xor(words, all).raw)));
  }
#endif
  const hn::RebindToSigned<D> di;
  return hn::GetLane(hn::MaxOfLanes(di, largest_lanes(d, w, n)));
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
