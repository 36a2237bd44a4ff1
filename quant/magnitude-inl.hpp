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

// max |w| as bits, which order as the magnitudes do. NaN and infinity sort above every finite value, so this finds
// them for free, where a floating-point maximum drops NaN on some targets. D is of fp32, or of int16 for 16-bit types;
// n is a multiple of Lanes(d).
template <class D, typename T>
HWY_INLINE hn::TFromD<hn::RebindToSigned<D>> largest_magnitude(D d, const T* HWY_RESTRICT w, std::size_t n) {
  static_assert(sizeof(T) == sizeof(hn::TFromD<D>));
  using Bits = hn::TFromD<hn::RebindToSigned<D>>;
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::Set(di, hwy::LimitsMax<Bits>());
  const auto load = [&](const T* from)
                        HWY_ATTR { return hn::And(hn::LoadU(di, reinterpret_cast<const Bits*>(from)), magnitude); };
  const std::size_t lanes = hn::Lanes(d);
  const T* const end = w + n;
  auto a = hn::Zero(di), b = a;  // two chains: a maximum waits for the one before
  for (; static_cast<std::size_t>(end - w) >= 4 * lanes; w += 4 * lanes) {
    a = hn::Max(a, hn::Max(load(w), load(w + lanes)));
    b = hn::Max(b, hn::Max(load(w + 2 * lanes), load(w + 3 * lanes)));
  }
  for (; w < end; w += lanes) a = hn::Max(a, load(w));
  return hn::GetLane(hn::MaxOfLanes(di, hn::Max(a, b)));
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
