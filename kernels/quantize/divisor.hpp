// Division by a number that all threads share, as a multiplication: a division of 64 bits takes some 70 instructions,
// this one 12.
#pragma once
#include "kernels/device/types.hpp"

namespace nibble::kernels {

using device::u32;
using device::u64;

/// Divides n < Divisor::max by d, 1 <= d <= Divisor::max.
///
/// With 2^(s-1) < d <= 2^s, the multiplier m = floor(2^(48+s) / d) + 1 exceeds 2^(48+s) / d by at most 1, so n * m
/// exceeds n * 2^(48+s) / d by less than 2^48, which is no more than 1/d of 2^(48+s): too little to reach the next
/// quotient. m is at most 2^49 and n << 16 below 2^64, so the upper half of one 64-bit multiplication gives the
/// quotient.
class Divisor {
 public:
  static constexpr u64 max = u64{1} << 48;

  Divisor() = default;
  explicit Divisor(u64 divisor) {
    while (u64{1} << shift_ < divisor) ++shift_;
    multiplier_ = static_cast<u64>((static_cast<unsigned __int128>(1) << (48 + shift_)) / divisor) + 1;
  }
  NIBBLE_DEVICE_AND_HOST u64 quotient(u64 n) const {
    return static_cast<u64>(static_cast<unsigned __int128>(n << 16) * multiplier_ >> 64) >> shift_;
  }

 private:
  u64 multiplier_ = 0;
  u32 shift_ = 0;
};

}  // namespace nibble::kernels
