#pragma once

#include <cstdint>

#include "nibble/error.hpp"

namespace nibble {

/// A size, count or offset that came from a file. Its arithmetic never wraps: a result that 64 bits do not hold is
/// invalid, and so is everything computed from it. Call valid() first to report the error in terms of the file format;
/// value() of an invalid one throws Error(bad_input), so a forgotten check does no harm.
class Checked {
 public:
  constexpr Checked(std::uint64_t value) noexcept : value_(value) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] constexpr bool valid() const noexcept { return valid_; }

  [[nodiscard]] constexpr std::uint64_t value() const {
    if (!valid_) throw Error(Errc::bad_input, "a size exceeds 64 bits");
    return value_;
  }

  friend constexpr Checked operator+(Checked a, Checked b) noexcept {
    Checked sum = 0;
    sum.valid_ = !__builtin_add_overflow(a.value_, b.value_, &sum.value_) && a.valid_ && b.valid_;
    return sum;
  }

  friend constexpr Checked operator-(Checked a, Checked b) noexcept {
    Checked difference = 0;
    difference.valid_ = !__builtin_sub_overflow(a.value_, b.value_, &difference.value_) && a.valid_ && b.valid_;
    return difference;
  }

  friend constexpr Checked operator*(Checked a, Checked b) noexcept {
    Checked product = 0;
    product.valid_ = !__builtin_mul_overflow(a.value_, b.value_, &product.value_) && a.valid_ && b.valid_;
    return product;
  }

 private:
  std::uint64_t value_;
  bool valid_ = true;
};

}  // namespace nibble
