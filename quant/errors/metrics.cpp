// The loops over weights, and what follows from their sums. One file, because the loops and the fp64 code that replaces
// them have to make the same sums, and are read side by side.
//
// The fp64 code has each formula a second time. The loops do not test single weights: a NaN, or a square beyond the
// range of fp32, only shows in their sums. The fp64 code tests each weight and adds up in order. In lanes its sums
// would differ, and so would the figures of most tensors whose last tile is short (describe()).

#include "nibble/metrics.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "nibble/error.hpp"
#include "quant/errors/squares.hpp"
#include "quant/simd/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/errors/metrics.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/errors/squares-inl.hpp"
#include "quant/simd/lanes-inl.hpp"

// What the loops below return: for every block of 64 weights, or for every four of them, the sums of 16 lanes, folded
// into four, which is where fp32 ends. Lanes and folds are the same for every target.
#ifndef NIBBLE_QUANT_METRICS_SUMS
#define NIBBLE_QUANT_METRICS_SUMS
namespace nibble {

inline constexpr std::size_t tile_blocks = tile_weights / metric_block;
inline constexpr std::size_t group_blocks = 4;
using BlockSums = float[tile_blocks][4];
using GroupSums = float[tile_blocks / group_blocks][4];

struct ErrorTile {
  alignas(64) BlockSums square;
  alignas(64) GroupSums magnitude, product, reference, test, relative;
  float max_abs;
  std::uint32_t zeros;  // weights of the reference that are 0
};

inline constexpr std::size_t spread_lanes = 8;
struct SpreadLanes {
  double sum[spread_lanes], square[spread_lanes];
  float min[spread_lanes], max[spread_lanes];
};

struct WeightTile {
  alignas(64) GroupSums first, second, third, fourth;
  alignas(64) float absmax[tile_blocks];
};

}  // namespace nibble
#endif

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls f(part, i) for the vectors of a block.
template <class F> HWY_INLINE void for_each_vector(std::size_t block, F&& f) {
  for (std::size_t step = 0; step < metric_block; step += 16)
    for (std::size_t k = 0; k < vector_parts; ++k) f(k, block * metric_block + step + k * vector_lanes);
}

void compare_tile(const float* HWY_RESTRICT w, const float* HWY_RESTRICT t, ErrorTile& HWY_RESTRICT tile) {
  const D d;
  auto largest = hn::Zero(d);
  auto zeros = hn::Zero(DI());
  Lanes16 magnitude, product, reference, test, relative;
  for (std::size_t b = 0; b < tile_blocks; ++b) {
    Lanes16 square;
    for_each_vector(b, [&](std::size_t k, std::size_t i) HWY_ATTR {
      const V weight = hn::LoadU(d, w + i);
      const V other = hn::LoadU(d, t + i);
      const V error = hn::Sub(other, weight);
      const V size = hn::Abs(error);
      const auto is_zero = hn::Eq(weight, hn::Zero(d));
      largest = hn::Max(largest, size);
      zeros = hn::Sub(zeros, hn::VecFromMask(DI(), hn::RebindMask(DI(), is_zero)));  // true is -1
      magnitude.add(k, size);
      square.add_product(k, error, error);
      product.add_product(k, weight, other);
      reference.add_product(k, weight, weight);
      test.add_product(k, other, other);
      relative.add(k, hn::IfThenZeroElse(is_zero, hn::Div(size, hn::Abs(weight))));
    });
    square.fold(tile.square[b]);
    if (b % group_blocks + 1 < group_blocks) continue;
    magnitude.fold(tile.magnitude[b / group_blocks]);
    product.fold(tile.product[b / group_blocks]);
    reference.fold(tile.reference[b / group_blocks]);
    test.fold(tile.test[b / group_blocks]);
    relative.fold(tile.relative[b / group_blocks]);
    magnitude = product = reference = test = relative = {};
  }
  tile.max_abs = hn::GetLane(hn::MaxOfLanes(d, largest));
  tile.zeros = static_cast<std::uint32_t>(hn::GetLane(hn::SumOfLanes(DI(), zeros)));
}

void compare_squares(const float* HWY_RESTRICT w, const float* HWY_RESTRICT t, std::size_t blocks,
                     Squares& HWY_RESTRICT squares) {
  SquareSums sums;
  for (std::size_t first = 0; first < blocks * metric_block; first += squares_step)
    sums.add([&](std::size_t i) HWY_ATTR { return hn::LoadU(D(), w + first + i); },
             [&](std::size_t i) HWY_ATTR { return hn::LoadU(D(), t + first + i); });
  sums.end(squares);
}

void describe_tile(const float* HWY_RESTRICT w, float pivot, WeightTile& HWY_RESTRICT tile) {
  const D d;
  const V about = hn::Set(d, pivot);
  Lanes16 first, second, third, fourth;
  for (std::size_t b = 0; b < tile_blocks; ++b) {
    auto largest = hn::Zero(d);
    for_each_vector(b, [&](std::size_t k, std::size_t i) HWY_ATTR {
      const V weight = hn::LoadU(d, w + i);
      const V x = hn::Sub(weight, about), x2 = hn::Mul(x, x);
      largest = hn::Max(largest, hn::Abs(weight));
      first.add(k, x);
      second.add(k, x2);
      third.add_product(k, x2, x);
      fourth.add_product(k, x2, x2);
    });
    tile.absmax[b] = hn::GetLane(hn::MaxOfLanes(d, largest));
    if (b % group_blocks + 1 < group_blocks) continue;
    first.fold(tile.first[b / group_blocks]);
    second.fold(tile.second[b / group_blocks]);
    third.fold(tile.third[b / group_blocks]);
    fourth.fold(tile.fourth[b / group_blocks]);
    first = second = third = fourth = {};
  }
}

template <class DF> HWY_INLINE void add_vector_of_squares(DF d, const float* w, float* sums) {
  const auto weight = hn::LoadU(d, w);
  hn::StoreU(fused(d, weight, weight, hn::LoadU(d, sums)), d, sums);
}

// Every sum belongs to one lane, so the order is the same for any number of lanes in a vector.
void add_squares(const float* HWY_RESTRICT w, std::size_t n, float* HWY_RESTRICT sums) {
  std::size_t i = 0;
  for (; i + vector_lanes <= n; i += vector_lanes) add_vector_of_squares(D(), w + i, sums + i);
  for (; i < n; ++i) add_vector_of_squares(hn::CappedTag<float, 1>(), w + i, sums + i);
}

// In fp64, in 8 lanes whatever a vector has. n is a multiple of 8.
void spread(const float* HWY_RESTRICT values, std::size_t n, SpreadLanes& HWY_RESTRICT to) {
  const hn::CappedTag<double, spread_lanes> wide;
  const hn::Rebind<float, decltype(wide)> narrow;
  constexpr std::size_t lanes = hn::MaxLanes(wide), parts = spread_lanes / lanes;
  hn::Vec<decltype(wide)> sum[parts], square[parts];
  hn::Vec<decltype(narrow)> min[parts], max[parts];
  for (std::size_t k = 0; k < parts; ++k) {
    sum[k] = square[k] = hn::Zero(wide);
    min[k] = hn::Set(narrow, std::numeric_limits<float>::infinity());
    max[k] = hn::Zero(narrow);
  }
  for (std::size_t i = 0; i < n; i += spread_lanes)
    for (std::size_t k = 0; k < parts; ++k) {
      const auto value = hn::LoadU(narrow, values + i + k * lanes);
      const auto x = hn::PromoteTo(wide, value);
      sum[k] = hn::Add(sum[k], x);
      square[k] = hn::Add(square[k], hn::Mul(x, x));  // x^2 is exact, so it makes no difference whether this is fused
      min[k] = hn::Min(min[k], value);
      max[k] = hn::Max(max[k], value);
    }
  for (std::size_t k = 0; k < parts; ++k) {
    hn::StoreU(sum[k], wide, to.sum + k * lanes);
    hn::StoreU(square[k], wide, to.square + k * lanes);
    hn::StoreU(min[k], narrow, to.min + k * lanes);
    hn::StoreU(max[k], narrow, to.max + k * lanes);
  }
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace {

HWY_EXPORT(compare_tile);
HWY_EXPORT(compare_squares);
HWY_EXPORT(add_squares);
HWY_EXPORT(describe_tile);
HWY_EXPORT(spread);

template <std::size_t n> double total(const float (&sums)[n][4]) {
  double lane[4] = {};
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t j = 0; j < 4; ++j) lane[j] += sums[r][j];
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

// For the block of the largest error, which is known once its tile has been read.
void add_worst_absmax(std::span<const float> reference, std::uint64_t first, ErrorStats& stats) {
  if (stats.worst_square == 0) return;
  const std::size_t begin = stats.worst_square_at - first;
  for (const float weight : reference.subspan(begin, std::min(metric_block, reference.size() - begin)))
    if (std::isfinite(weight)) stats.worst_absmax = std::max(stats.worst_absmax, std::abs(weight));
}

// In fp64, weight by weight: where a number is not finite, or fp32 would not do.
ErrorStats compare_exactly(std::span<const float> reference, std::span<const float> test, std::uint64_t first) {
  ErrorStats stats;
  double block = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (i % metric_block == 0) block = 0;
    const double w = reference[i], t = test[i];
    if (std::isnan(t)) ++stats.nan;
    if (std::isinf(t)) ++stats.inf;
    if (std::isfinite(w) && !std::isfinite(t)) ++stats.lost;
    if (!std::isfinite(w) || !std::isfinite(t)) continue;
    const double e = t - w;
    ++stats.count;
    stats.magnitude += std::abs(e);
    stats.square += e * e;
    stats.product += w * t;
    stats.reference += w * w;
    stats.test += t * t;
    if (w != 0) {
      ++stats.nonzero;
      stats.relative += std::abs(e / w);
    }
    if (std::abs(e) > stats.max_abs) {
      stats.max_abs = std::abs(e);
      stats.max_abs_at = first + i;
    }
    block += e * e;
    if (block > stats.worst_square) {
      stats.worst_square = block;
      stats.worst_square_at = first + i / metric_block * metric_block;
    }
  }
  add_worst_absmax(reference, first, stats);
  return stats;
}

// The positions of the largest error and the worst block are looked up only if these exceed the ones known so far.
ErrorStats compare_tile(std::span<const float> reference, std::span<const float> test, std::uint64_t first,
                        double max_abs, double worst_square) {
  alignas(64) std::array<float, tile_weights> padded[2];
  const float* w = reference.data();
  const float* t = test.data();
  const std::size_t n = reference.size();
  if (n < tile_weights) {
    std::fill(std::copy_n(w, n, padded[0].begin()), padded[0].end(), 0.0f);
    std::fill(std::copy_n(t, n, padded[1].begin()), padded[1].end(), 0.0f);
    w = padded[0].data();
    t = padded[1].data();
  }
  ErrorTile tile;
  HWY_DYNAMIC_DISPATCH(compare_tile)(w, t, tile);
  ErrorStats stats;
  stats.reference = total(tile.reference);
  stats.test = total(tile.test);
  stats.square = total(tile.square);
  stats.relative = total(tile.relative);
  // On both sides, as in pruned weights. A maximum may pass over NaN, a sum does not.
  const bool is_zero = tile.zeros == tile_weights && tile.max_abs == 0 && stats.square == 0;
  if (!is_zero &&
      (!is_usable(stats.reference) || !is_usable(stats.test) || !(is_usable(stats.square) || tile.max_abs == 0) ||
       !(stats.square <= max_sum) || !(stats.relative <= max_sum)))
    return compare_exactly(reference, test, first);
  stats.count = n;
  stats.nonzero = tile_weights - tile.zeros;
  stats.magnitude = total(tile.magnitude);
  stats.product = total(tile.product);
  stats.max_abs = tile.max_abs;
  if (stats.max_abs > max_abs) {
    const auto is_largest = [&](std::size_t i) { return std::abs(t[i] - w[i]) == tile.max_abs; };
    const auto has_largest = [&](std::size_t block) {
      std::uint32_t found = 0;  // counted to the end of the block, because a loop that may stop early is not vectorized
      for (std::size_t i = block; i < block + metric_block; ++i) found += is_largest(i) ? 1 : 0;
      return found > 0;
    };
    std::size_t i = 0;
    while (!has_largest(i)) i += metric_block;
    while (!is_largest(i)) ++i;
    stats.max_abs_at = first + i;
  }
  std::array<float, tile_blocks> blocks;
  float worst = 0;
  for (std::size_t b = 0; b < tile_blocks; ++b) {
    const float(&block)[4] = tile.square[b];
    blocks[b] = (block[0] + block[2]) + (block[1] + block[3]);
    worst = blocks[b] > worst ? blocks[b] : worst;
  }
  if (worst > worst_square) {
    const auto at = std::find(blocks.begin(), blocks.end(), worst) - blocks.begin();
    stats.worst_square = worst;
    stats.worst_square_at = first + static_cast<std::uint64_t>(at) * metric_block;
    add_worst_absmax(reference, first, stats);
  }
  return stats;
}

WeightStats describe_exactly(std::span<const float> weights, float pivot) {
  WeightStats stats;
  stats.pivot = pivot;
  for (std::size_t begin = 0; begin < weights.size(); begin += metric_block) {
    float absmax = 0;
    for (const float weight : weights.subspan(begin, std::min(metric_block, weights.size() - begin))) {
      if (std::isnan(weight)) ++stats.nan;
      if (std::isinf(weight)) ++stats.inf;
      if (!std::isfinite(weight)) continue;
      const double x = static_cast<double>(weight) - pivot;
      ++stats.count;
      stats.first += x;
      stats.second += x * x;
      stats.third += x * x * x;
      stats.fourth += x * x * x * x;
      absmax = std::max(absmax, std::abs(weight));
    }
    ++stats.blocks;
    stats.absmax_sum += absmax;
    stats.absmax_square += static_cast<double>(absmax) * absmax;
    stats.absmax_min = std::min(stats.absmax_min, absmax);
    stats.absmax_max = std::max(stats.absmax_max, absmax);
  }
  return stats;
}

WeightStats describe_tile(std::span<const float> weights, float pivot) {
  // A sum of fourth powers needs more room than one of squares, which bounds it.
  if (weights.size() < tile_weights) return describe_exactly(weights, pivot);
  WeightTile tile;
  HWY_DYNAMIC_DISPATCH(describe_tile)(weights.data(), pivot, tile);
  WeightStats stats;
  stats.pivot = pivot;
  stats.second = total(tile.second);
  stats.fourth = total(tile.fourth);
  if (!is_usable(stats.second) || !is_usable(stats.fourth)) return describe_exactly(weights, pivot);
  stats.count = weights.size();
  stats.first = total(tile.first);
  stats.third = total(tile.third);
  stats.blocks = tile_blocks;
  for (const float absmax : tile.absmax) {
    stats.absmax_sum += absmax;
    stats.absmax_square += static_cast<double>(absmax) * absmax;
    stats.absmax_min = std::min(stats.absmax_min, absmax);
    stats.absmax_max = std::max(stats.absmax_max, absmax);
  }
  return stats;
}

double ratio(double a, double b) { return b == 0 ? std::numeric_limits<double>::quiet_NaN() : a / b; }
double ratio(double a, std::uint64_t b) { return ratio(a, static_cast<double>(b)); }

}  // namespace

void ErrorStats::add(const ErrorStats& next) {
  ErrorSums::add(next);
  nonzero += next.nonzero;
  nan += next.nan;
  inf += next.inf;
  lost += next.lost;
  magnitude += next.magnitude;
  relative += next.relative;
  if (next.max_abs > max_abs) {
    max_abs = next.max_abs;
    max_abs_at = next.max_abs_at;
  }
  if (next.worst_square > worst_square) {
    worst_square = next.worst_square;
    worst_square_at = next.worst_square_at;
    worst_absmax = next.worst_absmax;
  }
}

double ErrorStats::mae() const { return ratio(magnitude, count); }
double ErrorSums::rmse() const { return std::sqrt(ratio(square, count)); }
double ErrorSums::rel_rmse() const { return std::sqrt(ratio(square, reference)); }
double ErrorSums::sqnr_db() const {
  if (count == 0) return std::numeric_limits<double>::quiet_NaN();
  return square == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(reference / square);
}
double ErrorSums::cosine() const {
  if (count > 0 && square == 0) return 1;
  const double w = std::sqrt(reference), t = std::sqrt(test);
  // If they are close, 1 - cosine is small and follows from the errors; computed from the product, it would be lost.
  if (square < reference / 4) return std::min(1 - (square - (w - t) * (w - t)) / (2 * w * t), 1.0);
  const double cosine = ratio(product, w * t);
  return std::isnan(cosine) ? cosine : std::clamp(cosine, -1.0, 1.0);
}
double ErrorStats::mean_rel() const { return ratio(relative, nonzero); }
double ErrorStats::worst_rmse() const {
  return std::sqrt(worst_square /
                   static_cast<double>(std::min<std::uint64_t>(std::max<std::uint64_t>(count, 1), metric_block)));
}

void compare(std::span<const float> reference, std::span<const float> test, std::uint64_t first, ErrorStats& stats) {
  if (reference.size() != test.size())
    throw Error(Errc::usage,
                std::to_string(reference.size()) + " weights cannot be compared with " + std::to_string(test.size()));
  for (std::size_t i = 0; i < reference.size(); i += tile_weights) {
    const std::size_t n = std::min(tile_weights, reference.size() - i);
    stats.add(compare_tile(reference.subspan(i, n), test.subspan(i, n), first + i, stats.max_abs, stats.worst_square));
  }
}

ErrorStats compare(std::span<const float> reference, std::span<const float> test, std::uint64_t first) {
  ErrorStats stats;
  compare(reference, test, first, stats);
  return stats;
}

void Spread::add(std::span<const float> values) {
  const std::size_t whole = values.size() - values.size() % spread_lanes;
  SpreadLanes lanes;
  HWY_DYNAMIC_DISPATCH(spread)(values.data(), whole, lanes);
  for (std::size_t k = 0; k < spread_lanes; ++k)
    add({whole / spread_lanes, lanes.sum[k], lanes.square[k], lanes.min[k], lanes.max[k]});
  for (const float value : values.subspan(whole)) add(value);
}

double Spread::mean() const { return ratio(sum, count); }
double Spread::std() const { return std::sqrt(std::max(ratio(square, count) - mean() * mean(), 0.0)); }

ErrorSums compare_squares(std::span<const float> reference, std::span<const float> test) {
  const std::size_t n = reference.size(), whole = n - n % metric_block;
  if (n != test.size() || n > tile_weights)
    throw Error(Errc::usage, std::to_string(n) + " weights cannot be compared with " + std::to_string(test.size()));
  ErrorSums sums;
  const auto add = [&](const float* w, const float* t, std::size_t blocks, std::size_t count) {
    Squares squares;
    HWY_DYNAMIC_DISPATCH(compare_squares)(w, t, blocks, squares);
    add_squares_of_lanes(squares, count, sums);
  };
  add(reference.data(), test.data(), whole / metric_block, whole);
  if (whole < n) {
    // The rest, padded with zeros, as one more block.
    alignas(64) std::array<float, metric_block> padded[2] = {};
    std::copy(reference.begin() + static_cast<std::ptrdiff_t>(whole), reference.end(), padded[0].begin());
    std::copy(test.begin() + static_cast<std::ptrdiff_t>(whole), test.end(), padded[1].begin());
    add(padded[0].data(), padded[1].data(), 1, n - whole);
  }
  if (!are_usable(sums)) sums = static_cast<const ErrorSums&>(compare_exactly(reference, test, 0));
  return sums;
}

void add_squares(std::span<const float> weights, std::span<float> sums) {
  if (weights.size() != sums.size())
    throw Error(Errc::usage,
                std::to_string(weights.size()) + " weights do not fit " + std::to_string(sums.size()) + " sums");
  HWY_DYNAMIC_DISPATCH(add_squares)(weights.data(), weights.size(), sums.data());
}

void WeightStats::add(const WeightStats& next) {
  count += next.count;
  nan += next.nan;
  inf += next.inf;
  beyond_fp32 += next.beyond_fp32;
  first += next.first;
  second += next.second;
  third += next.third;
  fourth += next.fourth;
  blocks += next.blocks;
  absmax_sum += next.absmax_sum;
  absmax_square += next.absmax_square;
  absmax_min = std::min(absmax_min, next.absmax_min);
  absmax_max = std::max(absmax_max, next.absmax_max);
}

double WeightStats::mean() const { return pivot + ratio(first, count); }
double WeightStats::rms() const {
  const double shift = pivot;
  return std::sqrt(std::max(ratio(second, count) + 2 * shift * ratio(first, count) + shift * shift, 0.0));
}
double WeightStats::kurtosis() const {
  // Central moments from those about the pivot.
  const double m = ratio(first, count), m2 = ratio(second, count), m3 = ratio(third, count), m4 = ratio(fourth, count);
  const double variance = m2 - m * m;
  if (variance <= 1e-12 * m2) return std::numeric_limits<double>::quiet_NaN();  // all are equal except for rounding
  return (m4 - 4 * m * m3 + 6 * m * m * m2 - 3 * m * m * m * m) / (variance * variance);
}
double WeightStats::absmax_mean() const { return ratio(absmax_sum, blocks); }
double WeightStats::absmax_std() const {
  const double mean = absmax_mean();
  return std::sqrt(std::max(ratio(absmax_square, blocks) - mean * mean, 0.0));
}

float choose_pivot(std::span<const float> weights) {
  double sum = 0;
  std::size_t n = 0;
  for (const float weight : weights.first(std::min(tile_weights, weights.size()))) {
    if (!std::isfinite(weight)) continue;
    sum += weight;
    ++n;
  }
  return n == 0 ? 0.0f : static_cast<float>(sum / static_cast<double>(n));
}

WeightStats describe(std::span<const float> weights, float pivot) {
  WeightStats stats;
  stats.pivot = pivot;
  for (std::size_t i = 0; i < weights.size(); i += tile_weights)
    stats.add(describe_tile(weights.subspan(i, std::min(tile_weights, weights.size() - i)), pivot));
  return stats;
}

}  // namespace nibble
#endif
