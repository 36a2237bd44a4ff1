#include "nibble/fp16.hpp"

#include <algorithm>
#include <string>

#include "nibble/error.hpp"
#include "quant/cast.hpp"
#include "quant/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/fp16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/cast-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::fp16::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void narrow(const float* HWY_RESTRICT w, std::size_t n, std::uint16_t overflow, std::uint16_t* HWY_RESTRICT out,
            CastCounts& counts) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto set = [&](std::uint32_t bits) HWY_ATTR { return hn::Set(di, static_cast<std::int32_t>(bits)); };
  const auto half = hn::Set(d, 0.5f);
  const auto infinity = set(0x7F800000);
  const auto convert = [&](auto magnitude) HWY_ATTR {  // from_float(), every case and then a choice
    const auto shifted = hn::ShiftRight<13>(magnitude);
    const auto biased = hn::Add(magnitude, set(0xFFFu - (112u << 23)));
    const auto normal = hn::ShiftRight<13>(hn::Add(biased, hn::And(shifted, set(1))));
    const auto tiny = hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(di, half));
    const auto nan = hn::Or(hn::And(shifted, set(0x3FF)), set(0x7E00));
    auto result = hn::IfThenElse(hn::Lt(magnitude, set(std::bit_cast<std::uint32_t>(smallest_normal))), tiny, normal);
    result =
        hn::IfThenElse(hn::Lt(magnitude, set(std::bit_cast<std::uint32_t>(smallest_overflow))), result, set(overflow));
    result = hn::IfThenElse(hn::Lt(magnitude, infinity), result, set(0x7C00));
    return hn::IfThenElse(hn::Gt(magnitude, infinity), nan, result);
  };
  nibble::HWY_NAMESPACE::narrow_each(w, n, smallest_overflow, 0x400, out, counts, convert);
}

void widen_vectors(const std::uint16_t* HWY_RESTRICT in, std::size_t n, float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto infinity = hn::Set(di, 0x7C00 << 13);
  const auto convert = [&](auto bits) HWY_ATTR {  // to_float(), likewise
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(di, 0x7FFF)));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(di, 0x8000)));
    const auto normal = hn::Add(magnitude, hn::Set(di, 112 << 23));
    const auto one = hn::BitCast(d, hn::Or(magnitude, hn::Set(di, 113 << 23)));
    const auto tiny = hn::BitCast(di, hn::Sub(one, hn::Set(d, smallest_normal)));
    const auto quiet = hn::And(hn::VecFromMask(di, hn::Gt(magnitude, infinity)), hn::Set(di, 0x400000));
    const auto special = hn::Or(hn::Or(magnitude, hn::Set(di, 0x7F800000)), quiet);
    const auto finite = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x400 << 13)), tiny, normal);
    return hn::Or(hn::IfThenElse(hn::Lt(magnitude, infinity), finite, special), sign);
  };
  nibble::HWY_NAMESPACE::widen_each(in, n, out, convert, [](std::uint16_t bits) { return to_float(bits); });
}

}  // namespace nibble::fp16::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace fp16 {

HWY_EXPORT(narrow);
HWY_EXPORT(widen_vectors);

Findings encode(std::span<const float> weights, std::span<std::uint16_t> out, OnOverflow on_overflow) {
  check_same_size("fp16", weights.size(), out.size());
  const std::uint16_t overflow = on_overflow == OnOverflow::clamp ? 0x7BFF : 0x7C00;
  const auto narrow_here = HWY_DYNAMIC_DISPATCH(narrow);
  return count_casts(weights, smallest_overflow, [&](std::size_t i, std::size_t n, CastCounts& counts) {
    narrow_here(&weights[i], n, overflow, &out[i], counts);
  });
}

void decode(std::span<const std::uint16_t> in, std::span<float> weights) {
  check_same_size("fp16", in.size(), weights.size());
  HWY_DYNAMIC_DISPATCH(widen_vectors)(in.data(), in.size(), weights.data());
}

}  // namespace fp16

namespace {

struct Fp16 {
  using Stored = std::uint16_t;
  static constexpr std::string_view name = "fp16";
  static constexpr std::string_view summary = "Cast to IEEE half precision, rounded to nearest even";
  static constexpr DType dtype = DType::f16;
  OnOverflow on_overflow;

  Findings encode(DType source, std::span<const std::byte> weights, std::span<Stored> out) const {
    return narrow_tile(source, weights,
                       [&](std::span<const float> tile) { return fp16::encode(tile, out, on_overflow); });
  }
};

}  // namespace

std::unique_ptr<const Codec> make_fp16(const CodecOptions& options) {
  return std::make_unique<CastCodec<Fp16>>(Fp16{options.on_overflow});
}

}  // namespace nibble
#endif
