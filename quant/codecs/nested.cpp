#include "nibble/nested.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "nibble/error.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/codecs/nested.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef NIBBLE_QUANT_NESTED_TABLES
#define NIBBLE_QUANT_NESTED_TABLES
namespace nibble::nested {

constexpr std::array<float, 255> make_midpoints(const std::array<float, 256>& values) {
  std::array<float, 255> midpoints{};
  for (std::size_t i = 0; i < 255; ++i) midpoints[i] = 0.5f * (values[i] + values[i + 1]);
  return midpoints;
}

// The code nearest to v in [-1, 1] is the number of midpoints below it. The upper bits of v, sign, exponent and six
// bits of the mantissa, leave at most one midpoint open: so one lookup gives the number but for one compare.
struct Nearest {
  static constexpr std::int32_t shift = 17;                 // of the bits of |v|
  static constexpr std::int32_t first = (127 - 22) << 6;    // below 2^-22 there is no midpoint
  static constexpr std::int32_t last = (127 << 6) - first;  // 1 and what rounding makes of it
  static constexpr std::int32_t negative = 2048;            // where the buckets of negative v begin

  std::array<float, 256> threshold;                 // by code: v above it has the next one
  std::array<std::uint8_t, 2 * negative> lowest{};  // by bucket
};

constexpr Nearest make_nearest() {
  Nearest nearest{};
  const std::array<float, 255> midpoint = make_midpoints(codebook);
  // Halfway, the even code: above an odd one a midpoint itself is above its threshold.
  for (std::size_t i = 0; i < 255; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(midpoint[i]);
    nearest.threshold[i] = i % 2 == 0 ? midpoint[i] : std::bit_cast<float>(midpoint[i] > 0 ? bits - 1 : bits + 1);
  }
  nearest.threshold[255] = std::numeric_limits<float>::infinity();

  // Midpoints below the ends of a bucket, of positive and of negative v: they move on with it.
  std::size_t zero = 0;
  while (midpoint[zero] < 0) ++zero;
  std::size_t least = zero, most = zero, minus_least = zero, minus_most = zero;
  const auto rise = [&](std::size_t& below, float v) {
    while (below < midpoint.size() && midpoint[below] < v) ++below;
  };
  const auto fall = [&](std::size_t& below, float v) {
    while (below > 0 && midpoint[below - 1] >= v) --below;
  };
  bool right = true;
  for (std::int32_t bucket = 0; bucket <= Nearest::last; ++bucket) {
    const auto bits = static_cast<std::uint32_t>(bucket + Nearest::first) << Nearest::shift;
    const float smallest = bucket == 0 ? 0.0f : std::bit_cast<float>(bits);
    const float largest = std::bit_cast<float>(bits + (1u << Nearest::shift) - 1);
    rise(least, smallest);
    rise(most, largest);
    fall(minus_least, -smallest);
    fall(minus_most, -largest);
    nearest.lowest[static_cast<std::size_t>(bucket)] = static_cast<std::uint8_t>(least);
    nearest.lowest[static_cast<std::size_t>(bucket + Nearest::negative)] = static_cast<std::uint8_t>(minus_most);
    right = right && most - least <= 1 && minus_least - minus_most <= 1;
  }
  if (!right) throw "a bucket has two midpoints";
  return nearest;
}

inline constexpr Nearest nearest = make_nearest();

// The number of midpoints below a = |v|, by arithmetic, where 8 fp32 numbers are looked up at once. Within a decade
// midpoints are equally far apart, w, so that their number is a line in a. Just above B, where a decade begins, is one
// that is not on it: that and the one before it are at B + 0.2 w and B - 0.2 w, which makes a steeper line, and the
// lesser of the two is right for both. From above 1 - 1.75 w one line more leads through the last two.
//
//   place = 383 + the lesser of the lines of a's segment
//
// lies between 256 and 512, where the lowest 23 bits of fp32 are code and fraction if v > 0; v < 0 has code 254 - c for
// c. Segments begin at equal distances of the bits of a, taken as an integer, which is nearly a logarithm: near enough
// for decades to begin within the last two steps below B, where the lines of either segment are right.
//
// All that is computed rises with a, roundings and minima as well. So if at each midpoint the place is an integer but
// for an error, the code can be wrong only where it is as close to one. There it is in doubt, as it is below 8.4e-6.
// For v < 0 the same holds, as the midpoints below 0 are those above it.
struct Lines {
  static constexpr int segments = 6;                   // the one of 1, and five decades
  static constexpr float scale = 64, bias = 0x1p-17f;  // a is taken as scale * a + bias, which is in one of 8 segments
  static constexpr double segment_bits = 3.366 * (1 << 23);
  static constexpr int segment_of_one = 40;  // of bits through segment_bits; the lowest 3 bits tell all

  static constexpr int fraction_bits = 15, doubt_bits = 2;
  static constexpr std::int32_t fraction = (1 << fraction_bits) - (1 << doubt_bits);  // its bits; all 0 where in doubt
  static constexpr double doubt = 0x1p-15 * (1 << doubt_bits) / 2;                    // to either side of an integer
  static constexpr double zero = 383 + doubt;                        // place where no midpoint is below
  static constexpr float mirror = static_cast<float>(2 * zero + 1);  // less the place of a: the place for v < 0

  std::array<std::array<float, 16>, 2> slope{}, start{};  // by segment modulo 8, twice
};

// Does not compile as a constant if a code could be wrong.
constexpr Lines make_lines() {
  Lines lines{};
  for (auto& start : lines.start) start.fill(static_cast<float>(Lines::zero + 1));  // in doubt
  const auto place_of = [](int segment) { return static_cast<std::size_t>(Lines::segment_of_one - segment) % 8; };
  const auto set = [&](int segment, std::size_t line, double slope, double at, double number) {
    const double scaled = slope / static_cast<double>(Lines::scale);
    const double start = Lines::zero + number - slope * at - scaled * static_cast<double>(Lines::bias);
    for (const std::size_t i : {place_of(segment), place_of(segment) + 8}) {
      lines.slope[line][i] = static_cast<float>(scaled);
      lines.start[line][i] = static_cast<float>(start);
    }
  };
  double end = 1, values = 64;
  for (int segment = 1; segment < Lines::segments; ++segment, end /= 10, values /= 2) {
    const double begin = end / 10, step = (end - begin) / values;
    if (segment == 1)
      for (const std::size_t line : {0, 1}) set(0, line, 1 / (0.75 * step), 1 - step, 127);
    set(segment, 0, 1 / step, begin, values);
    set(segment, 1, 1 / (0.4 * step), begin, values - 0.5);
  }

  // From here on `a` is scaled.
  const auto scaled = [](double a) { return a * static_cast<double>(Lines::scale) + static_cast<double>(Lines::bias); };
  const auto begin_of = [](int segment) {
    const double bits = (Lines::segment_of_one - segment - 0.5) * Lines::segment_bits;
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  };
  std::array<double, 129> midpoint{};  // [n]: above it, n are below
  const std::array<float, 255> midpoints = make_midpoints(codebook);
  for (std::size_t n = 1; n <= 128; ++n) midpoint[n] = scaled(static_cast<double>(midpoints[126 + n]));

  bool right = static_cast<double>(Lines::mirror) == 2 * Lines::zero + 1;
  for (std::size_t n = 1; n <= 127; ++n) right = right && midpoints[127 - n] == -midpoints[126 + n];
  for (int segment = 0; segment < Lines::segments; ++segment) {
    // Rounding may put what is as close as 2^-12 to an end into the segment beyond.
    const double first = begin_of(segment) * (1 - 0x1p-12);
    const double last = segment == 0 ? scaled(1 + 0x1p-22) : begin_of(segment - 1) * (1 + 0x1p-12);
    const auto number_at = [&](double a) {
      const auto line = [&](std::size_t i) {
        return static_cast<double>(lines.slope[i][place_of(segment)]) * a +
               static_cast<double>(lines.start[i][place_of(segment)]);
      };
      return std::min(line(0), line(1)) - Lines::zero;
    };
    // What may come to that: half a unit when a place is rounded; one part in 2^24 each of v, of a (two where multiply
    // and add are not fused) and of its product with a slope, which is at most 95 on the
    // lesser line.
    constexpr double bound = Lines::doubt - 0x1p-16 - 4 * 0x1p-24 * 95;
    std::size_t n = 0;
    while (n < 128 && midpoint[n + 1] < first) ++n;
    right = right && number_at(first) > static_cast<double>(n) - bound;
    for (; n < 128 && midpoint[n + 1] <= last; ++n) {
      const double error = number_at(midpoint[n + 1]) - static_cast<double>(n + 1);
      right = right && error < bound && -error < bound;
    }
    right = right && number_at(last) < static_cast<double>(n + 1) - Lines::doubt;
  }
  // Nothing is below the two segments that are left.
  right = right && begin_of(Lines::segments + 1) < static_cast<double>(Lines::bias) * (1 - 0x1p-12);
  if (!right) throw "a midpoint is not where the lines have it";
  return lines;
}

inline constexpr Lines lines = make_lines();

}  // namespace nibble::nested
#endif

HWY_BEFORE_NAMESPACE();
namespace nibble::nested::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;

// The largest |absmax - offset| of a block; as bits they order as the magnitudes do.
HWY_INLINE float largest_difference(const float* HWY_RESTRICT absmax, float offset) {
  const D d;
  const hn::RebindToSigned<D> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto mean = hn::Set(d, offset);
  const auto bits = [&](std::size_t i)
                        HWY_ATTR { return hn::BitCast(di, hn::Abs(hn::Sub(hn::LoadU(d, absmax + i), mean))); };
  auto a = hn::Zero(di), b = a;  // two chains: a maximum waits for the one before
  for (std::size_t i = 0; i < blocksize; i += 2 * lanes) {
    a = hn::Max(a, bits(i));
    b = hn::Max(b, bits(i + lanes));
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, hn::Max(a, b))));
}

// A whole block, or what one vector holds of it.
HWY_NOINLINE void encode_by_buckets(const float* HWY_RESTRICT absmax, std::size_t n, float offset, float inverse,
                                    std::uint8_t* HWY_RESTRICT codes) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto magnitude_bits = hn::Set(di, 0x7FFFFFFF);
  HWY_ALIGN float v[blocksize];
  HWY_ALIGN std::int32_t bucket[blocksize];
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto difference = hn::Sub(hn::LoadU(d, absmax + i), hn::Set(d, offset)), zero = hn::Zero(d);
    // 0 times an infinite inverse would be NaN.
    const auto scaled = hn::IfThenElse(hn::Eq(difference, zero), zero, hn::Mul(difference, hn::Set(d, inverse)));
    const auto bits = hn::BitCast(di, scaled);
    const auto place =
        hn::Sub(hn::ShiftRight<Nearest::shift>(hn::And(bits, magnitude_bits)), hn::Set(di, Nearest::first));
    const auto inside = hn::Min(hn::Max(place, hn::Zero(di)), hn::Set(di, Nearest::last));
    const auto side = hn::And(hn::BroadcastSignBit(bits), hn::Set(di, Nearest::negative));
    hn::Store(scaled, d, v + i);
    hn::Store(hn::Add(inside, side), di, bucket + i);
  }

  const std::uint8_t* HWY_RESTRICT const lowest = nearest.lowest.data();
  const float* HWY_RESTRICT const threshold = nearest.threshold.data();
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint8_t code = lowest[bucket[i]];
    codes[i] = static_cast<std::uint8_t>(code + (v[i] > threshold[code] ? 1 : 0));
  }
}

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86

// Of a table that has 8 numbers twice; both instructions look at as many of the lowest bits as they need.
HWY_INLINE hn::Vec<D> look_up(hn::Vec<D> table, hn::Vec<hn::RebindToSigned<D>> index) {
#if HWY_TARGET <= HWY_AVX3
  return hn::Vec<D>{_mm512_permutexvar_ps(index.raw, table.raw)};
#else
  return hn::Vec<D>{_mm256_permutevar8x32_ps(table.raw, index.raw)};
#endif
}

HWY_INLINE void encode_by_lines(const float* HWY_RESTRICT absmax, float offset, float inverse,
                                std::uint8_t* HWY_RESTRICT codes) {
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint8_t, D> d8;
  constexpr std::size_t lanes = hn::MaxLanes(D());
  const auto mean = hn::Set(d, offset), factor = hn::Set(d, inverse * Lines::scale);
  const auto slope0 = hn::LoadU(d, lines.slope[0].data()), start0 = hn::LoadU(d, lines.start[0].data());
  const auto slope1 = hn::LoadU(d, lines.slope[1].data()), start1 = hn::LoadU(d, lines.start[1].data());
  const auto per_bit = hn::Set(d, static_cast<float>(1 / Lines::segment_bits));
  const auto rounding = hn::Set(d, 12582912.0f);  // 1.5 * 2^23 has an ulp of 1: adding it rounds to integers

  HWY_ALIGN std::int32_t place[blocksize];
  auto certain = hn::Set(di, Lines::fraction);
  for (std::size_t i = 0; i < blocksize; i += lanes) {
    const auto difference = hn::Sub(hn::LoadU(d, absmax + i), mean);
    const auto a = hn::MulAdd(hn::Abs(difference), factor, hn::Set(d, Lines::bias));
    const auto segment = hn::BitCast(di, hn::MulAdd(hn::ConvertTo(d, hn::BitCast(di, a)), per_bit, rounding));
    const auto line0 = hn::MulAdd(a, look_up(slope0, segment), look_up(start0, segment));
    const auto line1 = hn::MulAdd(a, look_up(slope1, segment), look_up(start1, segment));
    const auto lesser = hn::Min(line0, line1);
    const auto mirrored = hn::IfNegativeThenElse(difference, hn::Sub(hn::Set(d, Lines::mirror), lesser), lesser);
    const auto bits = hn::BitCast(di, hn::Max(mirrored, hn::Set(d, 256.5f)));  // -1 is beyond code 0
    certain = hn::Min(certain, hn::And(bits, hn::Set(di, Lines::fraction)));
    hn::Store(bits, di, place + i);
    hn::StoreU(hn::TruncateTo(d8, hn::BitCast(du, hn::ShiftRight<Lines::fraction_bits>(bits))), d8, codes + i);
  }
  const auto is_certain = hn::Gt(certain, hn::Zero(di));
  if (HWY_LIKELY(hn::AllTrue(di, is_certain))) return;
  if (hn::AllFalse(di, is_certain)) return encode_by_buckets(absmax, blocksize, offset, inverse, codes);
  for (std::size_t i = 0; i < blocksize; i += lanes) {
    const auto fraction = hn::And(hn::Load(di, place + i), hn::Set(di, Lines::fraction));
    if (!hn::AllTrue(di, hn::Gt(fraction, hn::Zero(di))))
      encode_by_buckets(absmax + i, lanes, offset, inverse, codes + i);
  }
}

#endif

HWY_INLINE void encode_block(const float* HWY_RESTRICT absmax, float offset, float largest,
                             std::uint8_t* HWY_RESTRICT codes) {
  const float inverse = 1.0f / largest;
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  // Finite, and so is what is scaled by it.
  if (const float scaled = inverse * Lines::scale;
      HWY_LIKELY(scaled > 0 && scaled < std::numeric_limits<float>::infinity()))
    return encode_by_lines(absmax, offset, inverse, codes);
#endif
  encode_by_buckets(absmax, blocksize, offset, inverse, codes);
}

// All maxima of a batch come first: the steps from a vector to its largest lane and the division take long, but those
// of one block need not wait for those of another.
void encode_blocks(const float* HWY_RESTRICT absmax, std::size_t n, float offset, std::uint8_t* HWY_RESTRICT codes,
                   float* HWY_RESTRICT nested_absmax) {
  constexpr std::size_t batch = 8;
  while (n >= blocksize) {
    const std::size_t blocks = std::min(n / blocksize, batch);
    for (std::size_t i = 0; i < blocks; ++i) nested_absmax[i] = largest_difference(absmax + i * blocksize, offset);
    for (std::size_t i = 0; i < blocks; ++i)
      encode_block(absmax + i * blocksize, offset, nested_absmax[i], codes + i * blocksize);
    absmax += blocks * blocksize;
    codes += blocks * blocksize;
    nested_absmax += blocks;
    n -= blocks * blocksize;
  }
  if (n == 0) return;
  float whole[blocksize];
  std::uint8_t whole_codes[blocksize];
  std::copy_n(absmax, n, whole);
  std::fill(whole + n, whole + blocksize, offset);
  *nested_absmax = largest_difference(whole, offset);
  encode_block(whole, offset, *nested_absmax, whole_codes);
  std::copy_n(whole_codes, n, codes);
}

// The values of one block's codes.
void decode_block(const std::uint8_t* HWY_RESTRICT codes, std::size_t n, const float* HWY_RESTRICT values, float scale,
                  float offset, float* HWY_RESTRICT absmax) {
  std::size_t i = 0;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  // One instruction looks up among 32 values by the lowest five bits; the others choose among eight such results.
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::uint8_t, D> d8;
  __m512 table[16];
  for (std::size_t t = 0; t < 16; ++t) table[t] = hn::LoadU(d, values + 16 * t).raw;
  for (; i + 16 <= n; i += 16) {
    const __m512i code = hn::PromoteTo(di, hn::LoadU(d8, codes + i)).raw;
    const auto bit = [&](int which) HWY_ATTR { return _mm512_test_epi32_mask(code, _mm512_set1_epi32(1 << which)); };
    const __mmask16 bit5 = bit(5), bit6 = bit(6), bit7 = bit(7);
    const auto of_32 = [&](std::size_t t) HWY_ATTR { return _mm512_permutex2var_ps(table[t], code, table[t + 1]); };
    const auto of_64 = [&](std::size_t t) HWY_ATTR { return _mm512_mask_blend_ps(bit5, of_32(t), of_32(t + 2)); };
    const auto of_128 = [&](std::size_t t) HWY_ATTR { return _mm512_mask_blend_ps(bit6, of_64(t), of_64(t + 4)); };
    const hn::Vec<D> value{_mm512_mask_blend_ps(bit7, of_128(0), of_128(8))};
    hn::StoreU(hn::Add(hn::Mul(value, hn::Set(d, scale)), hn::Set(d, offset)), d, absmax + i);
  }
#endif
  for (; i < n; ++i) absmax[i] = values[codes[i]] * scale + offset;
}

// Adds up rows of `partial_sums` values, column by column. Four vectors at a time, all rows: an addition waits for the
// one before, and more vectors would not fit the registers of every target.
void add_rows(const float* HWY_RESTRICT values, std::size_t rows, double* HWY_RESTRICT sums) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t column = 0; column < partial_sums; column += 4 * lanes) {
    const float* HWY_RESTRICT from = values + column;
    auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
    for (std::size_t row = 0; row < rows; ++row, from += partial_sums) {
      s0 = hn::Add(s0, hn::PromoteTo(d, hn::LoadU(df, from)));
      s1 = hn::Add(s1, hn::PromoteTo(d, hn::LoadU(df, from + lanes)));
      s2 = hn::Add(s2, hn::PromoteTo(d, hn::LoadU(df, from + 2 * lanes)));
      s3 = hn::Add(s3, hn::PromoteTo(d, hn::LoadU(df, from + 3 * lanes)));
    }
    hn::StoreU(s0, d, sums + column);
    hn::StoreU(s1, d, sums + column + lanes);
    hn::StoreU(s2, d, sums + column + 2 * lanes);
    hn::StoreU(s3, d, sums + column + 3 * lanes);
  }
}

}  // namespace nibble::nested::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble::nested {

HWY_EXPORT(encode_blocks);
HWY_EXPORT(add_rows);
HWY_EXPORT(decode_block);

namespace {

void check_sizes(std::size_t absmax, std::size_t codes, std::size_t nested_absmax) {
  if (codes != absmax || nested_absmax != absmax / blocksize + (absmax % blocksize != 0))
    throw Error(Errc::usage, std::to_string(absmax) + " absmax values do not fit " + std::to_string(codes) +
                                 " codes and " + std::to_string(nested_absmax) + " nested absmax values");
}

}  // namespace

double group_sum(std::span<const float> absmax) noexcept {
  std::array<double, partial_sums> sums{};
  const std::size_t rows = absmax.size() / partial_sums, rest = absmax.size() % partial_sums;
  HWY_DYNAMIC_DISPATCH(add_rows)(absmax.data(), rows, sums.data());
  for (std::size_t k = 0; k < rest; ++k) sums[k] += absmax[rows * partial_sums + k];
  for (std::size_t half = partial_sums / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
  return sums[0];
}

float offset(std::span<const float> absmax) noexcept {
  double sum = 0;
  for (std::size_t first = 0; first < absmax.size(); first += group)
    sum += group_sum(absmax.subspan(first, std::min(group, absmax.size() - first)));
  return absmax.empty() ? 0.0f : static_cast<float>(sum / static_cast<double>(absmax.size()));
}

void encode(std::span<const float> absmax, float offset, std::span<std::uint8_t> codes,
            std::span<float> nested_absmax) {
  check_sizes(absmax.size(), codes.size(), nested_absmax.size());
  HWY_DYNAMIC_DISPATCH(encode_blocks)(absmax.data(), absmax.size(), offset, codes.data(), nested_absmax.data());
}

void decode(std::span<const std::uint8_t> codes, std::span<const float> nested_absmax,
            std::span<const float, 256> values, float offset, std::span<float> absmax) {
  check_sizes(absmax.size(), codes.size(), nested_absmax.size());
  const auto decode_here = HWY_DYNAMIC_DISPATCH(decode_block);
  for (std::size_t first = 0; first < codes.size(); first += blocksize)
    decode_here(codes.data() + first, std::min(blocksize, codes.size() - first), values.data(),
                nested_absmax[first / blocksize], offset, absmax.data() + first);
}

}  // namespace nibble::nested
#endif
