#include "nibble/fp16.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "nibble/error.hpp"
#include "quant/codecs/casts/cast.hpp"
#include "quant/simd/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/codecs/casts/fp16.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/codecs/casts/cast-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::fp16::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Source>
HWY_INLINE void narrow(const std::byte* HWY_RESTRICT w, std::size_t n, std::uint16_t overflow,
                       std::uint16_t* HWY_RESTRICT out, CastCounts& counts) {
  namespace cast = nibble::HWY_NAMESPACE;
  const auto round = [&](auto d, auto v) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    return cast::with_sign(d, v, cast::fp16_bits(di, hn::And(hn::BitCast(di, v), hn::Set(di, 0x7FFFFFFF)), overflow));
  };
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  // One instruction, which makes infinities of what overflows.
  if (overflow == 0x7C00) {
    const auto round_here = [](auto d, auto v) HWY_ATTR {
      const hn::Rebind<hwy::float16_t, decltype(d)> df16;
      return hn::BitCast(hn::RebindToUnsigned<decltype(df16)>(), hn::DemoteTo(df16, v));
    };
    return cast::narrow_each<Source>(w, n, smallest_overflow, 0x400, out, counts, round_here);
  }
#endif
  cast::narrow_each<Source>(w, n, smallest_overflow, 0x400, out, counts, round);
}

void narrow_f32(const std::byte* HWY_RESTRICT w, std::size_t n, std::uint16_t overflow, std::uint16_t* HWY_RESTRICT out,
                CastCounts& counts) {
  narrow<nibble::HWY_NAMESPACE::F32>(w, n, overflow, out, counts);
}
void narrow_bf16(const std::byte* HWY_RESTRICT w, std::size_t n, std::uint16_t overflow,
                 std::uint16_t* HWY_RESTRICT out, CastCounts& counts) {
  narrow<nibble::HWY_NAMESPACE::Bf16>(w, n, overflow, out, counts);
}
void narrow_f16(const std::byte* HWY_RESTRICT w, std::size_t n, std::uint16_t overflow, std::uint16_t* HWY_RESTRICT out,
                CastCounts& counts) {
  narrow<nibble::HWY_NAMESPACE::F16>(w, n, overflow, out, counts);
}

void widen_vectors(const std::uint16_t* HWY_RESTRICT in, std::size_t n, float* HWY_RESTRICT out) {
  nibble::HWY_NAMESPACE::widen_each<nibble::HWY_NAMESPACE::F16>(in, n, out);
}

}  // namespace nibble::fp16::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace fp16 {

HWY_EXPORT(narrow_f32);
HWY_EXPORT(narrow_bf16);
HWY_EXPORT(narrow_f16);
HWY_EXPORT(widen_vectors);

namespace {

Findings encode_from(DType source, std::span<const std::byte> weights, std::span<std::uint16_t> out,
                     OnOverflow on_overflow) {
  const std::uint16_t overflow = on_overflow == OnOverflow::clamp ? 0x7BFF : 0x7C00;
  const auto narrow_here = loop_of(source, HWY_DYNAMIC_DISPATCH(narrow_f32), HWY_DYNAMIC_DISPATCH(narrow_bf16),
                                   HWY_DYNAMIC_DISPATCH(narrow_f16));
  return count_casts(source, weights, smallest_overflow, [&](std::size_t i, auto bytes, CastCounts& counts) {
    narrow_here(bytes.data(), std::min(tile_weights, out.size() - i), overflow, out.data() + i, counts);
  });
}

}  // namespace

Findings encode(std::span<const float> weights, std::span<std::uint16_t> out, OnOverflow on_overflow) {
  check_same_size("fp16", weights.size(), out.size());
  return encode_from(DType::f32, std::as_bytes(weights), out, on_overflow);
}

void decode(std::span<const std::uint16_t> in, std::span<float> weights) {
  check_same_size("fp16", in.size(), weights.size());
  HWY_DYNAMIC_DISPATCH(widen_vectors)(in.data(), in.size(), weights.data());
}

}  // namespace fp16

namespace {

struct Fp16 {
  using Stored = std::uint16_t;
  static constexpr DType dtype = DType::f16;
  static constexpr double normal_sqnr_db = 73.7;  // of 2^22 fp32 weights, 0.001 <= standard deviation <= 2; by torch

  static Findings encode(DType source, std::span<const std::byte> weights, std::span<Stored> out,
                         OnOverflow on_overflow) {
    return narrow_tile(source, weights,
                       [&](DType type, auto bytes) { return fp16::encode_from(type, bytes, out, on_overflow); });
  }
};

constexpr std::array<std::string_view, 3> fp16_synonyms{"float16", "f16", "half"};

}  // namespace

extern const RegisteredCodec fp16_codec;
const RegisteredCodec fp16_codec{{"fp16", "Cast to IEEE half precision, rounded to nearest even", {}},
                                 &make_of_spec<CastCodecOf<Fp16>>,
                                 fp16_synonyms};

}  // namespace nibble
#endif
