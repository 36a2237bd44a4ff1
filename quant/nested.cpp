#include "nibble/nested.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "nibble/error.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/nested.cpp"
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

}  // namespace nibble::nested
#endif

HWY_BEFORE_NAMESPACE();
namespace nibble::nested::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Encodes one block and returns its nested absmax.
float encode_block(const float* HWY_RESTRICT absmax, std::size_t n, float offset, std::uint8_t* HWY_RESTRICT codes) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN float v[blocksize];
  HWY_ALIGN std::int32_t bucket[blocksize];
  std::copy_n(absmax, n, v);
  std::fill(v + n, v + blocksize, offset);

  const auto magnitude_bits = hn::Set(di, 0x7FFFFFFF);
  auto most = hn::Zero(di);
  for (std::size_t i = 0; i < blocksize; i += lanes) {
    const auto difference = hn::Sub(hn::Load(d, v + i), hn::Set(d, offset));
    most = hn::Max(most, hn::And(hn::BitCast(di, difference), magnitude_bits));
    hn::Store(difference, d, v + i);
  }
  const float largest = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, most)));
  const auto inverse = hn::Set(d, 1.0f / largest);

  for (std::size_t i = 0; i < blocksize; i += lanes) {
    const auto difference = hn::Load(d, v + i), zero = hn::Zero(d);
    // 0 times an infinite inverse would be NaN.
    const auto scaled = hn::IfThenElse(hn::Eq(difference, zero), zero, hn::Mul(difference, inverse));
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
  return largest;
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

HWY_EXPORT(encode_block);
HWY_EXPORT(add_rows);

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
  const auto encode_block_here = HWY_DYNAMIC_DISPATCH(encode_block);
  for (std::size_t first = 0; first < absmax.size(); first += blocksize)
    nested_absmax[first / blocksize] = encode_block_here(
        absmax.data() + first, std::min(blocksize, absmax.size() - first), offset, codes.data() + first);
}

void decode(std::span<const std::uint8_t> codes, std::span<const float> nested_absmax,
            std::span<const float, 256> values, float offset, std::span<float> absmax) {
  check_sizes(absmax.size(), codes.size(), nested_absmax.size());
  // Plain pointers: a span checks every index.
  const std::uint8_t* const from = codes.data();
  const float* const value = values.data();
  float* const to = absmax.data();
  for (std::size_t first = 0; first < codes.size(); first += blocksize) {
    const float scale = nested_absmax[first / blocksize];
    for (std::size_t i = first; i < std::min(first + blocksize, codes.size()); ++i)
      to[i] = value[from[i]] * scale + offset;
  }
}

}  // namespace nibble::nested
#endif
