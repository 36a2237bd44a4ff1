#include "quant/simd/widen.hpp"

#include <cassert>
#include <cmath>
#include <cstring>

#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"

namespace nibble {
namespace {

template <class T> T value_at(const std::byte* bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

double weight_at(DType source, const std::byte* bytes, std::size_t i) {
  switch (source) {
    case DType::f64:
      return value_at<double>(bytes, i);
    case DType::f32:
      return value_at<float>(bytes, i);
    case DType::bf16:
      return bf16::to_float(value_at<std::uint16_t>(bytes, i));
    default:
      return fp16::to_float(value_at<std::uint16_t>(bytes, i));
  }
}

float to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;  // towards zero; from infinity too
  return std::bit_cast<float>(bits | 1u);
}

// 16-bit values where they are, or copied if they are not aligned.
std::span<const std::uint16_t> aligned(std::span<const std::byte> bytes, std::span<std::uint16_t> copy) {
  const std::size_t n = bytes.size() / 2;
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(std::uint16_t) == 0)
    return {reinterpret_cast<const std::uint16_t*>(bytes.data()), n};
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy.first(n);
}

}  // namespace

std::span<const float> widen(DType source, std::span<const std::byte> weights, std::span<float> tile,
                             Rounding rounding) {
  assert(is_weight_type(source));
  const std::size_t n = weights.size() / (traits(source).bits / 8);
  assert(n <= tile.size() && n <= tile_weights);
  const std::span<float> out = tile.first(n);
  if (n == 0) return out;
  switch (source) {
    case DType::f64:
      for (std::size_t i = 0; i < n; ++i) {
        const double value = value_at<double>(weights.data(), i);
        out[i] = rounding == Rounding::odd ? to_odd(value) : static_cast<float>(value);
      }
      return out;
    case DType::f32:
      if (reinterpret_cast<std::uintptr_t>(weights.data()) % alignof(float) == 0)
        return {reinterpret_cast<const float*>(weights.data()), n};
      std::memcpy(out.data(), weights.data(), weights.size());
      return out;
    default:
      std::array<std::uint16_t, tile_weights> copy;
      if (source == DType::bf16)
        bf16::decode(aligned(weights, copy), out);
      else
        fp16::decode(aligned(weights, copy), out);
      return out;
  }
}

Findings count_nonfinite(DType source, std::span<const std::byte> weights, std::uint64_t first, float limit) {
  Findings findings;
  for (std::size_t i = 0; i < weights.size() / (traits(source).bits / 8); ++i) {
    const double weight = weight_at(source, weights.data(), i);
    const float rounded = std::abs(static_cast<float>(weight));
    if (std::isnan(weight))
      ++findings.nan;
    else if (std::isinf(weight))
      ++findings.inf;
    else if (rounded >= limit)
      ++findings.overflow, findings.overflow_fp32 += std::isinf(rounded) ? 1 : 0;
    else
      continue;
    findings.first_nonfinite = std::min(findings.first_nonfinite, first + i);
  }
  return findings;
}

}  // namespace nibble
