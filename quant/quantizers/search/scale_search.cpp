// Compiled once per CPU target. Each lane of a vector searches a block of its own, in 16-bit integers: weights are
// multiples of 1/4095 of the block's largest magnitude, and so are the values of the codebook. Sums of 64 products are
// exact, and are added in the order of the weights.
//
// It is one file because the sums of a target and the search that asks for them share the layout of a group of blocks.
#include "quant/quantizers/search/scale_search.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
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
#include "quant/simd/registers-inl.hpp"

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
using InverseOfLanes = std::array<Inverse, max_lanes>;

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

struct TwoOf {
  V16 a, b;
};

// The values of the nearest codes for two vectors of weights, each of which is given times 8.
class ValuesByGuess {
 public:
  HWY_INLINE ValuesByGuess(const FourBitTables& tables, const SearchValues& values)
      : numbers_(tables),
        lower_(hn::LoadDup128(D8(), values.lower.data())),
        upper_(hn::LoadDup128(D8(), values.upper.data())) {}

  HWY_INLINE TwoOf of(V16 wa, V16 wb, V16 inverse) const {
    const auto number = numbers_.of(position(wa, inverse), position(wb, inverse));
    const auto both = pack_bytes(number.a, number.b);
    const auto low = hn::TableLookupBytes(lower_, both), high = hn::TableLookupBytes(upper_, both);
    return {hn::BitCast(D16(), hn::InterleaveLower(D8(), low, high)),
            hn::BitCast(D16(), hn::InterleaveUpper(D8(), low, high))};
  }

 private:
  // Doubled three times; what is beyond the ends of the codebook is saturated.
  static HWY_INLINE V16 position(V16 w, V16 inverse) {
    V16 x = hn::MulFixedPoint15(w, inverse);
    x = hn::SaturatedAdd(x, x);
    x = hn::SaturatedAdd(x, x);
    return hn::Max(hn::SaturatedAdd(x, x), hn::Set(D16(), -32767));
  }

  NumbersByGuess<D16> numbers_;
  hn::Vec<D8> lower_, upper_;
};

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

// The same where one instruction looks up words among 32: 8 instead of 18 instructions for a vector.
class ValuesByBucket {
 public:
  HWY_INLINE ValuesByBucket(const FourBitTables&, const SearchValues& values)
      : bucket_(hn::Load(D16(), values.bucket.data())), value_(hn::Load(D16(), values.value.data())) {
    alignas(16) static constexpr std::uint8_t odd[16] = {1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15};
    upper_bytes_ = hn::BitCast(D16(), hn::LoadDup128(D8(), odd));
  }

  HWY_INLINE TwoOf of(V16 wa, V16 wb, V16 inverse) const { return {value(wa, inverse), value(wb, inverse)}; }

 private:
  HWY_INLINE V16 value(V16 w, V16 inverse) const {
    constexpr int end = SearchValues::end;
    const V16 y = hn::Max(hn::Min(hn::MulFixedPoint15(w, inverse), hn::Set(D16(), end - 1)), hn::Set(D16(), -end));
    return look_up(value_, hn::Add(y, look_up(bucket_, y)));
  }

  // By the upper bytes. They are shuffled down and not shifted, because the other instructions need the port of shifts.
  HWY_INLINE V16 look_up(V16 table, V16 words) const {
    return V16{_mm512_permutexvar_epi16(hn::TableLookupBytes(words, upper_bytes_).raw, table.raw)};
  }

  V16 bucket_, value_, upper_bytes_;
};
using NearestValues = ValuesByBucket;

#else
using NearestValues = ValuesByGuess;
#endif

// Adds n weights of every lane to the sums of `count` scales; n is a multiple of 4. add(w, c, i, product, square) adds
// the weights w, which begin with weight i of every lane, and the values c of their codes to the two sums of a scale.
template <std::size_t count, class Add>
HWY_INLINE void add_sums_of(const NearestValues& values, const std::int16_t* HWY_RESTRICT weights, std::size_t n,
                            const InverseOfLanes* HWY_RESTRICT inverse, SearchSums* HWY_RESTRICT sums, Add&& add) {
  const D d;
  const D16 d16;
  V16 factor[count];
  for (std::size_t s = 0; s < count; ++s) factor[s] = hn::LoadU(d16, inverse[s][0].data());
  for (std::size_t begin = 0; begin < n; begin += exact) {
    PairSums product[count], square[count];
    for (std::size_t i = begin; i < std::min(n, begin + exact); i += 4) {
      const V16 wa = hn::Load(d16, weights + i * lanes), wb = hn::Load(d16, weights + (i + 2) * lanes);
      const V16 wa8 = hn::ShiftLeft<3>(wa), wb8 = hn::ShiftLeft<3>(wb);
      for (std::size_t s = 0; s < count; ++s) {
        const TwoOf c = values.of(wa8, wb8, factor[s]);
        add(wa, c.a, i, product[s], square[s]);
        add(wb, c.b, i + 2, product[s], square[s]);
      }
    }
    for (std::size_t s = 0; s < count; ++s) {
      hn::Store(hn::Add(hn::Load(d, sums[s].product.data()), product[s].get()), d, sums[s].product.data());
      hn::Store(hn::Add(hn::Load(d, sums[s].square.data()), square[s].get()), d, sums[s].square.data());
    }
  }
}

// The same for any number of scales.
template <class Add>
HWY_INLINE void add_all_sums(const FourBitTables& tables, const SearchValues& search_values,
                             const std::int16_t* HWY_RESTRICT weights, std::size_t n, const InverseOfLanes* inverse,
                             SearchSums* sums, std::size_t count, Add&& add) {
  constexpr std::size_t at_a_time = has_32_registers ? 2 : 1;
  const NearestValues values(tables, search_values);
  std::size_t s = 0;
  for (; s + at_a_time <= count; s += at_a_time) add_sums_of<at_a_time>(values, weights, n, inverse + s, sums + s, add);
  if (s < count) add_sums_of<1>(values, weights, n, inverse + s, sums + s, add);
}

void add_sums(const FourBitTables& tables, const SearchValues& values, const std::int16_t* HWY_RESTRICT weights,
              std::size_t n, const InverseOfLanes* inverse, SearchSums* sums, std::size_t count) {
  add_all_sums(tables, values, weights, n, inverse, sums, count,
               [](V16 w, V16 c, std::size_t, PairSums& product, PairSums& square) HWY_ATTR {
                 product.add(w, c);
                 square.add(c, c);
               });
}

void add_weighted_sums(const FourBitTables& tables, const SearchValues& values,
                       const std::int16_t* HWY_RESTRICT weights, const std::int16_t* HWY_RESTRICT weighted,
                       const std::int16_t* HWY_RESTRICT roots, std::size_t n, const InverseOfLanes* inverse,
                       SearchSums* sums, std::size_t count) {
  const D16 d16;
  add_all_sums(tables, values, weights, n, inverse, sums, count,
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
void add_sums_of(const FourBitTables& tables, const SearchValues& values, const std::int16_t* weights, std::size_t n,
                 const InverseOfLanes* inverse, SearchSums* sums, std::size_t count, Factors&& factors) {
  for (std::size_t s = 0; s < count; ++s)
    for (std::size_t begin = 0; begin < n; begin += exact) {
      std::int32_t product = 0, square = 0;
      for (std::size_t i = begin; i < std::min(n, begin + exact); ++i) {
        const int over_8 = (weights[i] * 8 * inverse[s][0][0] + (1 << 14)) >> 15;
        const auto [weight, value] = factors(i, values.of(SearchValues::number(tables, over_8)));
        product += weight * value;
        square += value * value;
      }
      sums[s].product[0] += static_cast<float>(product);
      sums[s].square[0] += static_cast<float>(square);
    }
}

void add_sums(const FourBitTables& tables, const SearchValues& values, const std::int16_t* weights, std::size_t n,
              const InverseOfLanes* inverse, SearchSums* sums, std::size_t count) {
  add_sums_of(tables, values, weights, n, inverse, sums, count,
              [&](std::size_t i, int value) { return std::pair<int, int>(weights[i], value); });
}

void add_weighted_sums(const FourBitTables& tables, const SearchValues& values, const std::int16_t* weights,
                       const std::int16_t* weighted, const std::int16_t* roots, std::size_t n,
                       const InverseOfLanes* inverse, SearchSums* sums, std::size_t count) {
  add_sums_of(tables, values, weights, n, inverse, sums, count,
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
  V greatest = hn::Load(d, best), best_product = hn::Load(d, scale), best_square = hn::Set(d, 1.0f);
  for (std::size_t c = 0; c < count; ++c) {
    const V product = hn::Load(d, sums[c].product.data()), square = hn::Load(d, sums[c].square.data());
    const V gain = hn::Div(hn::Mul(product, product), square);  // NaN if all codes are 0: not greater
    const auto wins = hn::Gt(gain, greatest);
    greatest = hn::IfThenElse(wins, gain, greatest);
    best_product = hn::IfThenElse(wins, product, best_product);
    best_square = hn::IfThenElse(wins, square, best_square);
  }
  hn::Store(greatest, d, best);
  hn::Store(hn::Div(best_product, best_square), d, scale);
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

bool is_searched(float largest) { return largest >= min_magnitude && largest <= max_magnitude; }

// Blocks that follow each other, and their columns. The last may be short: it is padded with zeros.
class Blocks {
 public:
  Blocks(DType source, std::span<const std::byte> weights, std::size_t blocksize, const ColumnsFrom& columns)
      : source_(source), size_(traits(source).bits / 8), weights_(weights), blocksize_(blocksize), columns_(columns) {}

  [[nodiscard]] std::size_t blocksize() const { return blocksize_; }
  [[nodiscard]] bool weighs() const { return columns_.columns != nullptr; }

  // The largest magnitude; NaN or infinity if the block has one.
  [[nodiscard]] float largest_of(std::size_t block) const {
    const std::size_t first = block * blocksize_;
    if (source_ != DType::f64) return largest_magnitude(source_, bytes_of(first, blocksize_));
    float largest = 0;
    std::array<float, segment> room;
    for (std::size_t at = 0; at < blocksize_ && std::isfinite(largest); at += segment) {
      const auto part = weights_from(first + at, std::min(segment, blocksize_ - at), room);
      const float next = largest_magnitude(DType::f32, std::as_bytes(part));
      largest = next <= largest ? largest : next;
    }
    return largest;
  }

  [[nodiscard]] float largest_root_of(std::size_t block) const {
    float largest = 0;
    std::array<float, segment> room;
    for (std::size_t at = 0; at < blocksize_; at += segment) {
      const auto roots = roots_from(block * blocksize_ + at, std::min(segment, blocksize_ - at), room);
      largest = std::max(largest, largest_magnitude(DType::f32, std::as_bytes(roots)));
    }
    return largest;
  }

  // n weights from weight `first` on, followed by zeros if there are fewer, or their roots. At most tile_weights.
  [[nodiscard]] std::span<const float> weights_from(std::size_t first, std::size_t n, std::span<float> room) const {
    const auto part = widen(source_, bytes_of(first, n), room);
    if (part.size() == n) return part;
    if (part.data() != room.data()) std::ranges::copy(part, room.begin());
    std::ranges::fill(room.subspan(part.size(), n - part.size()), 0.0f);
    return room.first(n);
  }
  [[nodiscard]] std::span<const float> roots_from(std::size_t first, std::size_t n, std::span<float> room) const {
    return columns_.columns->roots(columns_.first + first, n, room);
  }

 private:
  [[nodiscard]] std::span<const std::byte> bytes_of(std::size_t first, std::size_t n) const {
    const std::size_t begin = std::min(first * size_, weights_.size());
    return weights_.subspan(begin, std::min(n * size_, weights_.size() - begin));
  }

  DType source_;
  std::size_t size_;
  std::span<const std::byte> weights_;
  std::size_t blocksize_;
  ColumnsFrom columns_;
};

std::size_t group_lanes() { return HWY_DYNAMIC_DISPATCH(lanes_of_target)(); }

// As many blocks as a vector has lanes, from block `first` on. Those that are not searched count as zeros.
class Group {
 public:
  Group(const Blocks& blocks, std::size_t first, std::span<const float> largest)
      : blocks_(blocks), first_(first), lanes_(group_lanes()), step_(std::min(segment, blocks.blocksize())) {
    for (std::size_t lane = 0; lane < largest.size(); ++lane)
      if (is_searched(largest[lane])) {
        factors_[lane] = unit / largest[lane];
        if (blocks.weighs()) root_factors_[lane] = root_unit / blocks.largest_root_of(first + lane);
      }
  }

  // Adds up the sums of scales that are each given for every lane.
  void sum(const FourBitTables& tables, const SearchValues& values, std::span<const InverseOfLanes> inverse,
           std::span<SearchSums> sums) {
    for (std::size_t at = 0; at < blocks_.blocksize(); at += step_) {
      if (at != loaded_) load(at);
      if (blocks_.weighs()) {
        auto& add = HWY_DYNAMIC_DISPATCH(add_weighted_sums);
        add(tables, values, weights_.data(), weighted_.data(), roots_.data(), step_, inverse.data(), sums.data(),
            sums.size());
      } else {
        auto& add = HWY_DYNAMIC_DISPATCH(add_sums);
        add(tables, values, weights_.data(), step_, inverse.data(), sums.data(), sums.size());
      }
    }
  }

 private:
  using Interleaved = std::array<std::int16_t, segment * max_lanes>;

  // Weights of all blocks from weight `at` of each on.
  void load(std::size_t at) {
    const auto part = [&](std::size_t first, std::size_t n, std::span<float> room) {
      return blocks_.weights_from(first, n, room);
    };
    interleave_parts(at, factors_, part, weights_);
    if (blocks_.weighs()) {
      const auto roots = [&](std::size_t first, std::size_t n, std::span<float> room) {
        return blocks_.roots_from(first, n, room);
      };
      interleave_parts(at, root_factors_, roots, roots_);
      HWY_DYNAMIC_DISPATCH(weigh)(weights_.data(), roots_.data(), step_, weighted_.data());
    }
    loaded_ = at;
  }

  template <class Part>
  void interleave_parts(std::size_t at, const std::array<float, max_lanes>& factors, const Part& part,
                        Interleaved& interleaved) const {
    static constexpr std::array<float, segment> zeros{};
    alignas(64) std::array<float, segment * max_lanes> room;
    std::array<const float*, max_lanes> rows;
    const std::size_t blocksize = blocks_.blocksize(), begin = first_ * blocksize + at;
    if (step_ == blocksize) {
      const auto all = part(begin, lanes_ * step_, room);
      for (std::size_t lane = 0; lane < lanes_; ++lane) rows[lane] = all.data() + lane * step_;
    } else {
      for (std::size_t lane = 0; lane < lanes_; ++lane)
        rows[lane] = part(begin + lane * blocksize, step_, std::span(room).subspan(lane * step_, step_)).data();
    }
    // The integer of a NaN could be too large for the sums.
    for (std::size_t lane = 0; lane < lanes_; ++lane)
      if (factors[lane] == 0) rows[lane] = zeros.data();
    HWY_DYNAMIC_DISPATCH(interleave)(rows.data(), step_, factors.data(), interleaved.data());
  }

  const Blocks& blocks_;
  std::size_t first_, lanes_, step_, loaded_ = std::numeric_limits<std::size_t>::max();
  std::array<float, max_lanes> factors_{}, root_factors_{};
  alignas(64) Interleaved weights_, roots_, weighted_;
};

}  // namespace

SearchValues::SearchValues(const FourBitTables& tables) {
  std::size_t count = 0;
  float last = 0;
  for (const std::uint8_t code : tables.code) {
    const float codebook_value = tables.codebook[code];
    if (count > 0 && codebook_value == last) continue;
    const auto rounded = static_cast<std::int16_t>(std::rint(codebook_value * unit));
    value[2 * count] = value[2 * count + 1] = rounded;
    lower[count] = static_cast<std::uint8_t>(rounded & 0xFF);
    upper[count] = static_cast<std::uint8_t>(rounded >> 8 & 0xFF);
    last = codebook_value;
    ++count;
  }

  constexpr int size = 1 << 8, numbers = 2 * size;
  for (int first = -end; first < end; first += size) {
    const auto before = static_cast<int>(number(tables, first));
    int step = first;  // the first y of the bucket that has another number
    while (step < first + size && static_cast<int>(number(tables, step)) == before) ++step;
    // Without such a y, the sums are in the middle of what `before` may have.
    assert(static_cast<int>(number(tables, first + size - 1)) <= before + 1);
    const int turn = step < first + size ? numbers * (before + 1) - step : numbers * before + size / 2 - first;
    bucket[static_cast<std::size_t>(first / size & 31)] = static_cast<std::int16_t>(turn);
  }
}

std::size_t SearchValues::number(const FourBitTables& tables, int y) {
  const int x = std::clamp(8 * y, -32767, 32767), guess = tables.guess(x);
  const int number = x > tables.position(guess) ? guess + 1 : guess;
  return static_cast<std::size_t>(number);
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
  const Blocks blocks(source, weights, blocksize_, columns);
  const std::size_t lanes = group_lanes();
  for (std::size_t first = 0; first < absmax.size(); first += lanes) {
    const auto largest = absmax.subspan(first, std::min(lanes, absmax.size() - first));
    for (std::size_t b = 0; b < largest.size(); ++b) largest[b] = blocks.largest_of(first + b);
    Group group(blocks, first, largest);

    alignas(64) std::array<float, max_lanes> best{}, scale;
    scale.fill(1.0f);
    std::array<SearchSums, max_search_ratios> sums{};
    group.sum(tables_, values_, std::span(tried).first(ratios.size()), std::span(sums).first(ratios.size()));
    HWY_DYNAMIC_DISPATCH(choose)(sums.data(), ratios.size(), best.data(), scale.data());

    std::array<InverseOfLanes, 1> refined;
    std::ranges::transform(scale, refined[0].begin(), inverse_of);
    std::array<SearchSums, 1> last{};
    group.sum(tables_, values_, refined, last);
    HWY_DYNAMIC_DISPATCH(choose)(last.data(), 1, best.data(), scale.data());
    std::array<float, max_lanes> fitted{};  // 0 for blocks that are not searched
    for (std::size_t b = 0; b < largest.size(); ++b)
      if (is_searched(largest[b])) fitted[b] = largest[b] * scale[b];
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
  const Blocks blocks(source, weights, blocksize_, columns);
  const std::size_t lanes = group_lanes();
  for (std::size_t first = 0; first < absmax.size(); first += lanes) {
    const std::size_t count = std::min(lanes, absmax.size() - first);
    std::array<float, max_lanes> room;
    const auto largest = std::span(room).first(count);
    for (std::size_t b = 0; b < count; ++b) largest[b] = blocks.largest_of(first + b);

    std::array<std::array<float, max_lanes>, 2> scale{};
    for (std::size_t b = 0; b < count; ++b)
      if (is_searched(largest[b])) {
        scale[0][b] = absmax[first + b] / largest[b];
        scale[1][b] = other[first + b] / largest[b];
      }
    std::array<InverseOfLanes, 2> inverse;
    for (std::size_t k = 0; k < 2; ++k) std::ranges::transform(scale[k], inverse[k].begin(), inverse_of);
    std::array<SearchSums, 2> sums{};
    Group(blocks, first, largest).sum(tables_, values_, inverse, sums);
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
