#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "nibble/xtensor.hpp"

/// Each format as its formula says, to be read beside the paper. Tests only: speed does not matter.
namespace nibble::reference {

using Vector = xt::xtensor<float, 1>;
using Matrix = xt::xtensor<float, 2>;

inline Vector midpoints(const Vector& ascending) {
  const auto n = static_cast<std::ptrdiff_t>(ascending.size());
  return (xt::view(ascending, xt::range(0, n - 1)) + xt::view(ascending, xt::range(1, n))) / 2.0f;
}

struct Blocks {
  xt::xtensor<std::size_t, 2> number;  ///< (blocks, blocksize): how many midpoints are less than the scaled weight
  Vector absmax;                       ///< (blocks)
};

/// NF4 and FP4, up to the numbering of the codes.
inline Blocks four_bit(const Matrix& blocks, const Vector& ascending) {
  const Vector absmax = xt::amax(xt::abs(blocks), {1});
  const Vector inverse = 1.0f / xt::maximum(absmax, 1e-38f);
  const Matrix scaled = xt::clip(blocks * xt::view(inverse, xt::all(), xt::newaxis()), -1.0f, 1.0f);
  const auto below = xt::view(scaled, xt::all(), xt::all(), xt::newaxis()) > midpoints(ascending);
  return {xt::sum(xt::cast<std::size_t>(below), {2}), absmax};
}

/// The offset of double quantization: sums of 16384 values, each of 64 that are added as a tree, in float64.
inline float mean(std::span<const float> absmax) {
  double sum = 0;
  for (std::size_t first = 0; first < absmax.size(); first += 16384) {
    xt::xtensor<double, 1> part = xt::zeros<double>({64});
    for (std::size_t i = first; i < std::min(first + 16384, absmax.size()); ++i) part((i - first) % 64) += absmax[i];
    for (std::ptrdiff_t half = 32; half > 0; half /= 2)
      part = xt::eval(xt::view(part, xt::range(0, half)) + xt::view(part, xt::range(half, 2 * half)));
    sum += part(0);
  }
  return static_cast<float>(sum / static_cast<double>(absmax.size()));
}

/// One block of double quantization.
struct Nested {
  xt::xtensor<std::size_t, 1> code;
  float absmax;
};

inline Nested nested(const Vector& absmax, float offset, const Vector& ascending) {
  const Vector d = absmax - offset;
  const float largest = xt::amax(xt::abs(d))();
  const Vector v = d * (1.0f / largest);
  const Vector between = midpoints(ascending);
  const auto column = xt::view(v, xt::all(), xt::newaxis());
  const xt::xtensor<std::size_t, 1> lower = xt::sum(xt::cast<std::size_t>(column > between), {1});
  const xt::xtensor<std::size_t, 1> upper = xt::sum(xt::cast<std::size_t>(column >= between), {1});
  return {xt::where(xt::equal(lower % std::size_t{2}, std::size_t{0}), lower, upper), largest};  // a tie: the even one
}

/// The nearest number with this many bits after the leading 1 and this smallest normal exponent, ties to even;
/// infinity from `overflow` on. Exact for fp32 in, because fp64 holds every number in between.
inline float rounded(float value, int mantissa_bits, int smallest_exponent, double overflow) {
  const double x = value;
  if (!std::isfinite(x) || x == 0) return value;
  const double ulp = std::ldexp(1.0, std::max(std::ilogb(x), smallest_exponent) - mantissa_bits);
  const double result = std::nearbyint(x / ulp) * ulp;
  return std::abs(result) >= overflow ? std::copysign(std::numeric_limits<float>::infinity(), value)
                                      : static_cast<float>(result);
}
inline float fp16(float value) { return rounded(value, 10, -14, 65536.0); }
inline float bf16(float value) { return rounded(value, 7, -126, std::ldexp(1.0, 128)); }

/// The number that a finite fp32 number becomes in FP8.
inline float fp8(float value, int mantissa_bits, int bias, float largest) {
  return std::clamp(rounded(value, mantissa_bits, 1 - bias, HUGE_VAL), -largest, largest);
}

/// The number that a code of FP8 stands for. E4M3 has one NaN and no infinity, E5M2 has both as IEEE's formats do.
inline float fp8_number(unsigned code, int mantissa_bits, int bias, float largest) {
  const unsigned exponent = (code & 0x7F) >> mantissa_bits, mantissa = code % (1U << mantissa_bits);
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  const double number =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, static_cast<int>(exponent) - bias);
  const bool is_infinite = mantissa == 0 && number > largest;
  const double magnitude = number <= largest ? number : is_infinite ? HUGE_VAL : std::nan("");
  return static_cast<float>((code & 0x80) != 0 ? -magnitude : magnitude);
}

struct Rows {
  Matrix code;    ///< (rows, columns), whole numbers
  Vector absmax;  ///< (rows)
};

/// LLM.int8(): finite weights that fp16 can hold, no row of zeros.
inline Rows int8(const Matrix& weights) {
  const Matrix halves = xt::vectorize(fp16)(weights);
  const Vector absmax = xt::amax(xt::abs(halves), {1});
  const Vector scale = 1.0f / absmax * 127.0f;
  return {xt::nearbyint(halves * xt::view(scale, xt::all(), xt::newaxis())), absmax};
}

}  // namespace nibble::reference
