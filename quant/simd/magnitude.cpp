#include "quant/simd/magnitude.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "quant/simd/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/simd/magnitude.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/simd/source-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {

template <class Source> HWY_INLINE float largest_of(const std::byte* HWY_RESTRICT w, std::size_t n) {
  constexpr std::size_t step = 32;  // what Source::absmax() takes
  const std::size_t whole = n - n % step;
  if (whole == n) return Source::absmax(w, n);
  HWY_ALIGN std::byte last[step * Source::size] = {};
  std::memcpy(last, w + whole * Source::size, (n - whole) * Source::size);
  // As bits, which order as the magnitudes do and keep NaN.
  const auto bits = [](float value) { return std::bit_cast<std::int32_t>(value); };
  return std::bit_cast<float>(std::max(bits(Source::absmax(w, whole)), bits(Source::absmax(last, step))));
}

// n weights in blocks, the last of which may be short.
template <class Source>
HWY_INLINE void largest_of_each(const std::byte* HWY_RESTRICT w, std::size_t n, std::size_t blocksize,
                                float* HWY_RESTRICT largest) {
  const std::size_t whole = n / blocksize;
  Source::absmax_of_each(w, blocksize, whole, largest);
  if (n % blocksize != 0) largest[whole] = largest_of<Source>(w + whole * blocksize * Source::size, n % blocksize);
}

#define NIBBLE_LARGEST_OF(name, Source)                                                                        \
  float largest_of_##name(const std::byte* HWY_RESTRICT w, std::size_t n) { return largest_of<Source>(w, n); } \
  void largest_of_each_##name(const std::byte* HWY_RESTRICT w, std::size_t n, std::size_t blocksize,           \
                              float* HWY_RESTRICT largest) {                                                   \
    largest_of_each<Source>(w, n, blocksize, largest);                                                         \
  }
NIBBLE_LARGEST_OF(f32, F32)
NIBBLE_LARGEST_OF(bf16, Bf16)
NIBBLE_LARGEST_OF(f16, F16)
#undef NIBBLE_LARGEST_OF

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {

HWY_EXPORT(largest_of_f32);
HWY_EXPORT(largest_of_bf16);
HWY_EXPORT(largest_of_f16);
HWY_EXPORT(largest_of_each_f32);
HWY_EXPORT(largest_of_each_bf16);
HWY_EXPORT(largest_of_each_f16);

float largest_magnitude(DType source, std::span<const std::byte> weights) {
  const auto largest = loop_of(source, HWY_DYNAMIC_DISPATCH(largest_of_f32), HWY_DYNAMIC_DISPATCH(largest_of_bf16),
                               HWY_DYNAMIC_DISPATCH(largest_of_f16));
  return largest(weights.data(), weights.size() / (traits(source).bits / 8));
}

void largest_magnitudes(DType source, std::span<const std::byte> weights, std::size_t blocksize,
                        std::span<float> largest) {
  const auto of_each = loop_of(source, HWY_DYNAMIC_DISPATCH(largest_of_each_f32),
                               HWY_DYNAMIC_DISPATCH(largest_of_each_bf16), HWY_DYNAMIC_DISPATCH(largest_of_each_f16));
  of_each(weights.data(), weights.size() / (traits(source).bits / 8), blocksize, largest.data());
}

}  // namespace nibble
#endif
