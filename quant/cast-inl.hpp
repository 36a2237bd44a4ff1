// Included once per Highway target, hence the guard that toggles.
#if defined(NIBBLE_QUANT_CAST_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef NIBBLE_QUANT_CAST_INL
#undef NIBBLE_QUANT_CAST_INL
#else
#define NIBBLE_QUANT_CAST_INL
#endif

#include <hwy/highway.h>
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "quant/cast.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Narrows n weights to 16 bits, counting on the way. convert(magnitude) gives the bits of |w| rounded, as int32;
// integer code, because DemoteTo truncates on some targets of Highway 1.0.3.
template <class Convert>
HWY_INLINE void narrow_each(const float* HWY_RESTRICT w, std::size_t n, float smallest_overflow,
                            std::int32_t smallest_normal, std::uint16_t* HWY_RESTRICT out, CastCounts& counts,
                            Convert convert) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  const auto overflow_bits = hn::Set(di, std::bit_cast<std::int32_t>(smallest_overflow));
  const auto zero = hn::Zero(di);
  auto special = zero, underflow = zero, subnormal = zero;
  const auto step = [&](const float* from) HWY_ATTR {
    const auto bits = hn::BitCast(di, hn::LoadU(d, from));
    const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
    const auto result = convert(magnitude);
    const auto is_zero = hn::Eq(result, zero);
    special = hn::Sub(special, hn::VecFromMask(di, hn::Not(hn::Lt(magnitude, overflow_bits))));  // true is -1
    underflow = hn::Sub(underflow, hn::VecFromMask(di, hn::AndNot(hn::Eq(magnitude, zero), is_zero)));
    subnormal =
        hn::Sub(subnormal, hn::VecFromMask(di, hn::AndNot(is_zero, hn::Lt(result, hn::Set(di, smallest_normal)))));
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(di, 0x8000));
    return hn::DemoteTo(d16, hn::Or(result, sign));  // saturates, and nothing is above 0xFFFF
  };

  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(step(w + i), d16, out + i);
  if (i < n) {
    HWY_ALIGN float last[hn::MaxLanes(d)] = {};  // zeros count as nothing
    HWY_ALIGN std::uint16_t result[hn::MaxLanes(d)];
    std::copy(w + i, w + n, last);
    hn::StoreU(step(last), d16, result);
    std::copy_n(result, n - i, out + i);
  }
  const auto total = [&](auto count)
                         HWY_ATTR { return static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(di, count))); };
  counts = {total(special), total(underflow), total(subnormal)};
}

// Widens n 16-bit values: convert() gives the fp32 bits of a vector of them, `last` the value of one.
template <class Convert, class Last>
HWY_INLINE void widen_each(const std::uint16_t* HWY_RESTRICT in, std::size_t n, float* HWY_RESTRICT out,
                           Convert convert, Last last) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(hn::BitCast(d, convert(hn::PromoteTo(di, hn::LoadU(d16, in + i)))), d, out + i);
  for (; i < n; ++i) out[i] = last(in[i]);
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
