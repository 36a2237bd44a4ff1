#include "quant/merge/survival.hpp"

#include <array>
#include <cassert>
#include <cmath>
#include <limits>

#include "quant/errors/squares.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {

void Survival::add(std::span<const float> base, std::span<const float> merged, std::span<const float> quantized_base,
                   std::span<const float> quantized_merged) {
  const std::size_t n = base.size();
  assert(n <= tile_weights && merged.size() == n && quantized_base.size() == n && quantized_merged.size() == n);
  std::array<float, tile_weights> update, left;
  for (std::size_t i = 0; i < n; ++i) {
    update[i] = merged[i] - base[i];
    left[i] = quantized_merged[i] - quantized_base[i];
  }
  sums_.add(compare_squares(std::span(update).first(n), std::span(left).first(n)));
}

double Survival::ratio() const {
  return sums_.reference == 0 ? std::numeric_limits<double>::quiet_NaN() : std::sqrt(sums_.test / sums_.reference);
}

double Survival::cosine() const {
  const double norms = std::sqrt(sums_.reference) * std::sqrt(sums_.test);
  return norms == 0 ? std::numeric_limits<double>::quiet_NaN() : sums_.cosine();
}

double Survival::update_norm() const { return std::sqrt(sums_.reference); }

}  // namespace nibble
