#include "quant/quantizers/search/row_search.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "nibble/int8.hpp"
#include "quant/errors/int8_error.hpp"
#include "quant/errors/squares.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

// The best of them leaves at most a few percent more error than the best of all: rows of many weights, or with
// outliers, lose least if some are clamped.
constexpr std::array<float, 8> coarse{1.0f, 0.96f, 0.92f, 0.88f, 0.82f, 0.75f, 0.65f, 0.55f};
constexpr int fine_steps = 12;
constexpr float fine_step = 1.0f / 384;

// A row, and how much the errors of its columns count.
class SearchedRow {
 public:
  SearchedRow(DType source, std::span<const std::byte> weights, const ColumnWeights& columns)
      : source_(source), weights_(weights), columns_(columns) {}

  // The sum of squared errors.
  [[nodiscard]] double error_of(float absmax) const {
    const std::size_t size = traits(source_).bits / 8, columns = weights_.size() / size;
    std::array<std::int8_t, tile_weights> room;
    double sum = 0;
    for (std::size_t at = 0; at < columns; at += tile_weights) {
      const std::size_t n = std::min(tile_weights, columns - at);
      const auto piece = weights_.subspan(at * size, n * size);
      const auto codes = std::span(room).first(n);
      int8::encode_row(source_, piece, absmax, true, codes);
      sum += columns_.empty() ? int8::error_of_rows(source_, piece, codes, columns, columns - at, {&absmax, 1}).square
                              : weighted_error(at, piece, codes, absmax);
    }
    return sum;
  }

 private:
  // Of weights from column `at` on.
  [[nodiscard]] double weighted_error(std::size_t at, std::span<const std::byte> piece,
                                      std::span<const std::int8_t> codes, float absmax) const {
    alignas(64) std::array<float, tile_weights> weights, decoded;
    const auto room = std::span(weights).first(codes.size()), test = std::span(decoded).first(codes.size());
    if (const auto wide = widen(source_, piece, room); wide.data() != room.data())
      std::ranges::copy(wide, room.begin());
    int8::decode_row(codes, absmax, test);
    columns_.apply(at, room);
    columns_.apply(at, test);
    return compare_squares(room, test).square;
  }

  DType source_;
  std::span<const std::byte> weights_;
  const ColumnWeights& columns_;
};

}  // namespace

float search_row(DType source, std::span<const std::byte> weights, float largest, const ColumnWeights& columns) {
  if (largest == 0) return 0;
  const SearchedRow row(source, weights, columns);
  double least = row.error_of(largest);
  float best = 1;
  const auto consider = [&](float ratio) {
    const double error = row.error_of(largest * ratio);
    if (error < least) least = error, best = ratio;
  };
  for (const float ratio : std::span(coarse).subspan(1)) consider(ratio);
  const float middle = best;
  for (int step = 1; step <= fine_steps; ++step)
    for (const int sign : {-1, 1}) consider(middle + static_cast<float>(sign * step) * fine_step);
  return largest * best;
}

}  // namespace nibble
