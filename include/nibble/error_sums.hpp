#pragma once

#include <cstdint>
#include <limits>
#include <span>

namespace nibble {

/// Sums over weights w and the weights t that stand for them, e = t - w. Where either is not finite, a pair counts
/// nowhere.
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

  // NaN where there is nothing to divide by.
  [[nodiscard]] double rmse() const;      ///< square root of the mean of e^2
  [[nodiscard]] double rel_rmse() const;  ///< rmse over the root mean square of w
  [[nodiscard]] double sqnr_db() const;   ///< 10 log10(sum w^2 / sum e^2); infinite where no weight differs
  [[nodiscard]] double cosine() const;    ///< sum w t / sqrt(sum w^2 sum t^2); 1 where no weight differs
  bool operator==(const ErrorSums&) const = default;
};

/// How values are spread.
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

/// What encoding a tensor cost: sums within 2e-5 of those in fp64, 1e-6 for normal weights, and what double
/// quantization adds to them within 2^-11; the same on every CPU and for all threads.
struct EncodingError {
  ErrorSums sums;
  Spread absmax;  ///< of its blocks or rows; empty for casts
};

}  // namespace nibble
