#include "quant/jobs/measure/outlier_columns.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "quant/errors/squares.hpp"

namespace nibble {
namespace {

constexpr double outlier_factor = 6;

// Between these the sum of a column's squares fits fp32.
constexpr float smallest_squared = 1e-15f;
constexpr float largest_squared = 1e15f;

}  // namespace

bool has_column_energy(float absmax) {
  return absmax <= largest_squared && (absmax == 0 || absmax >= smallest_squared);
}

void add_column_energy(std::span<const float> weights, std::uint64_t column, bool finite, std::span<float> energy) {
  for (std::size_t begin = 0; begin < weights.size();) {
    const std::size_t n = std::min<std::uint64_t>(weights.size() - begin, energy.size() - column);
    const auto part = weights.subspan(begin, n);
    const auto sums = energy.subspan(column, n);
    if (finite)
      add_squares(part, sums);
    else
      for (std::size_t i = 0; i < n; ++i) sums[i] += std::isfinite(part[i]) ? part[i] * part[i] : 0;
    begin += n;
    column = 0;
  }
}

OutlierColumns find_outliers(std::span<const double> energy) {
  std::vector<double> sorted(energy.begin(), energy.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  const double min_energy = outlier_factor * outlier_factor * *middle;
  double all = 0;
  double outliers = 0;
  OutlierColumns found;
  for (const double column : energy) {
    all += column;
    if (*middle == 0 || column < min_energy) continue;
    outliers += column;
    ++found.count;
  }
  found.energy = all == 0 ? 0 : outliers / all;
  return found;
}

}  // namespace nibble
