// What 4-bit codes cost, block by block, compiled once per CPU target.
//
// With t = a c for absmax a and codebook value c, as it is decoded, and e = t - w, a block is summed up as
//
//   E = sum e^2,  X = sum e t,  T = sum t^2
//
// and that is enough for everything later: w = t - e gives sum w t = T - X and sum w^2 = T - 2 X + E. If double
// quantization adds d to a, E becomes E + 2 d X / a + d^2 T / a^2. So E is added up over a tile, and X and T over a
// block.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "quant/four_bit.hpp"
#include "quant/lanes.hpp"
#include "quant/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/four_bit_error.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// What the loops below hand over of a tile: sums in four lanes, which is where fp32 ends, and the range of its absmax.
#ifndef NIBBLE_QUANT_FOUR_BIT_TILE_SUMS
#define NIBBLE_QUANT_FOUR_BIT_TILE_SUMS
namespace nibble {

struct TileSums {
  alignas(16) float square[4], cross[4], test[4];
  float least, most;  // blocks of zeros aside
};

inline constexpr std::size_t change_lanes = 8;
struct ChangeSums {
  double square[change_lanes], product[change_lanes], test[change_lanes];
};

}  // namespace nibble
#endif

#include "quant/lanes-inl.hpp"
#include "quant/source-inl.hpp"
#include "quant/table16-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t group = 32;  // weights: an even and an odd one for each of 16 lanes; blocksizes are multiples

// X and T of the blocks of a tile, each in four lanes that are still to be added up, and absmax; zeros behind the last.
struct BlockSums {
  static constexpr std::size_t most_blocks = tile_weights / 32;
  HWY_ALIGN float cross[most_blocks][4];
  HWY_ALIGN float test[most_blocks][4];
  HWY_ALIGN float absmax[most_blocks];

  BlockSums(const float* HWY_RESTRICT scales, std::size_t blocks) {
    const std::size_t end = (blocks + 15) / 16 * 16;
    std::copy_n(scales, blocks, absmax);
    std::fill(absmax + blocks, absmax + end, 0.0f);
    std::fill_n(&cross[0][0] + 4 * blocks, 4 * (end - blocks), 0.0f);
    std::fill_n(&test[0][0] + 4 * blocks, 4 * (end - blocks), 0.0f);
  }
};

// Adds X and T up over the tile, and makes a FourBitError of those of each block.
HWY_INLINE void add_blocks(const BlockSums& HWY_RESTRICT of, std::size_t blocks, FourBitError* HWY_RESTRICT errors,
                           TileSums& HWY_RESTRICT sums) {
  const D d;
  const V zero = hn::Zero(d), infinite = hn::Set(d, std::numeric_limits<float>::infinity());
  Lanes16 tile_cross, tile_test;
  V least = infinite, most = zero;
  FourBitError of_each[BlockSums::most_blocks];
  for (std::size_t first = 0; first < blocks; first += 16)
    for (std::size_t k = 0; k < vector_parts; ++k) {
      const std::size_t b = first + k * vector_lanes;
      const auto sum_of = [&](const float* rows) HWY_ATTR {
        V r0, r1, r2, r3;
        hn::LoadInterleaved4(d, rows, r0, r1, r2, r3);
        return hn::Add(hn::Add(r0, r2), hn::Add(r1, r3));
      };
      const V cross = sum_of(of.cross[b]), test = sum_of(of.test[b]), a = hn::Load(d, of.absmax + b);
      tile_cross.add(k, cross);
      tile_test.add(k, test);
      const auto is_zero = hn::Eq(a, zero);
      least = hn::Min(least, hn::IfThenElse(is_zero, infinite, a));
      most = hn::Max(most, a);
      const V inverse = hn::IfThenZeroElse(is_zero, hn::Div(hn::Set(d, 1.0f), a));
      hn::StoreInterleaved2(hn::Mul(cross, inverse), hn::Mul(hn::Mul(test, inverse), inverse), d,
                            reinterpret_cast<float*>(of_each + b));
    }
  if (errors != nullptr) std::copy_n(of_each, blocks, errors);
  tile_cross.fold(sums.cross);
  tile_test.fold(sums.test);
  sums.least = hn::GetLane(hn::MinOfLanes(d, least));
  sums.most = hn::GetLane(hn::MaxOfLanes(d, most));
}

#if HWY_TARGET != HWY_SCALAR

// Even weights, then odd ones.
template <class Source> HWY_INLINE Two<V> load_even_odd(const std::byte* HWY_RESTRICT w, std::size_t i) {
  const D d;
  if constexpr (sizeof(typename Source::Run) == 8) {
    return Source::load_two(d, w, i);
  } else if constexpr (Source::size == 4) {
    V even, odd;
    hn::LoadInterleaved2(d, Source::at(w, i), even, odd);
    return {even, odd};
  } else {
    const V first = Source::load(d, w, i), second = Source::load(d, w, i + vector_lanes);
    return {hn::ConcatEven(d, second, first), hn::ConcatOdd(d, second, first)};
  }
}

// Sums of four blocks, folded as each of them alone would be.
HWY_INLINE void fold_four(const Lanes16 (&sums)[4], float (*HWY_RESTRICT to)[4]) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  const D d;
  const auto pair = [&](const Lanes16& a, const Lanes16& b) HWY_ATTR {
    return hn::Add(hn::ConcatLowerLower(d, b.part[0], a.part[0]), hn::ConcatUpperUpper(d, b.part[0], a.part[0]));
  };
  const V first = pair(sums[0], sums[1]), second = pair(sums[2], sums[3]);
  const V even{_mm512_shuffle_f32x4(first.raw, second.raw, _MM_SHUFFLE(2, 0, 2, 0))};
  const V odd{_mm512_shuffle_f32x4(first.raw, second.raw, _MM_SHUFFLE(3, 1, 3, 1))};
  hn::Store(hn::Add(even, odd), d, to[0]);
#else
  for (std::size_t j = 0; j < 4; ++j) sums[j].fold(to[j]);
#endif
}

// One block. `value` holds what its codes are decoded to.
template <class Source, bool blocks_of_64>
HWY_INLINE void sum_block(const Table16<D>& value, const std::byte* HWY_RESTRICT w,
                          const std::uint8_t* HWY_RESTRICT packed, std::size_t first, std::size_t blocksize,
                          Lanes16& even_square, Lanes16& odd_square, Lanes16& cross, Lanes16& test) {
  const DI di;
  const hn::Rebind<std::uint8_t, D> d8;
  const auto add_group = [&](std::size_t i) HWY_ATTR {
    for (std::size_t k = 0; k < vector_parts; ++k) {
      const std::size_t at = i + 2 * k * vector_lanes;
      const auto bytes = hn::PromoteTo(di, hn::LoadU(d8, packed + at / 2));
      const auto two = load_even_odd<Source>(w, at);
      const auto add = [&](Lanes16& squares, V t, V weight) HWY_ATTR {
        const V error = hn::Sub(t, weight);
        squares.add_product(k, error, error);
        cross.add_product(k, error, t);
        test.add_product(k, t, t);
      };
      add(even_square, value[hn::ShiftRight<4>(bytes)], two.v0);
      add(odd_square, value.at_lower_bits(bytes), two.v1);
    }
  };
  if constexpr (blocks_of_64) {
    add_group(first);
    add_group(first + group);
  } else {
    for (std::size_t i = first; i < first + blocksize; i += group) add_group(i);
  }
}

template <class Source, bool blocks_of_64>
HWY_INLINE void sum_tile_as(const FourBitTables& tables, const std::byte* HWY_RESTRICT w,
                            const std::uint8_t* HWY_RESTRICT packed, const float* HWY_RESTRICT absmax,
                            std::size_t blocks, std::size_t blocksize, FourBitError* HWY_RESTRICT errors,
                            TileSums& HWY_RESTRICT sums) {
  const D d;
  const Table16<D> codebook(d, tables.codebook.data());
  BlockSums of(absmax, blocks);
  Lanes16 even_square, odd_square;
  alignas(64) float room[16];
  const auto add_block = [&](std::size_t b, Lanes16& cross, Lanes16& test) HWY_ATTR {
    sum_block<Source, blocks_of_64>(Table16<D>(d, codebook, of.absmax[b], room), w, packed, b * blocksize, blocksize,
                                    even_square, odd_square, cross, test);
  };
  std::size_t b = 0;
  for (; blocks - b >= 4; b += 4) {
    Lanes16 cross[4], test[4];
    for (std::size_t j = 0; j < 4; ++j) add_block(b + j, cross[j], test[j]);
    fold_four(cross, of.cross + b);
    fold_four(test, of.test + b);
  }
  for (; b < blocks; ++b) {
    Lanes16 cross, test;
    add_block(b, cross, test);
    cross.fold(of.cross[b]);
    test.fold(of.test[b]);
  }
  for (std::size_t k = 0; k < vector_parts; ++k) even_square.add(k, odd_square.part[k]);
  even_square.fold(sums.square);
  add_blocks(of, blocks, errors, sums);
}

#else

template <class Source, bool>
HWY_INLINE void sum_tile_as(const FourBitTables& tables, const std::byte* HWY_RESTRICT w,
                            const std::uint8_t* HWY_RESTRICT packed, const float* HWY_RESTRICT absmax,
                            std::size_t blocks, std::size_t blocksize, FourBitError* HWY_RESTRICT errors,
                            TileSums& HWY_RESTRICT sums) {
  BlockSums of(absmax, blocks);
  Lanes16 square[2];
  for (std::size_t b = 0; b < blocks; ++b) {
    Lanes16 cross, test;
    for (std::size_t i = b * blocksize; i < (b + 1) * blocksize; ++i) {
      const std::size_t lane = i / 2 % 16;
      const float t = tables.codebook[packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15] * absmax[b];
      const float error = t - Source::value(w, i);
      square[i % 2].add_product(lane, error, error);
      cross.add_product(lane, error, t);
      test.add_product(lane, t, t);
    }
    cross.fold(of.cross[b]);
    test.fold(of.test[b]);
  }
  for (std::size_t k = 0; k < vector_parts; ++k) square[0].add(k, square[1].part[k]);
  square[0].fold(sums.square);
  add_blocks(of, blocks, errors, sums);
}

#endif

#define NIBBLE_SUM_TILE_OF(name, Source)                                                                              \
  void sum_tile_##name(const FourBitTables& tables, const std::byte* HWY_RESTRICT w,                                  \
                       const std::uint8_t* HWY_RESTRICT packed, const float* HWY_RESTRICT absmax, std::size_t blocks, \
                       std::size_t blocksize, FourBitError* HWY_RESTRICT errors, TileSums& HWY_RESTRICT sums) {       \
    if (blocksize == 64)                                                                                              \
      sum_tile_as<Source, HWY_TARGET != HWY_SCALAR>(tables, w, packed, absmax, blocks, blocksize, errors, sums);      \
    else                                                                                                              \
      sum_tile_as<Source, false>(tables, w, packed, absmax, blocks, blocksize, errors, sums);                         \
  }
NIBBLE_SUM_TILE_OF(f32, F32)
NIBBLE_SUM_TILE_OF(bf16, Bf16)
NIBBLE_SUM_TILE_OF(f16, F16)
#undef NIBBLE_SUM_TILE_OF

// In fp64, in 8 lanes whatever a vector has, without fused operations. n is a multiple of 8. With x = sum e c, c = sum
// c^2 and d = a' - a, square grows by d (2 x + d c), product by d (a c - x), test by d c (a + a').
void sum_changes(const FourBitError* HWY_RESTRICT errors, const float* HWY_RESTRICT absmax,
                 const float* HWY_RESTRICT decoded, std::size_t n, ChangeSums& HWY_RESTRICT sums) {
  const hn::CappedTag<double, change_lanes> d;
  const hn::Rebind<float, decltype(d)> df;
  constexpr std::size_t lanes = hn::MaxLanes(d), parts = change_lanes / lanes;
  hn::Vec<decltype(d)> square[parts], product[parts], test[parts];
  for (std::size_t k = 0; k < parts; ++k) square[k] = product[k] = test[k] = hn::Zero(d);
  for (std::size_t i = 0; i < n; i += change_lanes)
    for (std::size_t k = 0; k < parts; ++k) {
      const std::size_t at = i + k * lanes;
      hn::Vec<decltype(df)> cross_floats, codes_floats;
      hn::LoadInterleaved2(df, reinterpret_cast<const float*>(errors + at), cross_floats, codes_floats);
      const auto x = hn::PromoteTo(d, cross_floats), c = hn::PromoteTo(d, codes_floats);
      const auto a = hn::PromoteTo(d, hn::LoadU(df, absmax + at)), to = hn::PromoteTo(d, hn::LoadU(df, decoded + at));
      const auto delta = hn::Sub(to, a), by = hn::Mul(delta, c);
      square[k] = hn::Add(square[k], hn::Mul(delta, hn::Add(hn::Add(x, x), by)));
      product[k] = hn::Add(product[k], hn::Mul(delta, hn::Sub(hn::Mul(a, c), x)));
      test[k] = hn::Add(test[k], hn::Mul(by, hn::Add(a, to)));
    }
  for (std::size_t k = 0; k < parts; ++k) {
    hn::StoreU(square[k], d, sums.square + k * lanes);
    hn::StoreU(product[k], d, sums.product + k * lanes);
    hn::StoreU(test[k], d, sums.test + k * lanes);
  }
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace {

HWY_EXPORT(sum_tile_f32);
HWY_EXPORT(sum_tile_bf16);
HWY_EXPORT(sum_tile_f16);
HWY_EXPORT(sum_changes);

auto sum_tile_of(DType source) {
  switch (source) {
    case DType::bf16:
      return HWY_DYNAMIC_DISPATCH(sum_tile_bf16);
    case DType::f16:
      return HWY_DYNAMIC_DISPATCH(sum_tile_f16);
    default:
      return HWY_DYNAMIC_DISPATCH(sum_tile_f32);
  }
}

// Squares of smaller or larger weights are not for fp32.
constexpr float smallest_absmax = 1e-12f;
constexpr float largest_absmax = 1e12f;

// False, and nothing done, if fp32 could not hold the sums.
bool add_tile(const TileSums& tile, std::size_t weights, ErrorSums& sums) {
  if (tile.least < smallest_absmax || !(tile.most <= largest_absmax)) return false;
  const double square = sum_of_lanes(tile.square), cross = sum_of_lanes(tile.cross), test = sum_of_lanes(tile.test);
  if (!std::isfinite(square)) return false;
  sums.add({weights, square, test - cross, test - 2 * cross + square, test});
  return true;
}

// In fp64, weight by weight: the last block if it is short, and what is not for fp32 or not finite.
FourBitError add_block(const FourBitTables& tables, std::span<const float> weights, const std::uint8_t* packed,
                       float absmax, ErrorSums& sums) {
  double cross = 0, codes = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i])) continue;
    const double w = weights[i];
    const float c = tables.codebook[packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15];
    const double t = c * absmax, error = t - w;
    cross += error * c;
    codes += static_cast<double>(c) * c;
    sums.add({1, error * error, w * t, w * w, t * t});
  }
  return {static_cast<float>(cross), static_cast<float>(codes)};
}

}  // namespace

void sum_four_bit_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                         std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
                         std::span<FourBitError> errors, ErrorSums& sums) {
  const std::size_t size = traits(source).bits / 8, n = weights.size() / size;
  std::size_t done = n / blocksize;
  TileSums tile_sums;
  sum_tile_of(source)(tables, weights.data(), packed.data(), absmax.data(), done, blocksize,
                      errors.empty() ? nullptr : errors.data(), tile_sums);
  if (!add_tile(tile_sums, done * blocksize, sums)) done = 0;
  for (std::size_t b = done; b < absmax.size(); ++b) {
    const std::size_t first = b * blocksize, count = std::min(blocksize, n - first);
    alignas(64) std::array<float, tile_weights> tile;
    const auto block = widen(source, weights.subspan(first * size, count * size), tile);
    const FourBitError error = add_block(tables, block, packed.data() + first / 2, absmax[b], sums);
    if (!errors.empty()) errors[b] = error;
  }
}

ErrorSums change_of_errors(std::span<const FourBitError> errors, std::span<const float> absmax,
                           std::span<const float> decoded) {
  const std::size_t n = errors.size(), whole = n - n % change_lanes;
  ChangeSums sums;
  HWY_DYNAMIC_DISPATCH(sum_changes)(errors.data(), absmax.data(), decoded.data(), whole, sums);
  ErrorSums change;
  const auto add = [&](const ChangeSums& part) {
    for (std::size_t j = 0; j < change_lanes; ++j) change.add({0, part.square[j], part.product[j], 0, part.test[j]});
  };
  add(sums);
  if (whole < n) {
    // What is missing adds 0.
    FourBitError last_errors[change_lanes] = {};
    float last_absmax[change_lanes] = {}, last_decoded[change_lanes] = {};
    std::copy(errors.begin() + static_cast<std::ptrdiff_t>(whole), errors.end(), last_errors);
    std::copy(absmax.begin() + static_cast<std::ptrdiff_t>(whole), absmax.end(), last_absmax);
    std::copy(decoded.begin() + static_cast<std::ptrdiff_t>(whole), decoded.end(), last_decoded);
    HWY_DYNAMIC_DISPATCH(sum_changes)(last_errors, last_absmax, last_decoded, change_lanes, sums);
    add(sums);
  }
  return change;
}

}  // namespace nibble
#endif
