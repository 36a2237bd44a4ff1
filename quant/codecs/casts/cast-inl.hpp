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
#include <cstring>

#include "nibble/fp16.hpp"
#include "quant/codecs/casts/cast.hpp"
#include "quant/simd/source-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The bits of |w| rounded to nearest even, as int32: bf16::from_float() and fp16::from_float(), computing every case
// and then choosing. Integer code, because DemoteTo truncates on some targets of Highway 1.0.3.
template <class DI, class VI = hn::Vec<DI>> HWY_INLINE VI bf16_bits(DI di, VI magnitude) {
  const VI shifted = hn::ShiftRight<16>(magnitude);
  const VI biased = hn::Add(magnitude, hn::Set(di, 0x7FFF));
  const VI rounded = hn::ShiftRight<16>(hn::Add(biased, hn::And(shifted, hn::Set(di, 1))));
  const VI nan = hn::Or(shifted, hn::Set(di, 0x40));
  return hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7F800000)), nan, rounded);
}

// `overflow` is what finite magnitudes beyond the largest become.
template <class DI, class VI = hn::Vec<DI>> HWY_INLINE VI fp16_bits(DI di, VI magnitude, std::int32_t overflow) {
  const hn::RebindToFloat<DI> d;
  const auto set = [&](std::uint32_t bits) HWY_ATTR { return hn::Set(di, static_cast<std::int32_t>(bits)); };
  const auto half = hn::Set(d, 0.5f);
  const VI infinity = set(0x7F800000);
  const VI shifted = hn::ShiftRight<13>(magnitude);
  const VI biased = hn::Add(magnitude, set(0xFFFu - (112u << 23)));
  const VI normal = hn::ShiftRight<13>(hn::Add(biased, hn::And(shifted, set(1))));
  const VI tiny = hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(di, half));
  const VI nan = hn::Or(hn::And(shifted, set(0x3FF)), set(0x7E00));
  VI result = hn::IfThenElse(hn::Lt(magnitude, set(std::bit_cast<std::uint32_t>(fp16::smallest_normal))), tiny, normal);
  result = hn::IfThenElse(hn::Lt(magnitude, set(std::bit_cast<std::uint32_t>(fp16::smallest_overflow))), result,
                          hn::Set(di, overflow));
  result = hn::IfThenElse(hn::Lt(magnitude, infinity), result, set(0x7C00));
  return hn::IfThenElse(hn::Gt(magnitude, infinity), nan, result);
}

// Narrows n weights to 16 bits, counting on the way. round(d, v) gives their bits; `smallest_normal` are those of the
// smallest normal number. Counts of results are kept in 16 bits, in vectors of half the size.
template <class Source, class Round>
HWY_INLINE void narrow_each(const std::byte* HWY_RESTRICT w, std::size_t n, float smallest_overflow,
                            std::int16_t smallest_normal, std::uint16_t* HWY_RESTRICT out, CastCounts& counts,
                            Round round) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  const hn::RebindToSigned<decltype(d16)> di16;
  static_assert(tile_weights < 32768, "or a count could overflow, even in one lane");
  auto largest = hn::Zero(di), zero_weights = hn::Zero(di);
  auto zeros = hn::Zero(di16), small = hn::Zero(di16);
  const auto step = [&](const std::byte* from, std::size_t i) HWY_ATTR {
    const auto v = Source::load(d, from, i);
    const auto magnitude = hn::And(hn::BitCast(di, v), hn::Set(di, 0x7FFFFFFF));
    largest = hn::Max(largest, magnitude);
    zero_weights = hn::Sub(zero_weights, hn::VecFromMask(di, hn::Eq(magnitude, hn::Zero(di))));  // true is -1
    const auto result = round(d, v);
    const auto rounded = hn::And(hn::BitCast(di16, result), hn::Set(di16, 0x7FFF));
    zeros = hn::Sub(zeros, hn::VecFromMask(di16, hn::Eq(rounded, hn::Zero(di16))));
    small = hn::Sub(small, hn::VecFromMask(di16, hn::Lt(rounded, hn::Set(di16, smallest_normal))));
    return result;
  };

  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(step(w, i), d16, out + i);
  if (i < n) {
    HWY_ALIGN std::byte last[hn::MaxLanes(d) * Source::size] = {};  // zeros are not counted
    HWY_ALIGN std::uint16_t result[hn::MaxLanes(d)];
    std::memcpy(last, w + i * Source::size, (n - i) * Source::size);
    hn::StoreU(step(last, 0), d16, result);
    std::copy_n(result, n - i, out + i);
  }
  const auto total = [](auto tag, auto count) HWY_ATTR {
    HWY_ALIGN hn::TFromD<decltype(tag)> lane[hn::MaxLanes(tag)];
    hn::Store(count, tag, lane);
    std::uint32_t sum = 0;
    for (std::size_t k = 0; k < hn::Lanes(tag); ++k) sum += static_cast<std::uint32_t>(lane[k]);
    return sum;
  };
  const std::uint32_t zero_results = total(di16, zeros);
  counts.special = hn::GetLane(hn::MaxOfLanes(di, largest)) >= std::bit_cast<std::int32_t>(smallest_overflow);
  counts.underflow = zero_results - total(di, zero_weights);
  counts.subnormal = total(di16, small) - zero_results;
}

// The bits of v from those of its magnitude: what bf16_bits() and fp16_bits() leave.
template <class D, class VI> HWY_INLINE auto with_sign(D /*d*/, hn::Vec<D> v, VI magnitude_bits) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto sign = hn::And(hn::ShiftRight<16>(hn::BitCast(di, v)), hn::Set(di, 0x8000));
  return hn::DemoteTo(d16, hn::Or(magnitude_bits, sign));  // saturates, and nothing is above 0xFFFF
}

// Widens n 16-bit values.
template <class Source>
HWY_INLINE void widen_each(const std::uint16_t* HWY_RESTRICT in, std::size_t n, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, 16> d;
  const auto* const w = reinterpret_cast<const std::byte*>(in);
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) hn::StoreU(Source::load(d, w, i), d, out + i);
  for (; i < n; ++i) out[i] = Source::value(w, i);
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
