// LLM.int8's rows: the loops, and the handling of weights that they cannot encode.

#include "nibble/int8.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "nibble/error.hpp"
#include "nibble/fp16.hpp"
#include "quant/codecs/codecs.hpp"
#include "quant/codecs/int8_rows.hpp"
#include "quant/codecs/normal.hpp"
#include "quant/simd/magnitude.hpp"
#include "quant/simd/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/codecs/int8.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/codecs/int8-inl.hpp"
#include "quant/simd/source-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::int8::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using nibble::HWY_NAMESPACE::Bf16;
using nibble::HWY_NAMESPACE::F16;
using nibble::HWY_NAMESPACE::F32;

// To fp16 and back, for magnitudes that it can hold.
template <class D, class V> HWY_INLINE V through_fp16(D d, V weight) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  const hn::Rebind<hwy::float16_t, D> df16;
  return hn::PromoteTo(d, hn::DemoteTo(df16, weight));
#else
  // 10 mantissa bits, and below 2^-14 multiples of 2^-24, the ulp of 0.5.
  const hn::RebindToSigned<D> di;
  const auto half = hn::Set(d, 0.5f);
  const auto magnitude = hn::Abs(weight);
  const auto bits = hn::BitCast(di, magnitude);
  const auto odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(di, 1));
  const auto up = hn::Add(hn::Add(bits, hn::Set(di, 0xFFF)), odd);
  const auto normal = hn::BitCast(d, hn::And(up, hn::Set(di, ~0x1FFF)));
  const auto tiny = hn::Sub(hn::Add(magnitude, half), half);
  const auto rounded = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, fp16::smallest_normal)), tiny, normal);
  return hn::CopySign(rounded, weight);
#endif
}

// Weights that fp16 can hold, times scale; codes beyond +-127 are clamped.
template <class Source>
HWY_INLINE void quantize_row(const std::byte* HWY_RESTRICT w, std::size_t n, float scale,
                             std::int8_t* HWY_RESTRICT codes) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  const auto factor = hn::Set(d, scale);
  const auto rounder = hn::Set(d, 12582912.0f);  // 1.5 * 2^23 has an ulp of 1: adding it rounds, halves to even
  const auto step = [&](const std::byte* from, std::size_t i) HWY_ATTR {
    const auto weight = Source::load(d, from, i);
    const auto product = hn::Mul(std::is_same_v<Source, F16> ? weight : through_fp16(d, weight), factor);
    const auto code = hn::Sub(hn::BitCast(di, hn::Add(product, rounder)), hn::BitCast(di, rounder));
    return hn::Max(hn::DemoteTo(d8, code), hn::Set(d8, -127));  // DemoteTo clamps to [-128, 127]
  };
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(step(w, i), d8, codes + i);
  if (i < n) {
    HWY_ALIGN std::byte last[hn::MaxLanes(d) * Source::size] = {};
    HWY_ALIGN std::int8_t result[hn::MaxLanes(d)];
    std::memcpy(last, w + i * Source::size, (n - i) * Source::size);
    hn::StoreU(step(last, 0), d8, result);
    std::copy_n(result, n - i, codes + i);
  }
}

void dequantize_row(const std::int8_t* HWY_RESTRICT codes, std::size_t n, float absmax, float* HWY_RESTRICT weights) {
  const hn::CappedTag<float, 16> d;
  const auto scale = hn::Set(d, absmax), unit = hn::Set(d, inverse_127);
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(decode(d, codes + i, scale, unit), d, weights + i);
  for (; i < n; ++i) weights[i] = static_cast<float>(codes[i]) * absmax * inverse_127;
}

#define NIBBLE_QUANTIZE_ROW_OF(name, Source)                                            \
  void quantize_row_##name(const std::byte* HWY_RESTRICT w, std::size_t n, float scale, \
                           std::int8_t* HWY_RESTRICT codes) {                           \
    quantize_row<Source>(w, n, scale, codes);                                           \
  }
NIBBLE_QUANTIZE_ROW_OF(f32, F32)
NIBBLE_QUANTIZE_ROW_OF(bf16, Bf16)
NIBBLE_QUANTIZE_ROW_OF(f16, F16)
#undef NIBBLE_QUANTIZE_ROW_OF

}  // namespace nibble::int8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace int8 {

HWY_EXPORT(quantize_row_f32);
HWY_EXPORT(quantize_row_bf16);
HWY_EXPORT(quantize_row_f16);
HWY_EXPORT(dequantize_row);

namespace {

void check_same_size(std::size_t weights, std::size_t codes) {
  if (weights != codes)
    throw Error(Errc::usage,
                "int8: " + std::to_string(weights) + " weights do not fit " + std::to_string(codes) + " codes");
}

// F64 is widened before.
auto quantize_row_of(DType source) {
  return loop_of(source, HWY_DYNAMIC_DISPATCH(quantize_row_f32), HWY_DYNAMIC_DISPATCH(quantize_row_bf16),
                 HWY_DYNAMIC_DISPATCH(quantize_row_f16));
}

float scale_of(float absmax) { return absmax == 0.0f ? 0.0f : 1.0f / absmax * 127.0f; }

}  // namespace

float repaired(float weight, float absmax) {
  if (std::isnan(weight)) return 0.0f;
  const float limit = std::isinf(weight) ? absmax : fp16::largest;
  return std::clamp(weight, -limit, limit);
}

float row_absmax(DType source, std::span<const std::byte> weights, bool& plain) {
  if (source != DType::f64) {
    const float largest = largest_magnitude(source, weights);
    // Rounding keeps the order, so the largest of the rounded weights is the largest weight, rounded.
    if (largest < fp16::smallest_overflow) return fp16::to_float(fp16::from_float(largest));
  }
  float absmax = 0;
  for_each_tile(source, weights, [&](std::size_t, std::span<const float> tile) {
    for (const float weight : tile) {
      plain = plain && std::abs(weight) < fp16::smallest_overflow;
      if (std::isfinite(weight)) absmax = std::max(absmax, std::abs(repaired(weight, 0)));
    }
  });
  return fp16::to_float(fp16::from_float(absmax));
}

void encode_row(DType source, std::span<const std::byte> weights, float absmax, bool plain,
                std::span<std::int8_t> codes) {
  const float scale = scale_of(absmax);
  if (plain && source != DType::f64) return quantize_row_of(source)(weights.data(), codes.size(), scale, codes.data());
  std::array<float, tile_weights> finite;
  for_each_tile(source, weights, [&](std::size_t i, std::span<const float> tile) {
    std::transform(tile.begin(), tile.end(), finite.begin(), [&](float weight) { return repaired(weight, absmax); });
    quantize_row_of(DType::f32)(std::as_bytes(std::span(finite)).data(), tile.size(), scale, codes.data() + i);
  });
}

float encode_row(std::span<const float> weights, std::span<std::int8_t> codes) {
  check_same_size(weights.size(), codes.size());
  bool plain = true;
  const auto bytes = std::as_bytes(weights);
  const float absmax = row_absmax(DType::f32, bytes, plain);
  encode_row(DType::f32, bytes, absmax, plain, codes);
  return absmax;
}

void decode_row(std::span<const std::int8_t> codes, float absmax, std::span<float> weights) {
  check_same_size(weights.size(), codes.size());
  HWY_DYNAMIC_DISPATCH(dequantize_row)(codes.data(), codes.size(), absmax, weights.data());
}

}  // namespace int8

namespace {

class Int8Decoder final : public Decoder {
 public:
  Int8Decoder(std::uint64_t columns, std::span<const std::byte> absmax)
      : columns_(columns), absmax_(absmax.size() / sizeof(float)) {
    if (!absmax.empty()) std::memcpy(absmax_.data(), absmax.data(), absmax.size());
  }

  using Decoder::decode;
  void decode(std::uint64_t first, std::span<const std::byte> codes, std::span<float> out) const override {
    const std::span<const std::int8_t> all(reinterpret_cast<const std::int8_t*>(codes.data()), codes.size());
    int8::for_each_row(columns_, first, out.size(), [&](std::size_t row, std::size_t begin, std::size_t end) {
      int8::decode_row(all.subspan(begin, end - begin), absmax_[row], out.subspan(begin, end - begin));
    });
  }

 private:
  std::uint64_t code_bytes(std::uint64_t n) const override { return n; }

  std::uint64_t columns_;
  std::vector<float> absmax_;
};

}  // namespace

std::unique_ptr<Decoder> Int8Codec::decoder(const TensorInfo& tensor,
                                            std::span<const std::span<const std::byte>> rest) const {
  check_planes(*this, tensor, rest);
  return std::make_unique<Int8Decoder>(tensor.shape[1], rest[0]);
}

// A row of n weights with absmax a is rounded to steps of a / 127, but for the largest, which is exact:
//
//   sum e^2 / sum w^2 = (1 - 1 / n) E[a^2] / (12 * 127^2)   for weights of variance 1
//
// The result is 0.04 dB too high at 64 <= n <= 16384 (tests/quant/codecs/int8_test.cpp). A search gains up to 0.4 dB
// more from 384 columns on, which is left out.
double Int8Codec::normal_sqnr_db(const TensorInfo& tensor) const {
  if (tensor.shape.size() != 2 || tensor.shape[1] < 16) return Codec::normal_sqnr_db(tensor);
  const auto n = static_cast<double>(tensor.shape[1]);
  return 10 * std::log10(12 * 127.0 * 127.0 / (mean_square_of_largest(n) * (1 - 1 / n)));
}

namespace {

constexpr std::array int8_options{absmax_option};
constexpr std::array<std::string_view, 5> int8_synonyms{"8bit", "8-bit", "q8", "llm.int8", "llm.int8()"};

}  // namespace

extern const RegisteredCodec int8_codec;
const RegisteredCodec int8_codec{{"int8", "8-bit integers with an absmax per row (LLM.int8())", int8_options},
                                 &make_of_spec<Int8Codec>,
                                 int8_synonyms};

}  // namespace nibble
#endif
