// FP8: 8-bit floating point, as in torch.float8_e4m3fn and torch.float8_e5m2 (docs/fp8.md).
//
//   code = weight / scale, rounded to fp32 and then to the format, ties to even; what is too large becomes the largest
//   weight = code * scale, rounded once to fp32
//
// Source: Micikevicius et al., "FP8 Formats for Deep Learning", 2022.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "nibble/error.hpp"
#include "nibble/fp8.hpp"
#include "quant/codecs/codecs.hpp"
#include "quant/codecs/normal.hpp"
#include "quant/codecs/scaled.hpp"
#include "quant/simd/magnitude.hpp"
#include "quant/simd/widen.hpp"

#ifndef NIBBLE_FP8_FORMATS  // once for all targets
#define NIBBLE_FP8_FORMATS
namespace nibble::fp8 {

// A format, as the bits of its mantissa and the bias of its exponent.
struct Layout {
  int mantissa_bits;
  int bias;
  float largest;  // magnitude of a finite number

  [[nodiscard]] constexpr float smallest_normal() const { return power_of_two(1 - bias); }
  // The step between numbers below smallest_normal().
  [[nodiscard]] constexpr float smallest() const { return power_of_two(1 - bias - mantissa_bits); }

  [[nodiscard]] static constexpr float power_of_two(int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  }
};

inline constexpr Layout e4m3{3, 7, largest(Format::e4m3)};   // 0x7F is NaN, and there is no infinity
inline constexpr Layout e5m2{2, 15, largest(Format::e5m2)};  // IEEE's rules: 0x7C is infinity, and what is above is NaN

}  // namespace nibble::fp8
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/codecs/fp8.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/codecs/casts/cast-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::fp8::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using nibble::HWY_NAMESPACE::Bf16;
using nibble::HWY_NAMESPACE::F16;
using nibble::HWY_NAMESPACE::F32;
namespace cast = nibble::HWY_NAMESPACE;

// The codes of finite numbers, in 32-bit lanes.
template <class Format, class D, class V> HWY_INLINE hn::Vec<hn::RebindToSigned<D>> code_of(D d, V number) {
  constexpr fp8::Layout format = Format::format;
  constexpr int dropped = 23 - format.mantissa_bits;  // bits of the mantissa
  const hn::RebindToSigned<D> di;
  const auto magnitude = hn::Min(hn::Abs(number), hn::Set(d, format.largest));
  const auto bits = hn::BitCast(di, magnitude);
  const auto odd = hn::And(hn::ShiftRight<dropped>(bits), hn::Set(di, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(di, (1 << (dropped - 1)) - 1)), odd);
  const auto normal =
      hn::Sub(hn::ShiftRight<dropped>(rounded), hn::Set(di, (127 - format.bias) << format.mantissa_bits));
  // Adding a number whose ulp is the smallest one rounds to multiples of that, and its last bits count them.
  const auto rounder = hn::Set(d, format.smallest() * 0x1p23f);
  const auto tiny = hn::Sub(hn::BitCast(di, hn::Add(magnitude, rounder)), hn::BitCast(di, rounder));
  const auto is_tiny = hn::RebindMask(di, hn::Lt(magnitude, hn::Set(d, format.smallest_normal())));
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(di, number)), hn::Set(di, 0x80));
  return hn::Or(hn::IfThenElse(is_tiny, tiny, normal), sign);
}

template <class Format, class Source>
HWY_INLINE void encode_run(const std::byte* HWY_RESTRICT w, std::size_t n, float scale,
                           std::uint8_t* HWY_RESTRICT codes) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<std::uint8_t, decltype(d)> d8;
  const auto divisor = hn::Set(d, scale);
  const auto step = [&](const std::byte* from, std::size_t i) HWY_ATTR {
    return hn::DemoteTo(d8, code_of<Format>(d, hn::Div(Source::load(d, from, i), divisor)));
  };
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(step(w, i), d8, codes + i);
  if (i < n) {
    HWY_ALIGN std::byte last[hn::MaxLanes(d) * Source::size] = {};
    HWY_ALIGN std::uint8_t result[hn::MaxLanes(d)];
    std::memcpy(last, w + i * Source::size, (n - i) * Source::size);
    hn::StoreU(step(last, 0), d8, result);
    std::copy_n(result, n - i, codes + i);
  }
}

// The numbers that codes stand for.
template <class Format, class D> HWY_INLINE hn::Vec<D> number_of(D d, const std::uint8_t* HWY_RESTRICT codes) {
  constexpr fp8::Layout format = Format::format;
  constexpr int dropped = 23 - format.mantissa_bits;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::uint8_t, D> d8;
  const auto code = hn::PromoteTo(di, hn::LoadU(d8, codes));
  const auto magnitude = hn::And(code, hn::Set(di, 0x7F));
  const auto mantissa = hn::ShiftLeft<dropped>(magnitude);
  const auto normal = hn::BitCast(d, hn::Add(mantissa, hn::Set(di, (127 - format.bias) << 23)));
  // Not from the bits of a subnormal number, because processors multiply those slowly.
  const auto tiny = hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, format.smallest()));
  const auto is_tiny = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(di, 1 << format.mantissa_bits)));
  const auto finite = hn::IfThenElse(is_tiny, tiny, normal);
  const auto special = hn::BitCast(d, hn::Or(mantissa, hn::Set(di, 0x7F800000)));
  const auto is_special = hn::RebindMask(d, hn::Gt(magnitude, hn::Set(di, Format::largest_code)));
  const auto sign = hn::BitCast(d, hn::ShiftLeft<24>(hn::And(code, hn::Set(di, 0x80))));
  return hn::Or(hn::IfThenElse(is_special, special, finite), sign);
}

// How decoded weights are stored: the type, and the bits of a vector of fp32 numbers.
struct ToF32 {
  using Type = float;
  template <class D> static HWY_INLINE auto narrow(D /*d*/, hn::Vec<D> weights) { return weights; }
};
struct ToBf16 {
  using Type = std::uint16_t;
  template <class D> static HWY_INLINE auto narrow(D d, hn::Vec<D> weights) {
    const hn::RebindToSigned<D> di;
    return cast::with_sign(d, weights, cast::bf16_bits(di, hn::BitCast(di, hn::Abs(weights))));
  }
};
struct ToF16 {
  using Type = std::uint16_t;
  template <class D> static HWY_INLINE auto narrow(D d, hn::Vec<D> weights) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::BitCast(hn::RebindToUnsigned<decltype(df16)>(), hn::DemoteTo(df16, weights));
#else
    const hn::RebindToSigned<D> di;
    return cast::with_sign(d, weights, cast::fp16_bits(di, hn::BitCast(di, hn::Abs(weights)), 0x7C00));
#endif
  }
};

template <class Format, class To>
HWY_INLINE void decode_run(const std::uint8_t* HWY_RESTRICT codes, std::size_t n, float scale,
                           std::byte* HWY_RESTRICT weights) {
  using Type = typename To::Type;
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<Type, decltype(d)> to;
  const auto factor = hn::Set(d, scale);
  auto* const out = reinterpret_cast<Type*>(weights);
  const auto step = [&](const std::uint8_t* from)
                        HWY_ATTR { return To::narrow(d, hn::Mul(number_of<Format>(d, from), factor)); };
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(step(codes + i), to, out + i);
  if (i < n) {
    HWY_ALIGN std::uint8_t last[hn::MaxLanes(d)] = {};
    HWY_ALIGN Type result[hn::MaxLanes(d)];
    std::copy_n(codes + i, n - i, last);
    hn::StoreU(step(last), to, result);
    std::memcpy(out + i, result, (n - i) * sizeof(Type));
  }
}

struct E4m3 {
  static constexpr fp8::Layout format = fp8::e4m3;
  static constexpr int largest_code = 0x7E;
};
struct E5m2 {
  static constexpr fp8::Layout format = fp8::e5m2;
  static constexpr int largest_code = 0x7B;
};

#define NIBBLE_FP8_OF(name, Format, type, Source, To)                                             \
  void encode_##name##_##type(const std::byte* HWY_RESTRICT w, std::size_t n, float scale,        \
                              std::uint8_t* HWY_RESTRICT codes) {                                 \
    encode_run<Format, Source>(w, n, scale, codes);                                               \
  }                                                                                               \
  void decode_##name##_##type(const std::uint8_t* HWY_RESTRICT codes, std::size_t n, float scale, \
                              std::byte* HWY_RESTRICT w) {                                        \
    decode_run<Format, To>(codes, n, scale, w);                                                   \
  }
#define NIBBLE_FP8(name, Format)                  \
  NIBBLE_FP8_OF(name, Format, f32, F32, ToF32)    \
  NIBBLE_FP8_OF(name, Format, bf16, Bf16, ToBf16) \
  NIBBLE_FP8_OF(name, Format, f16, F16, ToF16)
NIBBLE_FP8(e4m3, E4m3)
NIBBLE_FP8(e5m2, E5m2)
#undef NIBBLE_FP8
#undef NIBBLE_FP8_OF

}  // namespace nibble::fp8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace fp8 {

HWY_EXPORT(encode_e4m3_f32);
HWY_EXPORT(encode_e4m3_bf16);
HWY_EXPORT(encode_e4m3_f16);
HWY_EXPORT(encode_e5m2_f32);
HWY_EXPORT(encode_e5m2_bf16);
HWY_EXPORT(encode_e5m2_f16);
HWY_EXPORT(decode_e4m3_f32);
HWY_EXPORT(decode_e4m3_bf16);
HWY_EXPORT(decode_e4m3_f16);
HWY_EXPORT(decode_e5m2_f32);
HWY_EXPORT(decode_e5m2_bf16);
HWY_EXPORT(decode_e5m2_f16);

namespace {

void check_sizes(std::size_t weights, std::size_t codes) {
  if (weights != codes)
    throw Error(Errc::usage,
                "fp8: " + std::to_string(weights) + " weights do not fit " + std::to_string(codes) + " codes");
}

bool is_e4m3(const Layout& layout) { return layout.mantissa_bits == e4m3.mantissa_bits; }

}  // namespace

void encode(const Layout& layout, DType source, std::span<const std::byte> weights, float scale,
            std::span<std::byte> codes) {
  check_sizes(weights.size() / (traits(source).bits / 8), codes.size());
  const auto loop = is_e4m3(layout)
                        ? loop_of(source, HWY_DYNAMIC_DISPATCH(encode_e4m3_f32), HWY_DYNAMIC_DISPATCH(encode_e4m3_bf16),
                                  HWY_DYNAMIC_DISPATCH(encode_e4m3_f16))
                        : loop_of(source, HWY_DYNAMIC_DISPATCH(encode_e5m2_f32), HWY_DYNAMIC_DISPATCH(encode_e5m2_bf16),
                                  HWY_DYNAMIC_DISPATCH(encode_e5m2_f16));
  loop(weights.data(), codes.size(), scale, reinterpret_cast<std::uint8_t*>(codes.data()));
}

void decode(const Layout& layout, std::span<const std::byte> codes, float scale, DType to,
            std::span<std::byte> weights) {
  check_sizes(weights.size() / (traits(to).bits / 8), codes.size());
  const auto loop = is_e4m3(layout)
                        ? loop_of(to, HWY_DYNAMIC_DISPATCH(decode_e4m3_f32), HWY_DYNAMIC_DISPATCH(decode_e4m3_bf16),
                                  HWY_DYNAMIC_DISPATCH(decode_e4m3_f16))
                        : loop_of(to, HWY_DYNAMIC_DISPATCH(decode_e5m2_f32), HWY_DYNAMIC_DISPATCH(decode_e5m2_bf16),
                                  HWY_DYNAMIC_DISPATCH(decode_e5m2_f16));
  loop(reinterpret_cast<const std::uint8_t*>(codes.data()), codes.size(), scale, weights.data());
}

namespace {

const Layout& layout_of(Format format) { return format == Format::e4m3 ? e4m3 : e5m2; }

}  // namespace

void encode(Format format, std::span<const float> weights, float scale, std::span<std::uint8_t> codes) {
  encode(layout_of(format), DType::f32, std::as_bytes(weights), scale, std::as_writable_bytes(codes));
}

float encode(Format format, std::span<const float> weights, std::span<std::uint8_t> codes) {
  const auto scale_of = [format](float absmax) {
    const float scale = absmax / largest(format);
    return scale != 0 ? scale : std::numeric_limits<float>::epsilon();
  };
  const float all = largest_magnitude(DType::f32, std::as_bytes(weights));
  if (std::isfinite(all)) {
    const float scale = scale_of(all);
    encode(format, weights, scale, codes);
    return scale;
  }
  check_sizes(weights.size(), codes.size());
  float absmax = 0;
  for (const float weight : weights)
    if (std::isfinite(weight)) absmax = std::max(absmax, std::abs(weight));
  const float scale = scale_of(absmax);
  std::array<float, 256> finite;
  for (std::size_t first = 0; first < weights.size(); first += finite.size()) {
    const auto part = weights.subspan(first, std::min(finite.size(), weights.size() - first));
    std::ranges::transform(part, finite.begin(), [&](float weight) {
      return std::isnan(weight) ? 0.0f : std::clamp(weight, -absmax, absmax);
    });
    encode(format, std::span(finite).first(part.size()), scale, codes.subspan(first, part.size()));
  }
  return scale;
}

void decode(Format format, std::span<const std::uint8_t> codes, float scale, std::span<float> weights) {
  decode(layout_of(format), std::as_bytes(codes), scale, DType::f32, std::as_writable_bytes(weights));
}

}  // namespace fp8

namespace {

constexpr std::string_view format_option = "format", scales_option = "scales";
constexpr std::array<std::string_view, 2> fp8_formats{"e4m3", "e5m2"};
constexpr std::array<std::string_view, 3> fp8_scales{"row", "tensor", "block"};
constexpr std::array fp8_granularities{Granularity::row, Granularity::tensor, Granularity::tile};

constexpr std::array<CodecOption, 2> fp8_options{
    {{format_option, "number of exponent and mantissa bits", fp8_formats, 0},
     {scales_option, "weights that share a scale; a block has 128 rows and 128 columns", fp8_scales, 0}}};

class Fp8Codec final : public ScaledCodec {
 public:
  explicit Fp8Codec(const CodecSpec& spec)
      : ScaledCodec(spec),
        is_e5m2_(spec.index(format_option) == 1),
        granularity_(fp8_granularities.at(spec.index(scales_option))) {}

  Granularity granularity() const noexcept override { return granularity_; }
  DType code_type() const noexcept override { return is_e5m2_ ? DType::f8_e5m2 : DType::f8_e4m3; }
  float largest() const noexcept override { return layout().largest; }
  void encode(DType source, std::span<const std::byte> weights, float scale,
              std::span<std::byte> codes) const override {
    fp8::encode(layout(), source, weights, scale, codes);
  }
  Decode decode_of_region() const noexcept override {
    return is_e5m2_ ? Decode([](auto codes, float scale, DType to, auto weights) {
      fp8::decode(fp8::e5m2, codes, scale, to, weights);
    })
                    : Decode([](auto codes, float scale, DType to, auto weights) {
                        fp8::decode(fp8::e4m3, codes, scale, to, weights);
                      });
  }
  double normal_sqnr_db(const TensorInfo& tensor) const override;

 private:
  const fp8::Layout& layout() const noexcept { return is_e5m2_ ? fp8::e5m2 : fp8::e4m3; }

  bool is_e5m2_;
  Granularity granularity_;
};

// The error of a number is proportional to it, so it hardly depends on the scale. Normal numbers between -a and a,
// scaled so that a becomes the largest code, were integrated over each code's interval, and over the distribution of a
// for 4096 to 2^28 of them: 31.53 and 25.56 dB, give or take 0.03. The largest number of each region is exact, which
// matters in small regions. The result is within 0.07 dB for 16 weights and 0.03 from 64 on
// (tests/quant/codecs/fp8_test.cpp).
double Fp8Codec::normal_sqnr_db(const TensorInfo& tensor) const {
  if (!accepts(tensor)) return Codec::normal_sqnr_db(tensor);
  const Regions regions(granularity_, tensor);
  const auto n = static_cast<double>(std::min(regions.height(), tensor.shape[0])) *
                 static_cast<double>(std::min(regions.width(), tensor.shape[1]));
  if (n < 16) return Codec::normal_sqnr_db(tensor);
  return (is_e5m2_ ? 25.56 : 31.53) - 10 * std::log10(1 - mean_square_of_largest(n) / n);
}

constexpr std::array<std::string_view, 4> fp8_synonyms{"float8", "f8", "e4m3", "float8_e4m3fn"};

}  // namespace

extern const RegisteredCodec fp8_codec;
const RegisteredCodec fp8_codec{{"fp8", "8-bit floating point with a scale per row, block or tensor", fp8_options},
                                &make_of_spec<Fp8Codec>,
                                fp8_synonyms};

}  // namespace nibble
#endif
