#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace nibble {

/// Sums over weights w and the weights t that stand for them, e = t - w. Pairs with a value that is not finite are left
/// out.
struct ErrorSums {
  std::uint64_t count = 0;  ///< pairs
  double square = 0;        ///< sum of e^2
  double product = 0;       ///< sum of w t
  double reference = 0;     ///< sum of w^2
  double test = 0;          ///< sum of t^2

  void add(const ErrorSums& next) {
    count += next.count;
    square += next.square;
    product += next.product;
    reference += next.reference;
    test += next.test;
  }

  /// sum e^2 / sum w^2; 0 if no weight differs, infinite if only weights of 0 do.
  [[nodiscard]] double relative_square() const noexcept { return square == 0 ? 0 : square / reference; }

  // NaN if there is nothing to divide by.
  [[nodiscard]] double rmse() const;      ///< square root of the mean of e^2
  [[nodiscard]] double rel_rmse() const;  ///< rmse over the root mean square of w
  [[nodiscard]] double sqnr_db() const;   ///< 10 log10(sum w^2 / sum e^2); infinite if no weight differs
  [[nodiscard]] double cosine() const;    ///< sum w t / sqrt(sum w^2 sum t^2); 1 if no weight differs
  bool operator==(const ErrorSums&) const = default;
};

/// The distribution of values.
struct Spread {
  std::uint64_t count = 0;
  double sum = 0;
  double square = 0;  ///< sum of squares
  float min = std::numeric_limits<float>::infinity();
  float max = 0;

  void add(float value) {
    ++count;
    sum += value;
    square += static_cast<double>(value) * value;
    min = value < min ? value : min;
    max = value > max ? value : max;
  }
  void add(std::span<const float> values);  ///< finite ones; sums in eight lanes, the same on every CPU
  void add(const Spread& next) {
    count += next.count;
    sum += next.sum;
    square += next.square;
    min = next.min < min ? next.min : min;
    max = next.max > max ? next.max : max;
  }
  [[nodiscard]] double mean() const;  ///< NaN without values
  [[nodiscard]] double std() const;
  bool operator==(const Spread&) const = default;
};

/// The error of an encoded tensor. Sums are within 2e-5 of fp64 sums, within 1e-6 for normal weights, and what double
/// quantization adds to them within 2^-11. They are the same for every CPU and any number of threads.
struct EncodingError {
  ErrorSums sums;
  Spread absmax;  ///< of its blocks or rows; empty for casts
};

}  // namespace nibble
