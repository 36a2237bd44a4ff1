#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "quant/codecs/four_bit/four_bit.hpp"

namespace nibble {

/// The codes of bf16 weights without arithmetic. A block's absmax has one of 128 mantissas. Up to a power of two, that
/// mantissa and the weight's bits decide v = weight * (1 / absmax), roundings included. So the number of midpoints
/// below v follows from the weight's sign and from
///
///   m = max(bits(|weight|) - (bits(2^floor(log2(absmax))) - near), 0)
///
/// the distance from where every number is that of 0. Nothing is in doubt. There are two ways to look it up. They take
/// 176 bytes for a mantissa, 22 KiB for a format.
struct Bf16Steps {
  static constexpr int near = 5 << 7;   ///< five octaves below absmax, rounded down to a power of two
  static constexpr int limit = 6 << 7;  ///< above every m
  /// Bits of absmax from which no result that matters is subnormal; 0 is fine, too. From 2^126 on 1 / absmax is, but
  /// the tests show that no code depends on that.
  static constexpr std::uint16_t smallest = 6 << 7;

  /// For targets that look up 64 words at once (AVX-512). With s = m and the weight's sign, the upper 4 of 16 bits of s
  /// + words[s >> 5 & 63] are the number: it takes at most one step between multiples of 32.
  using Words = std::array<std::uint16_t, 64>;

  /// For targets that look up 16 bytes at once, which every target with vectors can. There are 16 buckets for m, each
  /// with at most one midpoint and within an octave of 128. So the lower 7 bits of m tell on which side of the midpoint
  /// a weight is.
  struct Bytes {
    std::array<std::uint8_t, 16> positive, negative;  ///< by bucket: the next midpoint outwards, and no_step
    std::array<std::uint8_t, 16> left;                ///< by midpoint: positions behind it in its octave
  };
  static constexpr std::uint8_t no_step = 0x80;  ///< the midpoint lies beyond the bucket
  /// The buckets are the first two octaves, the halves of the third, and the quarters of the rest.
  static constexpr std::array<int, 17> bucket_begin{0,   128, 256, 320, 384, 416, 448, 480,  512,
                                                    544, 576, 608, 640, 672, 704, 736, limit};
  /// The bucket of quarter q = m >> 5 is the larger of q - 8 and coarse[min(q, 15)].
  alignas(16) static constexpr std::array<std::uint8_t, 16> coarse{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 0, 0, 0, 0};

  alignas(64) std::array<Words, 128> words;
  alignas(16) std::array<Bytes, 128> bytes;
};

/// Does not compile as a constant if a bucket has two steps, or if the codes near zero are not all the same.
constexpr Bf16Steps make_bf16_steps(const FourBitTables& tables) {
  constexpr int limit = Bf16Steps::limit;
  const std::size_t midpoints = tables.midpoints;
  Bf16Steps out{};
  bool right = !tables.splits_zero;
  for (int quarter = 0; quarter < limit / 32; ++quarter) {
    const auto coarse = static_cast<int>(Bf16Steps::coarse[static_cast<std::size_t>(std::min(quarter, 15))]);
    const auto bucket = static_cast<std::size_t>(std::max(quarter - 8, coarse));
    right = right && Bf16Steps::bucket_begin[bucket] <= 32 * quarter;
    right = right && Bf16Steps::bucket_begin[bucket + 1] > 32 * quarter;
  }
  std::size_t zero = 0;  // midpoints below 0
  while (tables.midpoint[zero] < 0) ++zero;
  for (std::size_t mantissa = 0; mantissa < 128; ++mantissa) {
    Bf16Steps::Words& words = out.words[mantissa];
    Bf16Steps::Bytes& bytes = out.bytes[mantissa];
    const float inverse = 1.0f / static_cast<float>(128 + mantissa);
    std::array<int, 16> last{};  // the largest m on this side of midpoint k
    for (std::size_t k = 0; k < midpoints; ++k) {
      int from = -1, to = limit;
      while (to - from > 1) {
        const int m = from + (to - from) / 2;
        const float v = static_cast<float>((128 + m % 128) << m / 128) / 32 * inverse;
        const bool is_beyond = k < zero ? !(-v > tables.midpoint[k]) : v > tables.midpoint[k];
        (is_beyond ? to : from) = m;
      }
      last[k] = from;
      right = right && from > 0;  // 0 stands for small weights of both signs
    }

    std::size_t number = 0;
    const auto last_word = [&](std::size_t k) { return k < zero ? -last[k] - 1 : last[k]; };
    for (int first = -limit; first < limit; first += 32) {
      while (number < midpoints && last_word(number) < first) ++number;
      const int end = first + 32;
      const int before_step = number < midpoints && last_word(number) < end ? last_word(number) : end;
      right = right && (number + 1 >= midpoints || last_word(number + 1) >= end - 1 || last_word(number) >= end);
      words[static_cast<std::size_t>(first >> 5 & 63)] =
          static_cast<std::uint16_t>(4096 * static_cast<int>(number) + 4095 - before_step);
    }

    for (std::size_t k = 0; k < midpoints; ++k) bytes.left[k] = static_cast<std::uint8_t>(127 - last[k] % 128);
    std::size_t up = zero, down = zero;  // numbers on either side; outwards, midpoints up and down - 1 are next
    for (std::size_t bucket = 0; bucket < 16; ++bucket) {
      const int first = Bf16Steps::bucket_begin[bucket], end = Bf16Steps::bucket_begin[bucket + 1];
      while (up < midpoints && last[up] < first) ++up;
      while (down > 0 && last[down - 1] < first) --down;
      const bool step_up = up < midpoints && last[up] + 1 < end, step_down = down > 0 && last[down - 1] + 1 < end;
      right = right && !(step_up && up + 1 < midpoints && last[up + 1] + 1 < end);
      right = right && !(step_down && down > 1 && last[down - 2] + 1 < end);
      bytes.positive[bucket] = static_cast<std::uint8_t>(up | (step_up ? 0 : Bf16Steps::no_step));
      bytes.negative[bucket] = static_cast<std::uint8_t>((down - 1) | (step_down ? 0 : Bf16Steps::no_step));
    }
  }
  if (!right) throw "a bucket has more than one step";
  return out;
}

}  // namespace nibble
