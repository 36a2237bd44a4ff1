#pragma once

#include <cstdint>
#include <span>

#include "nibble/error_sums.hpp"

namespace nibble {

/// How much of an update is left after quantization. With the update dW that merging W makes, and Q, which quantizes
/// and decodes:
///
///   ratio   ||Q(W + dW) - Q(W)|| / ||dW||
///   cosine  of the angle between Q(W + dW) - Q(W) and dW
///
/// 1 and 1 if all of it survives; 0 and nothing if every weight keeps its code. Quantization adds noise of its own, so
/// an update that is small beside the steps of the codes may have a large ratio with a small cosine: the codes that
/// change jump by a whole step.
class Survival {
 public:
  /// Adds weights, at most 4096 at a time, all of the same size: of W, of W + dW, and of both after quantization.
  /// Weights of which any is not finite are left out. For figures that do not depend on threads, add the same pieces in
  /// order.
  void add(std::span<const float> base, std::span<const float> merged, std::span<const float> quantized_base,
           std::span<const float> quantized_merged);
  void add(const Survival& next) { sums_.add(next.sums_); }

  // NaN if there is nothing to divide by.
  [[nodiscard]] double ratio() const;
  [[nodiscard]] double cosine() const;
  /// ||dW||
  [[nodiscard]] double update_norm() const;

  bool operator==(const Survival&) const = default;

 private:
  ErrorSums sums_;  // of dW as reference and what is left of it as test
};

}  // namespace nibble
