#include "quant/quantizers/search/row_search.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "nibble/int8.hpp"
#include "quant/errors/int8_error.hpp"
#include "quant/errors/squares.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

// The best of them leaves at most a few percent more error than the best of all: rows of many weights, or with
// outliers, lose least if some are clamped.
constexpr std::array<float, 8> coarse{1.0f, 0.96f, 0.92f, 0.88f, 0.82f, 0.75f, 0.65f, 0.55f};
constexpr std::size_t fine_steps = 12;
constexpr float fine_step = 1.0f / 384;

// A row, and how much the errors of its columns count.
class SearchedRow {
 public:
  SearchedRow(DType source, std::span<const std::byte> weights, const ColumnWeights& columns)
      : source_(source), weights_(weights), columns_(columns) {}

  // The sum of squared errors for each absmax. The row is read from memory once.
  template <std::size_t count> std::array<double, count> errors_of(const std::array<float, count>& absmax) const {
    const std::size_t size = traits(source_).bits / 8, columns = weights_.size() / size;
    alignas(64) std::array<float, tile_weights> room;
    std::array<std::int8_t, tile_weights> code_room;
    std::array<double, count> sums{};
    for (std::size_t at = 0; at < columns; at += tile_weights) {
      const std::size_t n = std::min(tile_weights, columns - at);
      const auto piece = weights_.subspan(at * size, n * size);
      const auto codes = std::span(code_room).first(n);
      const auto weighted = columns_.empty() ? std::span<const float>() : weigh(at, piece, std::span(room).first(n));
      for (std::size_t i = 0; i < count; ++i) {
        int8::encode_row(source_, piece, absmax[i], true, codes);
        sums[i] += columns_.empty()
                       ? int8::error_of_rows(source_, piece, codes, columns, columns - at, {&absmax[i], 1}).square
                       : weighted_error(at, weighted, codes, absmax[i]);
      }
    }
    return sums;
  }

 private:
  // Weights from column `at` on, times their roots.
  [[nodiscard]] std::span<const float> weigh(std::size_t at, std::span<const std::byte> piece,
                                             std::span<float> room) const {
    if (const auto wide = widen(source_, piece, room); wide.data() != room.data())
      std::ranges::copy(wide, room.begin());
    columns_.apply(at, room);
    return room;
  }

  [[nodiscard]] double weighted_error(std::size_t at, std::span<const float> weighted,
                                      std::span<const std::int8_t> codes, float absmax) const {
    alignas(64) std::array<float, tile_weights> room;
    const auto decoded = std::span(room).first(codes.size());
    int8::decode_row(codes, absmax, decoded);
    columns_.apply(at, decoded);
    return compare_squares(weighted, decoded).square;
  }

  DType source_;
  std::span<const std::byte> weights_;
  const ColumnWeights& columns_;
};

}  // namespace

float search_row(DType source, std::span<const std::byte> weights, float largest, const ColumnWeights& columns) {
  if (largest == 0) return 0;
  const SearchedRow row(source, weights, columns);
  double least = std::numeric_limits<double>::infinity();
  float best = 1;
  const auto consider = [&]<std::size_t count>(const std::array<float, count>& ratios) {
    std::array<float, count> absmax;
    std::ranges::transform(ratios, absmax.begin(), [&](float ratio) { return largest * ratio; });
    const std::array<double, count> errors = row.errors_of(absmax);
    for (std::size_t i = 0; i < count; ++i)
      if (errors[i] < least) least = errors[i], best = ratios[i];
  };
  consider(coarse);
  std::array<float, 2 * fine_steps> fine;
  for (std::size_t step = 1; step <= fine_steps; ++step) {
    const float distance = static_cast<float>(step) * fine_step;
    fine[2 * step - 2] = best - distance;
    fine[2 * step - 1] = best + distance;
  }
  consider(fine);
  return largest * best;
}

}  // namespace nibble
