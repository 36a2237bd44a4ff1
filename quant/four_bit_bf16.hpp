#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "quant/four_bit.hpp"

namespace nibble {

/// The codes of bf16 weights without arithmetic. A block's absmax has 128 mantissas, and but for a power of two it and
/// a weight's bits decide what v = weight * (1 / absmax) is, roundings included. With
///
///   s = sign(weight) * max(bits(|weight|) - (bits(2^floor(log2(absmax))) - near), 0)
///
/// the distance from where every number is that of 0, the number of midpoints below v is the upper 4 of 16 bits of
/// s + steps[mantissa of absmax][s >> 5 & 63]: between multiples of 32 the number takes one step at most. So nothing
/// is in doubt. 16 KiB for a format.
struct Bf16Steps {
  static constexpr int near = 5 << 7;   ///< five octaves below absmax, rounded down to a power of two
  static constexpr int limit = 6 << 7;  ///< above every |s|
  static constexpr int bucket_bits = 5;
  /// Bits of absmax from which no result that matters is subnormal; 0 is fine, too. From 2^126 on 1 / absmax is, but
  /// the tests show that no code depends on that.
  static constexpr std::uint16_t smallest = 6 << 7;

  alignas(64) std::array<std::array<std::uint16_t, 64>, 128> steps;
};

/// Does not compile as a constant if a bucket has two steps, or if the codes near zero are not all the same.
constexpr Bf16Steps make_bf16_steps(const FourBitTables& tables) {
  Bf16Steps out{};
  bool right = !tables.splits_zero;
  for (int mantissa = 0; mantissa < 128; ++mantissa) {
    const float inverse = 1.0f / static_cast<float>(128 + mantissa);
    const auto is_above = [&](int s, std::size_t k) {
      const int magnitude = s < 0 ? -s : s;
      const auto weight = static_cast<float>((128 + magnitude % 128) << magnitude / 128) / 32;
      return (s < 0 ? -weight : weight) * inverse > tables.midpoint[k];
    };
    // last[k]: the largest s not above midpoint k.
    std::array<int, 16> last{};
    for (std::size_t k = 0; k < tables.midpoints; ++k) {
      int from = -Bf16Steps::limit, to = Bf16Steps::limit;
      while (to - from > 1) {
        const int middle = from + (to - from) / 2;
        (is_above(middle, k) ? to : from) = middle;
      }
      last[k] = from;
      right = right && (from > 0 || from < -1);  // s = 0 stands for small weights of both signs
    }
    std::size_t number = 0;
    for (int first = -Bf16Steps::limit; first < Bf16Steps::limit; first += 1 << Bf16Steps::bucket_bits) {
      while (number < tables.midpoints && last[number] < first) ++number;
      const int end = first + (1 << Bf16Steps::bucket_bits);
      const int before_step = number < tables.midpoints && last[number] < end ? last[number] : end;
      right = right && (number + 1 >= tables.midpoints || last[number + 1] >= end - 1 || last[number] >= end);
      out.steps[static_cast<std::size_t>(mantissa)][static_cast<std::size_t>(first >> Bf16Steps::bucket_bits & 63)] =
          static_cast<std::uint16_t>(4096 * static_cast<int>(number) + 4095 - before_step);
    }
  }
  if (!right) throw "a bucket has more than one step";
  return out;
}

}  // namespace nibble
