#include "nibble/bf16.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "nibble/error.hpp"
#include "quant/cast.hpp"
#include "quant/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/bf16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/cast-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::bf16::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void narrow(const float* HWY_RESTRICT w, std::size_t n, std::uint16_t* HWY_RESTRICT out, CastCounts& counts) {
  const hn::RebindToSigned<hn::ScalableTag<float>> di;
  const auto convert = [&](auto magnitude) HWY_ATTR {  // from_float()
    const auto shifted = hn::ShiftRight<16>(magnitude);
    const auto biased = hn::Add(magnitude, hn::Set(di, 0x7FFF));
    const auto rounded = hn::ShiftRight<16>(hn::Add(biased, hn::And(shifted, hn::Set(di, 1))));
    const auto nan = hn::Or(shifted, hn::Set(di, 0x40));
    return hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7F800000)), nan, rounded);
  };
  nibble::HWY_NAMESPACE::narrow_each(w, n, smallest_overflow, 0x80, out, counts, convert);
}

void widen_vectors(const std::uint16_t* HWY_RESTRICT in, std::size_t n, float* HWY_RESTRICT out) {
  const auto convert = [](auto bits) HWY_ATTR { return hn::ShiftLeft<16>(bits); };
  nibble::HWY_NAMESPACE::widen_each(in, n, out, convert, [](std::uint16_t bits) { return to_float(bits); });
}

}  // namespace nibble::bf16::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace bf16 {

HWY_EXPORT(narrow);
HWY_EXPORT(widen_vectors);

Findings encode(std::span<const float> weights, std::span<std::uint16_t> out) {
  check_same_size("bf16", weights.size(), out.size());
  const auto narrow_here = HWY_DYNAMIC_DISPATCH(narrow);
  return count_casts(weights, smallest_overflow, [&](std::size_t i, std::size_t n, CastCounts& counts) {
    narrow_here(&weights[i], n, &out[i], counts);
  });
}

void decode(std::span<const std::uint16_t> in, std::span<float> weights) {
  check_same_size("bf16", in.size(), weights.size());
  HWY_DYNAMIC_DISPATCH(widen_vectors)(in.data(), in.size(), weights.data());
}

}  // namespace bf16

namespace {

struct Bf16 {
  using Stored = std::uint16_t;
  static constexpr std::string_view name = "bf16";
  static constexpr std::string_view summary = "Cast to bfloat16, rounded to nearest even";
  static constexpr DType dtype = DType::bf16;

  Findings encode(DType source, std::span<const std::byte> weights, std::span<Stored> out) const {
    return narrow_tile(source, weights, [&](std::span<const float> tile) { return bf16::encode(tile, out); });
  }
};

}  // namespace

std::unique_ptr<const Codec> make_bf16(const CodecOptions&) { return std::make_unique<CastCodec<Bf16>>(Bf16{}); }

}  // namespace nibble
#endif
