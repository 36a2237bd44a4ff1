#include "quant/stream/beyond_fp32.hpp"

#include <cmath>
#include <cstring>

namespace nibble {
namespace {

double stored_value(const ComparedTile& tile, std::size_t i) {
  if (tile.fp64.empty()) return tile.weights[i];
  double value = 0;
  std::memcpy(&value, tile.fp64.data() + i * sizeof(value), sizeof(value));
  return value;
}

}  // namespace

void correct_beyond_fp32(const ComparedTile& tile, WeightStats& stats) {
  if (tile.fp64.empty() || stats.inf == 0) return;
  for (std::size_t i = 0; i < tile.weights.size(); ++i) {
    if (!std::isinf(tile.weights[i]) || !std::isfinite(stored_value(tile, i))) continue;
    --stats.inf;
    ++stats.beyond_fp32;
  }
}

void correct_beyond_fp32(const ComparedTile& reference, const ComparedTile& test, std::uint64_t first,
                         ErrorStats& stats) {
  if (reference.fp64.empty() && test.fp64.empty()) return;
  for (std::size_t i = 0; i < reference.weights.size(); ++i) {
    const float w = reference.weights[i], t = test.weights[i];
    if (!std::isinf(w) && !std::isinf(t)) {
      if (w != t) continue;
      const double e = std::abs(stored_value(test, i) - stored_value(reference, i));
      stats.magnitude += e;
      stats.square += e * e;
      if (e > stats.max_abs) stats.max_abs = e, stats.max_abs_at = first + i;
      continue;
    }
    const double exact_w = stored_value(reference, i), exact_t = stored_value(test, i);
    const bool counted_lost = std::isfinite(w) && !std::isfinite(t);
    const bool is_lost = std::isfinite(exact_w) && exact_w != exact_t;
    stats.lost = stats.lost - (counted_lost ? 1 : 0) + (is_lost ? 1 : 0);
    stats.inf = stats.inf - (std::isinf(t) ? 1 : 0) + (std::isinf(exact_t) ? 1 : 0);
  }
}

}  // namespace nibble
