// Each lane of a vector searches a block of its own. Compiled once per CPU target.
#include "quant/quantizers/search/block_group.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/quantizers/search/block_group.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/codecs/four_bit/four_bit_guess-inl.hpp"
#include "quant/simd/registers-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::block_group::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;
using nibble::HWY_NAMESPACE::has_32_registers;
#if HWY_TARGET != HWY_SCALAR
using nibble::HWY_NAMESPACE::NumbersByGuess;
using nibble::HWY_NAMESPACE::pack_bytes;
#endif

using D = hn::CappedTag<float, max_lanes>;
using V = hn::Vec<D>;
using DI = hn::RebindToSigned<D>;
using VI = hn::Vec<DI>;
constexpr std::size_t width = hn::MaxLanes(D());
// The largest magnitude of a block is SearchValues::unit; 8 times as much fits 16 bits.
constexpr float inverse_of_one = FourBitTables::grid * (4096 / SearchValues::unit) / 8;

#if HWY_TARGET != HWY_SCALAR

using D16 = hn::Repartition<std::int16_t, D>;
using V16 = hn::Vec<D16>;
using D8 = hn::Repartition<std::uint8_t, D>;

void interleave_rows(const float* const* HWY_RESTRICT row, std::size_t n, const float* HWY_RESTRICT factor,
                     std::int16_t* HWY_RESTRICT weights) {
  static_assert(width % 4 == 0);
  const hn::Full128<float> d;
  const hn::Full128<std::int16_t> d16;
  const hn::Full128<std::int32_t> d32;
  const auto rounding = hn::Set(d, FourBitTables::rounding);
  for (std::size_t lane = 0; lane < width; lane += 4)
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
        hn::Store(hn::BitCast(d16, four), d16, weights + 2 * ((i / 2 + k) * width + lane));
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
                            const Inverses* HWY_RESTRICT inverse, Sums* HWY_RESTRICT sums, Add&& add) {
  const D d;
  const D16 d16;
  V16 factor[count];
  for (std::size_t s = 0; s < count; ++s) factor[s] = hn::LoadU(d16, inverse[s][0].data());
  for (std::size_t begin = 0; begin < n; begin += exact) {
    PairSums product[count], square[count];
    for (std::size_t i = begin; i < std::min(n, begin + exact); i += 4) {
      const V16 wa = hn::Load(d16, weights + i * width), wb = hn::Load(d16, weights + (i + 2) * width);
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
                             const std::int16_t* HWY_RESTRICT weights, std::size_t n, const Inverses* inverse,
                             Sums* sums, std::size_t count, Add&& add) {
  constexpr std::size_t at_a_time = has_32_registers ? 2 : 1;
  const NearestValues values(tables, search_values);
  std::size_t s = 0;
  for (; s + at_a_time <= count; s += at_a_time) add_sums_of<at_a_time>(values, weights, n, inverse + s, sums + s, add);
  if (s < count) add_sums_of<1>(values, weights, n, inverse + s, sums + s, add);
}

void add_to(const FourBitTables& tables, const SearchValues& values, const LaidOut& group, std::size_t n,
            const Inverses* inverse, Sums* sums, std::size_t count) {
  if (group.roots == nullptr)
    return add_all_sums(tables, values, group.weights, n, inverse, sums, count,
                        [](V16 w, V16 c, std::size_t, PairSums& product, PairSums& square) HWY_ATTR {
                          product.add(w, c);
                          square.add(c, c);
                        });
  const D16 d16;
  add_all_sums(tables, values, group.weights, n, inverse, sums, count,
               [&](V16, V16 c, std::size_t i, PairSums& product, PairSums& square) HWY_ATTR {
                 const V16 value = hn::MulFixedPoint15(c, hn::Load(d16, group.roots + i * width));
                 product.add(hn::Load(d16, group.weighted + i * width), value);
                 square.add(value, value);
               });
}

void weigh_all(const LaidOut& group, std::size_t n) {
  const D16 d16;
  for (std::size_t i = 0; i < n * width; i += hn::Lanes(d16))
    hn::Store(hn::MulFixedPoint15(hn::Load(d16, group.weights + i), hn::Load(d16, group.roots + i)), d16,
              group.weighted + i);
}

#else

void interleave_rows(const float* const* HWY_RESTRICT row, std::size_t n, const float* HWY_RESTRICT factor,
                     std::int16_t* HWY_RESTRICT weights) {
  for (std::size_t i = 0; i < n; ++i)
    weights[i] =
        static_cast<std::int16_t>(std::bit_cast<std::int32_t>(row[0][i] * factor[0] + FourBitTables::rounding));
}

int times_root(int value, int root) { return (value * root + (1 << 14)) >> 15; }

// factors(i, c) are what counts for weight i and the value c of its code.
template <class Factors>
void add_sums_of(const FourBitTables& tables, const SearchValues& values, const std::int16_t* weights, std::size_t n,
                 const Inverses* inverse, Sums* sums, std::size_t count, Factors&& factors) {
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

void add_to(const FourBitTables& tables, const SearchValues& values, const LaidOut& group, std::size_t n,
            const Inverses* inverse, Sums* sums, std::size_t count) {
  add_sums_of(tables, values, group.weights, n, inverse, sums, count, [&](std::size_t i, int value) {
    return group.roots == nullptr ? std::pair<int, int>(group.weights[i], value)
                                  : std::pair<int, int>(group.weighted[i], times_root(value, group.roots[i]));
  });
}

void weigh_all(const LaidOut& group, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    group.weighted[i] = static_cast<std::int16_t>(times_root(group.weights[i], group.roots[i]));
}

#endif

void choose_best(const Sums* HWY_RESTRICT sums, std::size_t count, float* HWY_RESTRICT best,
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

void invert(const float* HWY_RESTRICT scale, Inverses& inverses) {
  const D d;
  const V of = hn::Load(d, scale);
  const V inverse = hn::IfThenZeroElse(hn::Eq(of, hn::Zero(d)), hn::Div(hn::Set(d, inverse_of_one), of));
  const VI number = hn::NearestInt(hn::Min(hn::Max(inverse, hn::Set(d, -32767.0f)), hn::Set(d, 32767.0f)));
  const VI both = hn::Or(hn::ShiftLeft<16>(number), hn::And(number, hn::Set(DI(), 0xFFFF)));
  hn::Store(both, DI(), reinterpret_cast<std::int32_t*>(inverses.data()));
}

std::size_t lanes_of_target() { return width; }

}  // namespace
}  // namespace nibble::block_group::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::block_group {

HWY_EXPORT(interleave_rows);
HWY_EXPORT(add_to);
HWY_EXPORT(weigh_all);
HWY_EXPORT(choose_best);
HWY_EXPORT(invert);
HWY_EXPORT(lanes_of_target);

std::size_t lanes() { return HWY_DYNAMIC_DISPATCH(lanes_of_target)(); }

Inverses inverse_of(const OfLanes& scales) {
  Inverses inverses;
  HWY_DYNAMIC_DISPATCH(invert)(scales.data(), inverses);
  return inverses;
}

Inverses inverse_of(float scale) {
  OfLanes scales;
  scales.fill(scale);
  return inverse_of(scales);
}

void interleave(const float* const* rows, std::size_t n, const float* factor, std::int16_t* to) {
  HWY_DYNAMIC_DISPATCH(interleave_rows)(rows, n, factor, to);
}

void weigh(const LaidOut& group, std::size_t n) { HWY_DYNAMIC_DISPATCH(weigh_all)(group, n); }

AddSums add_sums_of_target() { return HWY_DYNAMIC_DISPATCH(add_to); }

void add_sums(const FourBitTables& tables, const SearchValues& values, const LaidOut& group, std::size_t n,
              std::span<const Inverses> inverse, std::span<Sums> sums) {
  const AddSums vnni = add_sums_vnni(), add = vnni != nullptr ? vnni : add_sums_of_target();
  add(tables, values, group, n, inverse.data(), sums.data(), sums.size());
}

void choose(std::span<const Sums> sums, OfLanes& best, OfLanes& scale) {
  HWY_DYNAMIC_DISPATCH(choose_best)(sums.data(), sums.size(), best.data(), scale.data());
}

}  // namespace nibble::block_group
#endif
