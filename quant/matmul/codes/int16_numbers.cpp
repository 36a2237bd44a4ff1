// Numbers in bf16 as integers of 16 bits, compiled once per CPU target.
#include "quant/matmul/codes/int16_numbers.hpp"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/matmul/codes/int16_numbers.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace nibble::matmul::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<D>;
using DU = hn::RebindToUnsigned<D>;
using DI16 = hn::Rebind<std::int16_t, D>;
using DU16 = hn::Rebind<std::uint16_t, D>;
constexpr std::size_t count = Int16Numbers::count;
constexpr int bits = 15;  // of the largest number

// The bits of some of the numbers.
HWY_INLINE hn::Vec<DU> load(const std::byte* HWY_RESTRICT bf16, std::size_t at) {
  return hn::PromoteTo(DU(), hn::LoadU(DU16(), reinterpret_cast<const std::uint16_t*>(bf16) + at));
}

Int16Numbers convert(const std::byte* HWY_RESTRICT bf16) {
  const D d;
  const DI di;
  const DI16 di16;
  const std::size_t lanes = hn::Lanes(d);
  const auto magnitude = [&](std::size_t at)
                             HWY_ATTR { return hn::BitCast(di, hn::And(load(bf16, at), hn::Set(DU(), 0x7FFF))); };
  auto largest = hn::Zero(di);
  for (std::size_t i = 0; i < count; i += lanes) largest = hn::Max(largest, magnitude(i));
  const int exponent = hn::GetLane(hn::MaxOfLanes(di, largest)) >> 7;  // biased
  auto sum = hn::Zero(di), nonzero = hn::Zero(di);  // the sum of the distances of exponents from that, and their number
  for (std::size_t i = 0; i < count; i += lanes) {
    const auto number = magnitude(i);
    const auto distance = hn::Sub(hn::Set(di, exponent), hn::ShiftRight<7>(number));
    const auto is_zero = hn::Eq(number, hn::Zero(di));
    sum = hn::Add(sum, hn::IfThenZeroElse(is_zero, distance));
    nonzero = hn::Add(nonzero, hn::IfThenZeroElse(is_zero, hn::Set(di, 1)));
  }
  const int distances = hn::GetLane(hn::SumOfLanes(di, sum));
  const int nonzeros = hn::GetLane(hn::SumOfLanes(di, nonzero));
  const bool suffices = exponent < 255 && distances <= 18 * nonzeros;
  const bool has_second = suffices && distances > 6 * nonzeros;

  const int shift = bits - 1 + 127 - exponent;
  constexpr float unit = 1 << bits;  // of the second part, in units of the first one
  Int16Numbers numbers;
  numbers.first_scale = suffices ? std::ldexp(1.0f, -shift) : std::numeric_limits<float>::quiet_NaN();
  numbers.second_scale = has_second ? std::ldexp(1.0f, -shift) / unit : 0;
  // 2^shift may be above the range of fp32, so there are two factors.
  const auto factor = hn::Set(d, std::ldexp(1.0f, shift / 2));
  const auto other = hn::Set(d, std::ldexp(1.0f, shift - shift / 2));
  const auto second_unit = hn::Set(d, has_second ? unit : 0);
  for (std::size_t i = 0; i < count; i += lanes) {
    const auto number = hn::BitCast(d, hn::ShiftLeft<16>(load(bf16, i)));
    const auto scaled = hn::Mul(hn::Mul(number, factor), other);
    const auto first = hn::NearestInt(scaled);
    const auto rest = hn::Mul(hn::Sub(scaled, hn::ConvertTo(d, first)), second_unit);
    hn::StoreU(hn::DemoteTo(di16, first), di16, numbers.first.data() + i);
    hn::StoreU(hn::DemoteTo(di16, hn::NearestInt(rest)), di16, numbers.second.data() + i);
  }
  return numbers;
}

}  // namespace nibble::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::matmul {

HWY_EXPORT(convert);

Int16Numbers to_int16(const std::byte* bf16) { return HWY_DYNAMIC_DISPATCH(convert)(bf16); }

}  // namespace nibble::matmul
#endif
