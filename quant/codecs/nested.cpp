#include "nibble/nested.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "nibble/error.hpp"
#include "quant/codecs/nested_table.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/codecs/nested.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef NIBBLE_QUANT_NESTED_TABLES
#define NIBBLE_QUANT_NESTED_TABLES
namespace nibble::nested {

// The code nearest to v in [-1, 1] is the number of midpoints below it. For each value of v's upper bits (sign,
// exponent and six bits of the mantissa) at most one midpoint is undecided, so one lookup and one compare give the
// number.
struct Nearest {
  static constexpr std::int32_t shift = 17;                 // of the bits of |v|
  static constexpr std::int32_t first = (127 - 22) << 6;    // below 2^-22 there is no midpoint
  static constexpr std::int32_t last = (127 << 6) - first;  // 1, and a little more after rounding
  static constexpr std::int32_t negative = 2048;            // where the buckets of negative v begin

  std::array<float, 256> threshold;                 // by code: v above it has the next code
  std::array<std::uint8_t, 2 * negative> lowest{};  // by bucket
};

constexpr Nearest make_nearest() {
  Nearest nearest{};
  std::array<float, 255> midpoint{};
  for (std::size_t i = 0; i < 255; ++i) midpoint[i] = 0.5f * (codebook[i] + codebook[i + 1]);
  // A tie goes to the even code: the threshold above an odd code is just below the midpoint.
  for (std::size_t i = 0; i < 255; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(midpoint[i]);
    nearest.threshold[i] = i % 2 == 0 ? midpoint[i] : std::bit_cast<float>(midpoint[i] > 0 ? bits - 1 : bits + 1);
  }
  nearest.threshold[255] = std::numeric_limits<float>::infinity();

  // The numbers of midpoints below both ends of a bucket, for positive and for negative v. They move on with the
  // bucket.
  std::size_t zero = 0;
  while (midpoint[zero] < 0) ++zero;
  std::size_t min = zero, max = zero, minus_min = zero, minus_max = zero;
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
    rise(min, smallest);
    rise(max, largest);
    fall(minus_min, -smallest);
    fall(minus_max, -largest);
    nearest.lowest[static_cast<std::size_t>(bucket)] = static_cast<std::uint8_t>(min);
    nearest.lowest[static_cast<std::size_t>(bucket + Nearest::negative)] = static_cast<std::uint8_t>(minus_max);
    right = right && max - min <= 1 && minus_min - minus_max <= 1;
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

using D = hn::CappedTag<float, 16>;

// The largest |absmax - offset| of a block; as bits they order as the magnitudes do.
HWY_INLINE float largest_difference(const float* HWY_RESTRICT absmax, float offset) {
  const D d;
  const hn::RebindToSigned<D> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto mean = hn::Set(d, offset);
  const auto bits = [&](std::size_t i)
                        HWY_ATTR { return hn::BitCast(di, hn::Abs(hn::Sub(hn::LoadU(d, absmax + i), mean))); };
  auto a = hn::Zero(di), b = a;  // two chains, because each maximum waits for the one before
  for (std::size_t i = 0; i < blocksize; i += 2 * lanes) {
    a = hn::Max(a, bits(i));
    b = hn::Max(b, bits(i + lanes));
  }
  return std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(di, hn::Max(a, b))));
}

// One whole block.
HWY_INLINE void encode_block(const float* HWY_RESTRICT absmax, float offset, std::uint8_t* HWY_RESTRICT codes,
                             float* HWY_RESTRICT nested_absmax) {
  const D d;
  const hn::RebindToSigned<D> di;
  *nested_absmax = largest_difference(absmax, offset);
  const auto mean = hn::Set(d, offset), inverse = hn::Set(d, 1.0f / *nested_absmax);
  HWY_ALIGN float v[blocksize];
  HWY_ALIGN std::int32_t bucket[blocksize];
  for (std::size_t i = 0; i < blocksize; i += hn::Lanes(d)) {
    const auto difference = hn::Sub(hn::LoadU(d, absmax + i), mean), zero = hn::Zero(d);
    // 0 times an infinite inverse would be NaN.
    const auto scaled = hn::IfThenElse(hn::Eq(difference, zero), zero, hn::Mul(difference, inverse));
    const auto bits = hn::BitCast(di, scaled);
    const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
    const auto number = hn::Sub(hn::ShiftRight<Nearest::shift>(magnitude), hn::Set(di, Nearest::first));
    const auto inside = hn::Min(hn::Max(number, hn::Zero(di)), hn::Set(di, Nearest::last));
    const auto side = hn::And(hn::BroadcastSignBit(bits), hn::Set(di, Nearest::negative));
    hn::Store(scaled, d, v + i);
    hn::Store(hn::Add(inside, side), di, bucket + i);
  }

  const std::uint8_t* HWY_RESTRICT const lowest = nearest.lowest.data();
  const float* HWY_RESTRICT const threshold = nearest.threshold.data();
  for (std::size_t i = 0; i < blocksize; ++i) {
    const std::uint8_t code = lowest[bucket[i]];
    codes[i] = static_cast<std::uint8_t>(code + (v[i] > threshold[code] ? 1 : 0));
  }
}

void encode_blocks(const float* HWY_RESTRICT absmax, std::size_t n, float offset, std::uint8_t* HWY_RESTRICT codes,
                   float* HWY_RESTRICT nested_absmax) {
  for (; n >= blocksize; absmax += blocksize, codes += blocksize, n -= blocksize)
    encode_block(absmax, offset, codes, nested_absmax++);
  if (n == 0) return;
  float whole[blocksize];
  std::uint8_t whole_codes[blocksize];
  std::copy_n(absmax, n, whole);
  std::fill(whole + n, whole + blocksize, offset);
  encode_block(whole, offset, whole_codes, nested_absmax);
  std::copy_n(whole_codes, n, codes);
}

// The values of one block's codes.
void decode_block(const std::uint8_t* HWY_RESTRICT codes, std::size_t n, const float* HWY_RESTRICT values, float scale,
                  float offset, float* HWY_RESTRICT absmax) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  // One instruction looks up among 32 values by the lowest five bits; the others choose among eight such results. For a
  // part of a block, which is what a tile of weights has, loading the table would take longer than everything else.
  if (n == blocksize) {
    const D d;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<std::uint8_t, D> d8;
    __m512 table[16];
    for (std::size_t t = 0; t < 16; ++t) table[t] = hn::LoadU(d, values + 16 * t).raw;
    for (std::size_t i = 0; i < blocksize; i += 16) {
      const __m512i code = hn::PromoteTo(di, hn::LoadU(d8, codes + i)).raw;
      const auto bit = [&](int which) HWY_ATTR { return _mm512_test_epi32_mask(code, _mm512_set1_epi32(1 << which)); };
      const __mmask16 bit5 = bit(5), bit6 = bit(6), bit7 = bit(7);
      const auto of_32 = [&](std::size_t t) HWY_ATTR { return _mm512_permutex2var_ps(table[t], code, table[t + 1]); };
      const auto of_64 = [&](std::size_t t) HWY_ATTR { return _mm512_mask_blend_ps(bit5, of_32(t), of_32(t + 2)); };
      const auto of_128 = [&](std::size_t t) HWY_ATTR { return _mm512_mask_blend_ps(bit6, of_64(t), of_64(t + 4)); };
      const hn::Vec<D> value{_mm512_mask_blend_ps(bit7, of_128(0), of_128(8))};
      hn::StoreU(hn::Add(hn::Mul(value, hn::Set(d, scale)), hn::Set(d, offset)), d, absmax + i);
    }
    return;
  }
#endif
  for (std::size_t i = 0; i < n; ++i) absmax[i] = values[codes[i]] * scale + offset;
}

// Adds up rows of `partial_sums` values, column by column. Four vectors at a time go through all rows, because each
// addition waits for the one before; more vectors would not fit the registers of every target.
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

void decode_slice(std::uint64_t first, std::span<const std::uint8_t> codes, std::span<const float> nested_absmax,
                  std::span<const float, 256> values, float offset, std::span<float> absmax) {
  for_each_part_of_a_block(first, absmax.size(), [&](std::uint64_t at, std::uint64_t n) {
    decode(codes.subspan(at, n), nested_absmax.subspan(at / blocksize, 1), values, offset,
           absmax.subspan(at - first, n));
  });
}

bool decodes_to_finite(std::span<const std::uint8_t> codes, std::span<const float> nested_absmax, float offset) {
  constexpr float max_float = std::numeric_limits<float>::max();
  for (std::size_t i = 0; i < nested_absmax.size(); ++i) {
    if (std::abs(offset) < max_float / 4 && nested_absmax[i] < max_float / 4) continue;
    const std::size_t first = i * blocksize, n = std::min(blocksize, codes.size() - first);
    std::array<float, blocksize> decoded;
    const auto values = std::span(decoded).first(n);
    decode(codes.subspan(first, n), nested_absmax.subspan(i, 1), codebook, offset, values);
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) return false;
  }
  return true;
}

}  // namespace nibble::nested
#endif
