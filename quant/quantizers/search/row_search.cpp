#include "quant/quantizers/search/row_search.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "nibble/int8.hpp"
#include "quant/errors/int8_error.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

// The best of them leaves at most a few percent more error than the best of all: rows of many weights, or with
// outliers, lose least if some are clamped.
constexpr std::array<float, 8> coarse{1.0f, 0.96f, 0.92f, 0.88f, 0.82f, 0.75f, 0.65f, 0.55f};
constexpr int fine_steps = 12;
constexpr float fine_step = 1.0f / 384;

// The sum of squared errors of a row.
double error_of(DType source, std::span<const std::byte> weights, float absmax) {
  const std::size_t size = traits(source).bits / 8, columns = weights.size() / size;
  std::array<std::int8_t, tile_weights> room;
  double sum = 0;
  for (std::size_t at = 0; at < columns; at += tile_weights) {
    const std::size_t n = std::min(tile_weights, columns - at);
    const auto piece = weights.subspan(at * size, n * size);
    const auto codes = std::span(room).first(n);
    int8::encode_row(source, piece, absmax, true, codes);
    sum += int8::error_of_rows(source, piece, codes, columns, columns - at, {&absmax, 1}).square;
  }
  return sum;
}

}  // namespace

float search_row(DType source, std::span<const std::byte> weights, float largest) {
  if (largest == 0) return 0;
  double least = error_of(source, weights, largest);
  float best = 1;
  const auto consider = [&](float ratio) {
    const double error = error_of(source, weights, largest * ratio);
    if (error < least) least = error, best = ratio;
  };
  for (const float ratio : std::span(coarse).subspan(1)) consider(ratio);
  const float middle = best;
  for (int step = 1; step <= fine_steps; ++step)
    for (const int sign : {-1, 1}) consider(middle + static_cast<float>(sign * step) * fine_step);
  return largest * best;
}

}  // namespace nibble
