// Compiled once per CPU target. Each lane of a vector searches a block of its own: sums then run in the order of the
// weights, whatever the length of vectors.
#include "quant/quantizers/search/scale_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "quant/simd/magnitude.hpp"
#include "quant/simd/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/quantizers/search/scale_search.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef NIBBLE_QUANT_SCALE_SEARCH
#define NIBBLE_QUANT_SCALE_SEARCH
namespace nibble {

inline constexpr std::size_t max_lanes = 16;

// A and B of the block of each lane, for one scale.
struct SearchSums {
  alignas(64) std::array<float, max_lanes> product{}, square{};
};

}  // namespace nibble
#endif

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, max_lanes>;
using V = hn::Vec<D>;
constexpr std::size_t lanes = hn::MaxLanes(D());

// The value of the codebook that is nearest to v.
class NearestValue {
 public:
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  explicit HWY_INLINE NearestValue(const ScaleSearch::Nearest& tables)
      : midpoint_(load(tables.midpoint)), below_(load(tables.below)), above_(load(tables.above)) {}

  HWY_INLINE V operator()(V v) const {
    // The sign of v and the smaller magnitude of v and 1. A factor of 16 would put 1 into bucket 32.
    const __m512 clamped = _mm512_range_ps(v.raw, _mm512_set1_ps(1.0f), 2);
    const __m512i bucket =
        _mm512_cvttps_epi32(_mm512_fmadd_ps(clamped, _mm512_set1_ps(15.9999f), _mm512_set1_ps(16.0f)));
    const __mmask16 is_above = _mm512_cmp_ps_mask(clamped, midpoint_.at(bucket), _CMP_GT_OQ);
    return V{_mm512_mask_mov_ps(below_.at(bucket), is_above, above_.at(bucket))};
  }

 private:
  struct Table {
    __m512 lower, upper;
    HWY_INLINE __m512 at(__m512i bucket) const { return _mm512_permutex2var_ps(lower, bucket, upper); }
  };
  static HWY_INLINE Table load(const std::array<float, 32>& values) {
    return {_mm512_load_ps(values.data()), _mm512_load_ps(values.data() + 16)};
  }
  Table midpoint_, below_, above_;
#else
  explicit HWY_INLINE NearestValue(const ScaleSearch::Nearest& tables) : tables_(tables) {}

  HWY_INLINE V operator()(V v) const {
    const D d;
    V value = hn::Set(d, tables_.value[0]);
    for (std::size_t k = 1; k < tables_.values; ++k) {
      const float midpoint = (tables_.value[k - 1] + tables_.value[k]) / 2;
      value = hn::IfThenElse(hn::Gt(v, hn::Set(d, midpoint)), hn::Set(d, tables_.value[k]), value);
    }
    return value;
  }

 private:
  const ScaleSearch::Nearest& tables_;
#endif
};

// Adds n weights of every lane to the sums of `count` scales, given one over each of them.
template <std::size_t count>
HWY_INLINE void add_products(const NearestValue& nearest, const float* HWY_RESTRICT weights, std::size_t n,
                             const V* HWY_RESTRICT inverse, SearchSums* HWY_RESTRICT sums) {
  const D d;
  V product[count], square[count];
  for (std::size_t c = 0; c < count; ++c) {
    product[c] = hn::Load(d, sums[c].product.data());
    square[c] = hn::Load(d, sums[c].square.data());
  }
  for (std::size_t i = 0; i < n; ++i) {
    const V w = hn::Load(d, weights + i * lanes);
    for (std::size_t c = 0; c < count; ++c) {
      const V value = nearest(hn::Mul(w, inverse[c]));
      product[c] = hn::Add(product[c], hn::Mul(w, value));
      square[c] = hn::Add(square[c], hn::Mul(value, value));
    }
  }
  for (std::size_t c = 0; c < count; ++c) {
    hn::Store(product[c], d, sums[c].product.data());
    hn::Store(square[c], d, sums[c].square.data());
  }
}

// For scales that all lanes share.
void add_shared(const ScaleSearch::Nearest& tables, const float* HWY_RESTRICT weights, std::size_t n,
                const float* HWY_RESTRICT inverse, std::size_t count, SearchSums* HWY_RESTRICT sums) {
  const NearestValue nearest(tables);
  const D d;
  std::size_t c = 0;
  for (; c + 4 <= count; c += 4) {
    const V factors[] = {hn::Set(d, inverse[c]), hn::Set(d, inverse[c + 1]), hn::Set(d, inverse[c + 2]),
                         hn::Set(d, inverse[c + 3])};
    add_products<4>(nearest, weights, n, factors, sums + c);
  }
  for (; c < count; ++c) {
    const V factor = hn::Set(d, inverse[c]);
    add_products<1>(nearest, weights, n, &factor, sums + c);
  }
}

// For a scale of each lane.
void add_own(const ScaleSearch::Nearest& tables, const float* HWY_RESTRICT weights, std::size_t n,
             const float* HWY_RESTRICT inverse, SearchSums* HWY_RESTRICT sums) {
  const V factor = hn::Load(D(), inverse);
  add_products<1>(NearestValue(tables), weights, n, &factor, sums);
}

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

// The number of midpoints below w * inverse for n weights, a multiple of the lanes.
void count_midpoints(const FourBitTables& tables, const float* HWY_RESTRICT weights, std::size_t n, float inverse,
                     std::uint8_t* HWY_RESTRICT numbers) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V factor = hn::Set(d, inverse);
  const auto above = [&](V v, float limit)
                         HWY_ATTR { return hn::VecFromMask(di, hn::RebindMask(di, hn::Gt(v, hn::Set(d, limit)))); };
  for (std::size_t i = 0; i < n; i += lanes) {
    const V v = hn::Mul(hn::LoadU(d, weights + i), factor);
    auto number = tables.splits_zero ? above(v, 0.0f) : hn::Zero(di);
    for (std::size_t k = 0; k < tables.midpoints; ++k) number = hn::Add(number, above(v, tables.midpoint[k]));
    hn::StoreU(hn::DemoteTo(hn::Rebind<std::uint8_t, D>(), hn::Neg(number)), hn::Rebind<std::uint8_t, D>(),
               numbers + i);
  }
}

std::size_t lanes_of_target() { return lanes; }

}  // namespace
}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace {

HWY_EXPORT(add_shared);
HWY_EXPORT(add_own);
HWY_EXPORT(choose);
HWY_EXPORT(count_midpoints);
HWY_EXPORT(lanes_of_target);

constexpr std::size_t segment = 256;  // weights of a block that are held at a time
constexpr float min_magnitude = 1e-30f, max_magnitude = 1e30f;

// Finite, as 1e-38 takes the place of smaller magnitudes; 0 for 0.
float inverse_of(float absmax) {
  return absmax == 0 ? 0.0f : 1.0f / std::copysign(std::max(std::abs(absmax), 1e-38f), absmax);
}

// As many blocks as a vector has lanes.
class Group {
 public:
  Group(DType source, std::span<const std::byte> weights, std::size_t blocksize)
      : source_(source), size_(traits(source).bits / 8), weights_(weights), blocksize_(blocksize) {}

  [[nodiscard]] std::size_t lanes() const { return lanes_; }

  // Calls f(weights, n) for parts of the blocks first, first + 1, ...: n weights of every lane, side by side, times the
  // factor of the lane. Lanes without a factor, or with 0, have zeros.
  template <class F> void for_each_part(std::size_t first, std::span<const float> factors, F&& f) const {
    alignas(64) std::array<float, segment * max_lanes> transposed;
    std::array<float, segment> room;
    for (std::size_t at = 0; at < blocksize_; at += segment) {
      const std::size_t n = std::min(segment, blocksize_ - at);
      for (std::size_t lane = 0; lane < lanes_; ++lane) {
        const float factor = lane < factors.size() ? factors[lane] : 0.0f;
        const auto part = factor == 0 ? std::span<const float>() : part_of(first + lane, at, n, room);
        for (std::size_t i = 0; i < part.size(); ++i) transposed[i * lanes_ + lane] = part[i] * factor;
        for (std::size_t i = part.size(); i < n; ++i) transposed[i * lanes_ + lane] = 0;
      }
      f(transposed.data(), n);
    }
  }

  // Of all weights of a block; NaN or infinity if it has one.
  [[nodiscard]] float largest(std::size_t block) const {
    if (source_ != DType::f64) return largest_magnitude(source_, bytes_of(block, 0, blocksize_));
    float largest = 0;
    std::array<float, segment> room;
    for (std::size_t at = 0; at < blocksize_ && std::isfinite(largest); at += segment) {
      const float next = largest_magnitude(DType::f32, std::as_bytes(part_of(block, at, segment, room)));
      largest = next <= largest ? largest : next;
    }
    return largest;
  }

 private:
  // n weights of a block from weight `at` of it on, or as many as there are.
  [[nodiscard]] std::span<const std::byte> bytes_of(std::size_t block, std::size_t at, std::size_t n) const {
    const std::size_t begin = std::min((block * blocksize_ + at) * size_, weights_.size());
    return weights_.subspan(begin, std::min(std::min(n, blocksize_ - at) * size_, weights_.size() - begin));
  }
  [[nodiscard]] std::span<const float> part_of(std::size_t block, std::size_t at, std::size_t n,
                                               std::span<float> room) const {
    return widen(source_, bytes_of(block, at, n), room);
  }

  DType source_;
  std::size_t size_;
  std::span<const std::byte> weights_;
  std::size_t blocksize_;
  std::size_t lanes_ = HWY_DYNAMIC_DISPATCH(lanes_of_target)();
};

}  // namespace

ScaleSearch::Nearest::Nearest(const FourBitTables& tables) {
  for (const std::uint8_t code : tables.code)
    if (const float next = tables.codebook[code]; values == 0 || next != value[values - 1]) value[values++] = next;
  for (std::size_t bucket = 0, k = 0; bucket < midpoint.size(); ++bucket) {
    const float begin = static_cast<float>(bucket) / 16 - 1, end = begin + 1.0f / 16;
    const bool has_midpoint = k < tables.midpoints && tables.midpoint[k] < end;
    if (has_midpoint && tables.midpoint[k] < begin) throw std::logic_error("two midpoints of a codebook are too close");
    midpoint[bucket] = has_midpoint ? tables.midpoint[k] : 2.0f;
    below[bucket] = value[k];
    above[bucket] = value[k + (has_midpoint ? 1 : 0)];
    k += has_midpoint ? 1 : 0;
  }
}

ScaleSearch::ScaleSearch(const FourBitTables& tables, std::size_t blocksize, AbsmaxChoice choice)
    : tables_(tables), blocksize_(blocksize), nearest_(tables) {
  const std::span<const float> ratios = search_ratios(blocksize, choice);
  ratios_ = ratios.size();
  std::ranges::transform(ratios, inverse_.begin(), [](float ratio) { return 1.0f / ratio; });
}

void ScaleSearch::find(DType source, std::span<const std::byte> weights, std::span<float> absmax) const {
  const Group group(source, weights, blocksize_);
  for (std::size_t first = 0; first < absmax.size(); first += group.lanes()) {
    const std::size_t count = std::min(group.lanes(), absmax.size() - first);
    std::array<float, max_lanes> factors{};  // one over the largest magnitude; 0 for blocks that are not searched
    for (std::size_t b = 0; b < count; ++b) {
      const float largest = group.largest(first + b);
      absmax[first + b] = std::isfinite(largest) ? largest : std::numeric_limits<float>::quiet_NaN();
      if (largest >= min_magnitude && largest <= max_magnitude) factors[b] = 1.0f / largest;
    }
    const auto used = std::span(factors).first(count);

    alignas(64) std::array<float, max_lanes> best{}, scale, inverse;
    scale.fill(1.0f);
    std::array<SearchSums, std::tuple_size_v<decltype(inverse_)>> sums{};
    group.for_each_part(first, used, [&](const float* part, std::size_t n) {
      HWY_DYNAMIC_DISPATCH(add_shared)(nearest_, part, n, inverse_.data(), ratios_, sums.data());
    });
    HWY_DYNAMIC_DISPATCH(choose)(sums.data(), ratios_, best.data(), scale.data());

    std::ranges::transform(scale, inverse.begin(), [](float s) { return 1.0f / s; });
    SearchSums refined;
    group.for_each_part(first, used, [&](const float* part, std::size_t n) {
      HWY_DYNAMIC_DISPATCH(add_own)(nearest_, part, n, inverse.data(), &refined);
    });
    HWY_DYNAMIC_DISPATCH(choose)(&refined, 1, best.data(), scale.data());
    for (std::size_t b = 0; b < count; ++b) absmax[first + b] *= scale[b];  // 1 for those that were not searched
  }
}

void ScaleSearch::gains(DType source, std::span<const std::byte> weights, std::span<const float> absmax,
                        std::span<float> gains) const {
  const Group group(source, weights, blocksize_);
  for (std::size_t first = 0; first < absmax.size(); first += group.lanes()) {
    const std::size_t count = std::min(group.lanes(), absmax.size() - first);
    std::array<float, max_lanes> factors{};
    for (std::size_t b = 0; b < count; ++b) factors[b] = inverse_of(absmax[first + b]);
    alignas(64) std::array<float, max_lanes> ones;
    ones.fill(1.0f);
    SearchSums sums;
    group.for_each_part(first, std::span(factors).first(count), [&](const float* part, std::size_t n) {
      HWY_DYNAMIC_DISPATCH(add_own)(nearest_, part, n, ones.data(), &sums);
    });
    for (std::size_t b = 0; b < count; ++b) gains[first + b] = 2 * sums.product[b] - sums.square[b];
  }
}

void ScaleSearch::encode(DType source, std::span<const std::byte> weights, std::span<const float> absmax,
                         std::span<std::uint8_t> packed) const {
  const std::size_t size = traits(source).bits / 8;
  alignas(64) std::array<float, segment> room;
  std::array<std::uint8_t, segment> codes;
  for (std::size_t b = 0; b < absmax.size(); ++b) {
    const float inverse = inverse_of(absmax[b]);
    const std::size_t begin = b * blocksize_, end = std::min(begin + blocksize_, weights.size() / size);
    for (std::size_t at = begin; at < end; at += segment) {
      const std::size_t n = std::min(segment, end - at);
      auto part = widen(source, weights.subspan(at * size, n * size), room);
      if (n % max_lanes != 0) {
        // Vectors are whole.
        if (part.data() != room.data()) std::ranges::copy(part, room.begin());
        std::fill(room.begin() + static_cast<std::ptrdiff_t>(n), room.end(), 0.0f);
        part = room;
      }
      HWY_DYNAMIC_DISPATCH(count_midpoints)
      (tables_, part.data(), ceil_div(n, max_lanes) * max_lanes, inverse, codes.data());
      for (std::size_t i = 0; i < n + n % 2; ++i) codes[i] = tables_.code[codes[i]];  // an odd end has the code of 0
      std::uint8_t* const to = packed.data() + at / 2;
      for (std::size_t i = 0; i < n; i += 2) to[i / 2] = static_cast<std::uint8_t>(codes[i] << 4 | codes[i + 1]);
    }
  }
}

}  // namespace nibble
#endif
