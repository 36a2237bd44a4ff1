#include "quant/quantizers/column_weights.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace nibble {

ColumnWeights::ColumnWeights(std::vector<float> mean_square) : roots_(std::move(mean_square)) {
  constexpr float least = 1.0f / (1 << 20);
  float largest = 0;
  for (const float h : roots_) largest = std::max(largest, std::sqrt(h));
  for (float& h : roots_) h = largest == 0 ? 1.0f : std::max(std::sqrt(h) / largest, least);
}

std::span<const float> ColumnWeights::roots(std::uint64_t first, std::size_t n, std::span<float> room) const {
  const std::size_t column = first % roots_.size();
  if (column + n <= roots_.size()) return std::span(roots_).subspan(column, n);
  for (std::size_t i = 0, at = column; i < n; at = 0) {
    const std::size_t count = std::min(n - i, roots_.size() - at);
    std::copy_n(roots_.begin() + static_cast<std::ptrdiff_t>(at), count, room.begin() + static_cast<std::ptrdiff_t>(i));
    i += count;
  }
  return room.first(n);
}

void ColumnWeights::apply(std::uint64_t first, std::span<float> weights) const {
  for (std::size_t i = 0, at = first % roots_.size(); i < weights.size(); at = 0) {
    const std::size_t count = std::min(weights.size() - i, roots_.size() - at);
    for (std::size_t k = 0; k < count; ++k) weights[i + k] *= roots_[at + k];
    i += count;
  }
}

}  // namespace nibble
