// Weights of every type that kernels take, from fp32 and back.
#pragma once
#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/quantize/weight_runs.hpp"
#include "nibble/kernels.h"

namespace nibble::test {

template <class T> inline constexpr nibble_dtype dtype_of = NIBBLE_F32;
template <> inline constexpr nibble_dtype dtype_of<device::bf16> = NIBBLE_BF16;
template <> inline constexpr nibble_dtype dtype_of<device::f16> = NIBBLE_F16;

template <class T> T narrowed(float value) {
  if constexpr (std::is_same_v<T, float>)
    return value;
  else if constexpr (std::is_same_v<T, device::bf16>)
    return device::to_bf16(value);
  else
    return device::to_f16(value);
}
template <class T> std::vector<T> narrowed(const std::vector<float>& values) {
  std::vector<T> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), [](float value) { return narrowed<T>(value); });
  return out;
}
template <class T> std::vector<float> widened(const std::vector<T>& values) {
  std::vector<float> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), [](T value) { return kernels::widen(value); });
  return out;
}

}  // namespace nibble::test
