#include "nibble/bf16.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>

#include "nibble/error.hpp"
#include "quant/codecs/casts/cast.hpp"
#include "quant/simd/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/codecs/casts/bf16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/codecs/casts/cast-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::bf16::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Source>
HWY_INLINE void narrow(const std::byte* HWY_RESTRICT w, std::size_t n, std::uint16_t* HWY_RESTRICT out,
                       CastCounts& counts) {
  namespace cast = nibble::HWY_NAMESPACE;
  const auto round = [](auto d, auto v) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    return cast::with_sign(d, v, cast::bf16_bits(di, hn::And(hn::BitCast(di, v), hn::Set(di, 0x7FFFFFFF))));
  };
  cast::narrow_each<Source>(w, n, smallest_overflow, 0x80, out, counts, round);
}

void narrow_f32(const std::byte* HWY_RESTRICT w, std::size_t n, std::uint16_t* HWY_RESTRICT out, CastCounts& counts) {
  narrow<nibble::HWY_NAMESPACE::F32>(w, n, out, counts);
}
void narrow_bf16(const std::byte* HWY_RESTRICT w, std::size_t n, std::uint16_t* HWY_RESTRICT out, CastCounts& counts) {
  narrow<nibble::HWY_NAMESPACE::Bf16>(w, n, out, counts);
}
void narrow_f16(const std::byte* HWY_RESTRICT w, std::size_t n, std::uint16_t* HWY_RESTRICT out, CastCounts& counts) {
  narrow<nibble::HWY_NAMESPACE::F16>(w, n, out, counts);
}

void widen_vectors(const std::uint16_t* HWY_RESTRICT in, std::size_t n, float* HWY_RESTRICT out) {
  nibble::HWY_NAMESPACE::widen_each<nibble::HWY_NAMESPACE::Bf16>(in, n, out);
}

}  // namespace nibble::bf16::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace bf16 {

HWY_EXPORT(narrow_f32);
HWY_EXPORT(narrow_bf16);
HWY_EXPORT(narrow_f16);
HWY_EXPORT(widen_vectors);

namespace {

Findings encode_from(DType source, std::span<const std::byte> weights, std::span<std::uint16_t> out) {
  const auto narrow_here = loop_of(source, HWY_DYNAMIC_DISPATCH(narrow_f32), HWY_DYNAMIC_DISPATCH(narrow_bf16),
                                   HWY_DYNAMIC_DISPATCH(narrow_f16));
  return count_casts(source, weights, smallest_overflow, [&](std::size_t i, auto bytes, CastCounts& counts) {
    narrow_here(bytes.data(), std::min(tile_weights, out.size() - i), out.data() + i, counts);
  });
}

}  // namespace

Findings encode(std::span<const float> weights, std::span<std::uint16_t> out) {
  check_same_size("bf16", weights.size(), out.size());
  return encode_from(DType::f32, std::as_bytes(weights), out);
}

void decode(std::span<const std::uint16_t> in, std::span<float> weights) {
  check_same_size("bf16", in.size(), weights.size());
  HWY_DYNAMIC_DISPATCH(widen_vectors)(in.data(), in.size(), weights.data());
}

}  // namespace bf16

namespace {

struct Bf16 {
  using Stored = std::uint16_t;
  static constexpr DType dtype = DType::bf16;
  static constexpr double normal_sqnr_db = 55.6;  // of 2^22 fp32 weights, 0.001 <= standard deviation <= 2; by torch

  static Findings encode(DType source, std::span<const std::byte> weights, std::span<Stored> out,
                         OnOverflow on_overflow) {
    const Findings found =
        narrow_tile(source, weights, [&](DType type, auto bytes) { return bf16::encode_from(type, bytes, out); });
    if (found.overflow > 0 && on_overflow == OnOverflow::clamp)
      for_each_overflow(
          source, weights, [&](std::size_t i) { return (out[i] & 0x7FFF) == 0x7F80; },
          [&](std::size_t i, bool negative) { out[i] = negative ? 0xFF7F : 0x7F7F; });
    return found;
  }
};

constexpr std::array<std::string_view, 1> bf16_synonyms{"bfloat16"};

}  // namespace

extern const RegisteredCodec bf16_codec;
const RegisteredCodec bf16_codec{
    {"bf16", "Cast to bfloat16, rounded to nearest even", {}}, &make_of_spec<CastCodecOf<Bf16>>, bf16_synonyms};

}  // namespace nibble
#endif
