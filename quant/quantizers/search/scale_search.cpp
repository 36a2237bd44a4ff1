// Compiled once per CPU target. Each lane of a vector searches a block of its own, in 16-bit integers: weights are
// multiples of 1/4095 of the block's largest magnitude, and so are the values of the codebook. Sums of 64 products are
// exact, and are added in the order of the weights.
#include "quant/quantizers/search/scale_search.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "quant/errors/squares.hpp"
#include "quant/simd/magnitude.hpp"
#include "quant/simd/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/quantizers/search/scale_search.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/codecs/four_bit/four_bit_guess-inl.hpp"

#ifndef NIBBLE_QUANT_SCALE_SEARCH
#define NIBBLE_QUANT_SCALE_SEARCH
namespace nibble {

inline constexpr std::size_t max_lanes = 16;

// A and B of the block of each lane, for one scale, times 4095^2.
struct SearchSums {
  alignas(64) std::array<float, max_lanes> product{}, square{};
};

// One over a scale that is relative to the largest magnitude, for two weights: 8 w * inverse / 2^15 is the position of
// w / scale on FourBitTables::grid, over 8.
using Inverse = std::array<std::int16_t, 2>;

}  // namespace nibble
#endif

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, max_lanes>;
using V = hn::Vec<D>;
constexpr std::size_t lanes = hn::MaxLanes(D());
constexpr std::size_t exact = 64;  // weights whose sums fit 32 bits: products are below 2^24

#if HWY_TARGET != HWY_SCALAR

using DI = hn::RebindToSigned<D>;
using VI = hn::Vec<DI>;
using D16 = hn::Repartition<std::int16_t, D>;
using V16 = hn::Vec<D16>;
using D8 = hn::Repartition<std::uint8_t, D>;

// For weights i, i + 1, ..., i + 7 of each lane: the pairs (i, i + 4), (i + 1, i + 5), ... of all lanes. A weight is
// factor[lane] * row[lane][i], rounded. n is a multiple of 8.
void interleave(const float* const* HWY_RESTRICT row, std::size_t n, const float* HWY_RESTRICT factor,
                std::int16_t* HWY_RESTRICT weights) {
  static_assert(lanes % 4 == 0);
  const hn::Full128<float> d;
  const hn::Full128<std::int16_t> d16;
  const hn::Full128<std::int32_t> d32;
  const auto rounding = hn::Set(d, FourBitTables::rounding);
  for (std::size_t lane = 0; lane < lanes; lane += 4)
    for (std::size_t i = 0; i < n; i += 8) {
      const auto pairs = [&](std::size_t k) HWY_ATTR {
        const auto scale = hn::Set(d, factor[lane + k]);
        const float* const from = row[lane + k] + i;
        const auto first = hn::BitCast(d32, hn::Add(hn::Mul(hn::LoadU(d, from), scale), rounding));
        const auto second = hn::BitCast(d32, hn::Add(hn::Mul(hn::LoadU(d, from + 4), scale), rounding));
        return hn::BitCast(d32, hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(second)), hn::BitCast(d16, first)));
      };
      const auto a = pairs(0), b = pairs(1), c = pairs(2), e = pairs(3);
      const auto ab = hn::InterleaveLower(d32, a, b), ce = hn::InterleaveLower(d32, c, e);
      const auto ab_upper = hn::InterleaveUpper(d32, a, b), ce_upper = hn::InterleaveUpper(d32, c, e);
      const auto store = [&](auto four, std::size_t k) HWY_ATTR {
        hn::Store(hn::BitCast(d16, four), d16, weights + 2 * ((i / 2 + k) * lanes + lane));
      };
      store(hn::ConcatLowerLower(d32, ce, ab), 0);
      store(hn::ConcatUpperUpper(d32, ce, ab), 1);
      store(hn::ConcatLowerLower(d32, ce_upper, ab_upper), 2);
      store(hn::ConcatUpperUpper(d32, ce_upper, ab_upper), 3);
    }
}

// Sums of products of the pairs in every lane.
class PairSums {
 public:
  HWY_INLINE PairSums() : lower_(hn::Zero(DI())), upper_(hn::Zero(DI())) {}

  HWY_INLINE void add(V16 a, V16 b) { lower_ = hn::ReorderWidenMulAccumulate(DI(), a, b, lower_, upper_); }
  HWY_INLINE V get() const { return hn::ConvertTo(D(), hn::RearrangeToOddPlusEven(lower_, upper_)); }

 private:
  VI lower_, upper_;
};

// Adds n weights of every lane to the sums of its scale; n is a multiple of 4. add(w, c, i, product, square) adds the
// weights w, which begin with weight i of every lane, and the values c of their codes to the two sums.
template <class Add>
HWY_INLINE void add_sums_of(const FourBitTables& tables, const ScaleSearch::Values& values,
                            const std::int16_t* HWY_RESTRICT weights, std::size_t n,
                            const Inverse* HWY_RESTRICT inverse, SearchSums* HWY_RESTRICT sums, Add&& add) {
  const D d;
  const D16 d16;
  const NumbersByGuess<D16> numbers(tables);
  const auto lower = hn::LoadDup128(D8(), values.lower.data()), upper = hn::LoadDup128(D8(), values.upper.data());
  const V16 least = hn::Set(d16, -32767), factor = hn::LoadU(d16, inverse->data());
  // Doubled three times; what is beyond the ends of the codebook is saturated.
  const auto position = [&](V16 w) HWY_ATTR {
    V16 x = hn::MulFixedPoint15(hn::ShiftLeft<3>(w), factor);
    x = hn::SaturatedAdd(x, x);
    x = hn::SaturatedAdd(x, x);
    return hn::Max(hn::SaturatedAdd(x, x), least);
  };
  for (std::size_t begin = 0; begin < n; begin += exact) {
    PairSums product, square;
    for (std::size_t i = begin; i < std::min(n, begin + exact); i += 4) {
      const V16 wa = hn::Load(d16, weights + i * lanes), wb = hn::Load(d16, weights + (i + 2) * lanes);
      const auto number = numbers.of(position(wa), position(wb));
      const auto both = pack_bytes(number.a, number.b);
      const auto low = hn::TableLookupBytes(lower, both), high = hn::TableLookupBytes(upper, both);
      const V16 ca = hn::BitCast(d16, hn::InterleaveLower(D8(), low, high));
      const V16 cb = hn::BitCast(d16, hn::InterleaveUpper(D8(), low, high));
      add(wa, ca, i, product, square);
      add(wb, cb, i + 2, product, square);
    }
    hn::Store(hn::Add(hn::Load(d, sums->product.data()), product.get()), d, sums->product.data());
    hn::Store(hn::Add(hn::Load(d, sums->square.data()), square.get()), d, sums->square.data());
  }
}

void add_sums(const FourBitTables& tables, const ScaleSearch::Values& values, const std::int16_t* HWY_RESTRICT weights,
              std::size_t n, const Inverse* HWY_RESTRICT inverse, SearchSums* HWY_RESTRICT sums) {
  add_sums_of(tables, values, weights, n, inverse, sums,
              [](V16 w, V16 c, std::size_t, PairSums& product, PairSums& square) HWY_ATTR {
                product.add(w, c);
                square.add(c, c);
              });
}

void add_weighted_sums(const FourBitTables& tables, const ScaleSearch::Values& values,
                       const std::int16_t* HWY_RESTRICT weights, const std::int16_t* HWY_RESTRICT weighted,
                       const std::int16_t* HWY_RESTRICT roots, std::size_t n, const Inverse* HWY_RESTRICT inverse,
                       SearchSums* HWY_RESTRICT sums) {
  const D16 d16;
  add_sums_of(tables, values, weights, n, inverse, sums,
              [&](V16, V16 c, std::size_t i, PairSums& product, PairSums& square) HWY_ATTR {
                const V16 value = hn::MulFixedPoint15(c, hn::Load(d16, roots + i * lanes));
                product.add(hn::Load(d16, weighted + i * lanes), value);
                square.add(value, value);
              });
}

void weigh(const std::int16_t* HWY_RESTRICT weights, const std::int16_t* HWY_RESTRICT roots, std::size_t n,
           std::int16_t* HWY_RESTRICT weighted) {
  const D16 d16;
  for (std::size_t i = 0; i < n * lanes; i += hn::Lanes(d16))
    hn::Store(hn::MulFixedPoint15(hn::Load(d16, weights + i), hn::Load(d16, roots + i)), d16, weighted + i);
}

#else

void interleave(const float* const* HWY_RESTRICT row, std::size_t n, const float* HWY_RESTRICT factor,
                std::int16_t* HWY_RESTRICT weights) {
  for (std::size_t i = 0; i < n; ++i)
    weights[i] =
        static_cast<std::int16_t>(std::bit_cast<std::int32_t>(row[0][i] * factor[0] + FourBitTables::rounding));
}

int times_root(int value, int root) { return (value * root + (1 << 14)) >> 15; }

// factors(i, c) are what counts for weight i and the value c of its code.
template <class Factors>
void add_sums_of(const FourBitTables& tables, const ScaleSearch::Values& values, const std::int16_t* weights,
                 std::size_t n, const Inverse* inverse, SearchSums* sums, Factors&& factors) {
  for (std::size_t begin = 0; begin < n; begin += exact) {
    std::int32_t product = 0, square = 0;
    for (std::size_t i = begin; i < std::min(n, begin + exact); ++i) {
      const int over_8 = (weights[i] * 8 * inverse[0][0] + (1 << 14)) >> 15;
      const int x = std::clamp(8 * over_8, -32767, 32767), guess = tables.guess(x);
      const auto [weight, value] =
          factors(i, values.of(static_cast<std::size_t>(guess + (x > tables.position(guess) ? 1 : 0))));
      product += weight * value;
      square += value * value;
    }
    sums->product[0] += static_cast<float>(product);
    sums->square[0] += static_cast<float>(square);
  }
}

void add_sums(const FourBitTables& tables, const ScaleSearch::Values& values, const std::int16_t* weights,
              std::size_t n, const Inverse* inverse, SearchSums* sums) {
  add_sums_of(tables, values, weights, n, inverse, sums,
              [&](std::size_t i, int value) { return std::pair<int, int>(weights[i], value); });
}

void add_weighted_sums(const FourBitTables& tables, const ScaleSearch::Values& values, const std::int16_t* weights,
                       const std::int16_t* weighted, const std::int16_t* roots, std::size_t n, const Inverse* inverse,
                       SearchSums* sums) {
  add_sums_of(tables, values, weights, n, inverse, sums,
              [&](std::size_t i, int value) { return std::pair<int, int>(weighted[i], times_root(value, roots[i])); });
}

void weigh(const std::int16_t* weights, const std::int16_t* roots, std::size_t n, std::int16_t* weighted) {
  for (std::size_t i = 0; i < n; ++i) weighted[i] = static_cast<std::int16_t>(times_root(weights[i], roots[i]));
}

#endif

// For each lane, if the A^2 / B of one of the sums is above `best`: raises it, and writes that A / B to `scale`.
void choose(const SearchSums* HWY_RESTRICT sums, std::size_t count, float* HWY_RESTRICT best,
            float* HWY_RESTRICT scale) {
  const D d;
  V greatest = hn::Load(d, best), chosen = hn::Load(d, scale);
  for (std::size_t c = 0; c < count; ++c) {
    const V product = hn::Load(d, sums[c].product.data()), square = hn::Load(d, sums[c].square.data());
    const V gain = hn::Div(hn::Mul(product, product), square);  // NaN if all codes are 0: not greater
    const auto wins = hn::Gt(gain, greatest);
    greatest = hn::IfThenElse(wins, gain, greatest);
    chosen = hn::IfThenElse(wins, hn::Div(product, square), chosen);
  }
  hn::Store(greatest, d, best);
  hn::Store(chosen, d, scale);
}

std::size_t lanes_of_target() { return lanes; }

}  // namespace
}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace {

HWY_EXPORT(interleave);
HWY_EXPORT(add_sums);
HWY_EXPORT(add_weighted_sums);
HWY_EXPORT(weigh);
HWY_EXPORT(choose);
HWY_EXPORT(lanes_of_target);

constexpr std::size_t segment = 128;  // weights of a block that are held at a time: those of 16 blocks fit in L1
constexpr float min_magnitude = 1e-30f, max_magnitude = 1e30f;
constexpr float unit = 4095;        // the integer of the largest magnitude; 8 times as much fits 16 bits
constexpr float root_unit = 32767;  // the integer of the largest root of a block

Inverse inverse_of(float scale) {
  const float inverse = scale == 0 ? 0.0f : std::rint(FourBitTables::grid * (4096 / unit) / 8 / scale);
  const auto value = static_cast<std::int16_t>(std::clamp(inverse, -32767.0f, 32767.0f));
  return {value, value};
}

using InverseOfLanes = std::array<Inverse, max_lanes>;

// As many blocks as a vector has lanes.
class Group {
 public:
  Group(DType source, std::span<const std::byte> weights, std::size_t blocksize, const ColumnsFrom& columns)
      : source_(source), size_(traits(source).bits / 8), weights_(weights), blocksize_(blocksize), columns_(columns) {}

  [[nodiscard]] std::size_t lanes() const { return lanes_; }

  // The largest magnitude of each of the blocks first, first + 1, ...; NaN or infinity if it has one.
  void find_largest(std::size_t first, std::span<float> largest) const {
    for (std::size_t b = 0; b < largest.size(); ++b) largest[b] = largest_of(first + b);
  }

  static bool is_searched(float largest) { return largest >= min_magnitude && largest <= max_magnitude; }

  // Sums over the blocks first, first + 1, ... for scales that are each given for every lane. Blocks that are not
  // searched count as zeros.
  void sum(const FourBitTables& tables, const ScaleSearch::Values& values, std::size_t first,
           std::span<const float> largest, std::span<const InverseOfLanes> inverse, std::span<SearchSums> sums) const {
    static constexpr std::array<float, segment> zeros{};
    alignas(64) std::array<std::int16_t, segment * max_lanes> interleaved, roots, weighted;
    alignas(64) std::array<std::array<float, segment>, max_lanes> room;
    std::array<float, max_lanes> factors{}, root_factors{};
    for (std::size_t lane = 0; lane < largest.size(); ++lane)
      if (is_searched(largest[lane])) {
        factors[lane] = unit / largest[lane];
        if (weighs()) root_factors[lane] = root_unit / largest_root_of(first + lane, room[lane]);
      }
    std::array<const float*, max_lanes> rows;
    for (std::size_t at = 0; at < blocksize_; at += segment) {
      const std::size_t n = std::min(segment, blocksize_ - at);
      for (std::size_t lane = 0; lane < lanes_; ++lane)
        rows[lane] = factors[lane] == 0 ? zeros.data() : part_of(first + lane, at, n, room[lane]).data();
      HWY_DYNAMIC_DISPATCH(interleave)(rows.data(), n, factors.data(), interleaved.data());
      if (!weighs()) {
        for (std::size_t s = 0; s < sums.size(); ++s)
          HWY_DYNAMIC_DISPATCH(add_sums)(tables, values, interleaved.data(), n, inverse[s].data(), &sums[s]);
        continue;
      }
      for (std::size_t lane = 0; lane < lanes_; ++lane)
        rows[lane] = factors[lane] == 0 ? zeros.data() : roots_of(first + lane, at, n, room[lane]).data();
      HWY_DYNAMIC_DISPATCH(interleave)(rows.data(), n, root_factors.data(), roots.data());
      HWY_DYNAMIC_DISPATCH(weigh)(interleaved.data(), roots.data(), n, weighted.data());
      auto& add = HWY_DYNAMIC_DISPATCH(add_weighted_sums);
      for (std::size_t s = 0; s < sums.size(); ++s)
        add(tables, values, interleaved.data(), weighted.data(), roots.data(), n, inverse[s].data(), &sums[s]);
    }
  }

 private:
  [[nodiscard]] float largest_of(std::size_t block) const {
    if (source_ != DType::f64) return largest_magnitude(source_, bytes_of(block, 0, blocksize_));
    float largest = 0;
    std::array<float, segment> room;
    for (std::size_t at = 0; at < blocksize_ && std::isfinite(largest); at += segment) {
      const float next = largest_magnitude(DType::f32, std::as_bytes(part_of(block, at, segment, room)));
      largest = next <= largest ? largest : next;
    }
    return largest;
  }

  [[nodiscard]] bool weighs() const { return columns_.columns != nullptr; }

  // Those of n weights of a block from weight `at` of it on, as if there were as many.
  [[nodiscard]] std::span<const float> roots_of(std::size_t block, std::size_t at, std::size_t n,
                                                std::span<float> room) const {
    return columns_.columns->roots(columns_.first + block * blocksize_ + at, n, room);
  }

  [[nodiscard]] float largest_root_of(std::size_t block, std::span<float> room) const {
    float largest = 0;
    for (std::size_t at = 0; at < blocksize_; at += segment) {
      const auto roots = roots_of(block, at, std::min(segment, blocksize_ - at), room);
      largest = std::max(largest, largest_magnitude(DType::f32, std::as_bytes(roots)));
    }
    return largest;
  }

  // n weights of a block from weight `at` of it on, or as many as there are.
  [[nodiscard]] std::span<const std::byte> bytes_of(std::size_t block, std::size_t at, std::size_t n) const {
    const std::size_t begin = std::min((block * blocksize_ + at) * size_, weights_.size());
    return weights_.subspan(begin, std::min(std::min(n, blocksize_ - at) * size_, weights_.size() - begin));
  }

  // The same, followed by zeros if there are fewer.
  [[nodiscard]] std::span<const float> part_of(std::size_t block, std::size_t at, std::size_t n,
                                               std::span<float> room) const {
    const auto part = widen(source_, bytes_of(block, at, n), room);
    if (part.size() == n) return part;
    if (part.data() != room.data()) std::ranges::copy(part, room.begin());
    std::ranges::fill(room.subspan(part.size()), 0.0f);
    return room;
  }

  DType source_;
  std::size_t size_;
  std::span<const std::byte> weights_;
  std::size_t blocksize_;
  ColumnsFrom columns_;
  std::size_t lanes_ = HWY_DYNAMIC_DISPATCH(lanes_of_target)();
};

}  // namespace

ScaleSearch::Values::Values(const FourBitTables& tables) {
  std::size_t count = 0;
  float last = 0;
  for (const std::uint8_t code : tables.code) {
    const float value = tables.codebook[code];
    if (count > 0 && value == last) continue;
    const auto rounded = static_cast<std::int16_t>(std::rint(value * unit));
    lower[count] = static_cast<std::uint8_t>(rounded & 0xFF);
    upper[count] = static_cast<std::uint8_t>(rounded >> 8 & 0xFF);
    last = value;
    ++count;
  }
}

ScaleSearch::ScaleSearch(const FourBitTables& tables, std::size_t blocksize, AbsmaxChoice choice)
    : tables_(tables),
      values_(tables),
      blocksize_(blocksize),
      ratios_(search_ratios(blocksize, choice)),
      weighted_ratios_(blocksize, choice) {}

void ScaleSearch::find(DType source, std::span<const std::byte> weights, std::span<float> absmax,
                       const ColumnsFrom& columns) const {
  const auto ratios = columns.columns != nullptr ? weighted_ratios_.get() : ratios_;
  std::array<InverseOfLanes, max_search_ratios> tried;
  for (std::size_t i = 0; i < ratios.size(); ++i) tried[i].fill(inverse_of(ratios[i]));
  const Group group(source, weights, blocksize_, columns);
  for (std::size_t first = 0; first < absmax.size(); first += group.lanes()) {
    const auto largest = absmax.subspan(first, std::min(group.lanes(), absmax.size() - first));
    group.find_largest(first, largest);

    alignas(64) std::array<float, max_lanes> best{}, scale;
    scale.fill(1.0f);
    std::array<SearchSums, max_search_ratios> sums{};
    group.sum(tables_, values_, first, largest, tried, std::span(sums).first(ratios.size()));
    HWY_DYNAMIC_DISPATCH(choose)(sums.data(), ratios.size(), best.data(), scale.data());

    std::array<InverseOfLanes, 1> refined;
    std::ranges::transform(scale, refined[0].begin(), inverse_of);
    std::array<SearchSums, 1> last{};
    group.sum(tables_, values_, first, largest, refined, last);
    HWY_DYNAMIC_DISPATCH(choose)(last.data(), 1, best.data(), scale.data());
    std::array<float, max_lanes> fitted{};  // 0 for blocks that are not searched
    for (std::size_t b = 0; b < largest.size(); ++b)
      if (Group::is_searched(largest[b])) fitted[b] = largest[b] * scale[b];
    const std::size_t size = blocksize_ * traits(source).bits / 8, begin = first * size;
    refit(source, weights.subspan(begin, std::min(largest.size() * size, weights.size() - begin)),
          std::span(fitted).first(largest.size()), columns.after(first * blocksize_));
    for (std::size_t b = 0; b < largest.size(); ++b) {
      if (fitted[b] != 0) largest[b] = fitted[b];
      if (!std::isfinite(largest[b])) largest[b] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

void ScaleSearch::refit(DType source, std::span<const std::byte> weights, std::span<float> absmax,
                        const ColumnsFrom& columns) const {
  std::array<std::uint8_t, tile_weights / 2> codes;
  alignas(64) std::array<float, tile_weights> tile, room;
  const std::size_t size = traits(source).bits / 8, n = weights.size() / size, step = tile_weights / blocksize_;
  for (std::size_t b = 0; b < absmax.size(); b += step) {
    const std::size_t first = b * blocksize_, count = std::min(tile_weights, n - first);
    const auto part = weights.subspan(first * size, count * size);
    const auto some = absmax.subspan(b, std::min(step, absmax.size() - b));
    const auto packed = std::span(codes).first(ceil_div(count, 2));
    const auto decoded = std::span(tile).first(count);
    encode_four_bit_for(tables_, source, part, blocksize_, some, packed);
    decode_four_bit(tables_, packed, some, blocksize_, decoded);
    auto wide = widen(source, part, room);
    if (columns.columns != nullptr) {
      if (wide.data() != room.data()) std::ranges::copy(wide, room.begin());
      wide = std::span(room).first(count);
      columns.columns->apply(columns.first + first, std::span(room).first(count));
      columns.columns->apply(columns.first + first, decoded);
    }
    for (std::size_t i = 0; i < some.size(); ++i) {
      const std::size_t begin = i * blocksize_, length = std::min(blocksize_, count - begin);
      const ErrorSums sums = compare_squares(wide.subspan(begin, length), decoded.subspan(begin, length));
      if (sums.test > 0) some[i] = static_cast<float>(some[i] * (sums.product / sums.test));
    }
  }
}

void ScaleSearch::take_better(DType source, std::span<const std::byte> weights, std::span<float> absmax,
                              std::span<const float> other, const ColumnsFrom& columns) const {
  const Group group(source, weights, blocksize_, columns);
  for (std::size_t first = 0; first < absmax.size(); first += group.lanes()) {
    const std::size_t count = std::min(group.lanes(), absmax.size() - first);
    std::array<float, max_lanes> room;
    const auto largest = std::span(room).first(count);
    group.find_largest(first, largest);

    std::array<std::array<float, max_lanes>, 2> scale{};
    for (std::size_t b = 0; b < count; ++b)
      if (Group::is_searched(largest[b])) {
        scale[0][b] = absmax[first + b] / largest[b];
        scale[1][b] = other[first + b] / largest[b];
      }
    std::array<InverseOfLanes, 2> inverse;
    for (std::size_t k = 0; k < 2; ++k) std::ranges::transform(scale[k], inverse[k].begin(), inverse_of);
    std::array<SearchSums, 2> sums{};
    group.sum(tables_, values_, first, largest, inverse, sums);
    for (std::size_t b = 0; b < count; ++b) {
      const auto gain = [&](std::size_t k) {
        return scale[k][b] * (2 * sums[k].product[b] - scale[k][b] * sums[k].square[b]);
      };
      if (gain(1) > gain(0)) absmax[first + b] = other[first + b];
    }
  }
}

}  // namespace nibble
#endif
