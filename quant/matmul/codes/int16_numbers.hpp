#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace nibble::matmul {

/// 64 numbers of x in two parts, each with a power of two as its scale: first * first_scale + second * second_scale.
///
/// In the first part the largest number has 15 bits. bf16 has 8, so numbers that are at least 2^-7 of the largest are
/// exact, and none is off by more than 2^-15 of it. The second part is what is missing then. Whether it counts depends
/// on the mean exponent of the numbers that are not 0. If that is at most 6 below the largest one, the scale of the
/// second part is 0: without it, numbers are off by 2^-9 of their geometric mean at most. If it is more than 18 below,
/// both parts do not suffice, and the first scale is NaN, as it is if a number is not finite. Of normal numbers the
/// mean exponent is 2 to 3 below, and with an outlier 100 times as large as they are 9.
struct Int16Numbers {
  static constexpr std::size_t count = 64;

  alignas(64) std::array<std::int16_t, count> first, second;  ///< second: zeros where its scale is 0 and all are finite
  float first_scale, second_scale;
};

/// Of 64 numbers in bf16, without any alignment.
[[nodiscard]] Int16Numbers to_int16(const std::byte* bf16);

}  // namespace nibble::matmul
