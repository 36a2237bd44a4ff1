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
// them for free, where a floating-point maximum drops NaN on some targets. n is a multiple of Lanes(d).
template <class D> HWY_INLINE std::int32_t largest_magnitude(D d, const float* HWY_RESTRICT w, std::size_t n) {
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::Set(di, 0x7FFFFFFF);
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(di), b = a;  // two chains: a maximum waits for the one before
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    a = hn::Max(a, hn::And(hn::BitCast(di, hn::LoadU(d, w + i)), magnitude));
    b = hn::Max(b, hn::And(hn::BitCast(di, hn::LoadU(d, w + i + lanes)), magnitude));
  }
  for (; i < n; i += lanes) a = hn::Max(a, hn::And(hn::BitCast(di, hn::LoadU(d, w + i)), magnitude));
  return hn::GetLane(hn::MaxOfLanes(di, hn::Max(a, b)));
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
