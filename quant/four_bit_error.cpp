// What 4-bit codes cost, block by block, compiled once per CPU target.
//
// With t = a c for absmax a and codebook value c, and e = t - w, a block is summed up as
//
//   E = sum e^2,  X = sum e c,  C = sum c^2
//
// and that is enough for everything later: sum t^2 = a^2 C, and w = a c - e gives sum w t = a^2 C - a X and
// sum w^2 = a^2 C - 2 a X + E. If double quantization makes a' of a, E becomes E + 2 (a' - a) X + (a' - a)^2 C.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "quant/four_bit.hpp"
#include "quant/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/four_bit_error.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

// What the loops below hand over: for every block of a tile the sums of 16 lanes, folded into four, one array each.
#ifndef NIBBLE_QUANT_FOUR_BIT_BLOCK_SUMS
#define NIBBLE_QUANT_FOUR_BIT_BLOCK_SUMS
namespace nibble {

inline constexpr std::size_t tile_blocks = tile_weights / 32;  // at most
using Folded = float[tile_blocks][4];
struct BlockSums {
  alignas(64) Folded square, cross, codes;
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

template <class Source>
HWY_INLINE void sum_blocks_as(const FourBitTables& tables, const std::byte* HWY_RESTRICT w,
                              const std::uint8_t* HWY_RESTRICT packed, const float* HWY_RESTRICT absmax,
                              std::size_t blocks, std::size_t blocksize, BlockSums& HWY_RESTRICT sums) {
  const D d;
  const DI di;
  const hn::Rebind<std::uint8_t, D> d8;
  const Table16<D> value(d, tables.codebook.data());
  for (std::size_t b = 0; b < blocks; ++b) {
    const V scale = hn::Set(d, absmax[b]);
    Lanes16 square, cross, codes;
    for (std::size_t i = b * blocksize; i < (b + 1) * blocksize; i += group)
      for (std::size_t k = 0; k < vector_parts; ++k) {
        const std::size_t at = i + 2 * k * vector_lanes;
        const auto bytes = hn::PromoteTo(di, hn::LoadU(d8, packed + at / 2));
        const auto two = load_even_odd<Source>(w, at);
        const auto add = [&](V c, V weight) HWY_ATTR {
          const V error = fused(d, c, scale, hn::Neg(weight));
          square.add_product(k, error, error);
          cross.add_product(k, error, c);
          codes.add_product(k, c, c);
        };
        add(value[hn::ShiftRight<4>(bytes)], two.v0);
        add(value[hn::And(bytes, hn::Set(di, 15))], two.v1);
      }
    square.fold(sums.square[b]);
    cross.fold(sums.cross[b]);
    codes.fold(sums.codes[b]);
  }
}

#else

template <class Source>
HWY_INLINE void sum_blocks_as(const FourBitTables& tables, const std::byte* HWY_RESTRICT w,
                              const std::uint8_t* HWY_RESTRICT packed, const float* HWY_RESTRICT absmax,
                              std::size_t blocks, std::size_t blocksize, BlockSums& HWY_RESTRICT sums) {
  for (std::size_t b = 0; b < blocks; ++b) {
    Lanes16 square, cross, codes;
    for (std::size_t i = b * blocksize; i < (b + 1) * blocksize; ++i) {
      const std::size_t lane = i / 2 % 16;
      const float c = tables.codebook[packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15];
      const float error = std::fma(c, absmax[b], -Source::value(w, i));
      square.add_product(lane, error, error);
      cross.add_product(lane, error, c);
      codes.add_product(lane, c, c);
    }
    square.fold(sums.square[b]);
    cross.fold(sums.cross[b]);
    codes.fold(sums.codes[b]);
  }
}

#endif

#define NIBBLE_SUM_BLOCKS_OF(name, Source)                                                          \
  void sum_blocks_##name(const FourBitTables& tables, const std::byte* HWY_RESTRICT w,              \
                         const std::uint8_t* HWY_RESTRICT packed, const float* HWY_RESTRICT absmax, \
                         std::size_t blocks, std::size_t blocksize, BlockSums& HWY_RESTRICT sums) { \
    sum_blocks_as<Source>(tables, w, packed, absmax, blocks, blocksize, sums);                      \
  }
NIBBLE_SUM_BLOCKS_OF(f32, F32)
NIBBLE_SUM_BLOCKS_OF(bf16, Bf16)
NIBBLE_SUM_BLOCKS_OF(f16, F16)
#undef NIBBLE_SUM_BLOCKS_OF

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace {

HWY_EXPORT(sum_blocks_f32);
HWY_EXPORT(sum_blocks_bf16);
HWY_EXPORT(sum_blocks_f16);

auto sum_blocks_of(DType source) {
  switch (source) {
    case DType::bf16:
      return HWY_DYNAMIC_DISPATCH(sum_blocks_bf16);
    case DType::f16:
      return HWY_DYNAMIC_DISPATCH(sum_blocks_f16);
    default:
      return HWY_DYNAMIC_DISPATCH(sum_blocks_f32);
  }
}

// Squares of smaller or larger weights are not for fp32.
constexpr float smallest_absmax = 1e-12f;
constexpr float largest_absmax = 1e12f;

void add_up(const Folded& folded, std::size_t blocks, float* to) {
  for (std::size_t b = 0; b < blocks; ++b) to[b] = (folded[b][0] + folded[b][2]) + (folded[b][1] + folded[b][3]);
}

// Blocks [0, blocks) of a tile from their sums. False, and nothing done, if fp32 could not hold them. Sums are made in
// four lanes, so that the compiler can use vectors without another order.
bool add_blocks(const BlockSums& in, const float* absmax, std::size_t blocks, std::size_t blocksize,
                FourBitError* errors, ErrorSums& sums) {
  float least = absmax[0], most = absmax[0];
  for (std::size_t b = 1; b < blocks; ++b) {
    least = absmax[b] < least ? absmax[b] : least;
    most = absmax[b] > most ? absmax[b] : most;
  }
  if (!(least >= smallest_absmax && most <= largest_absmax)) return false;
  float square[tile_blocks], cross[tile_blocks], codes[tile_blocks];  // an array that checks every index is slow
  add_up(in.square, blocks, square);
  add_up(in.cross, blocks, cross);
  add_up(in.codes, blocks, codes);
  constexpr std::size_t lanes = 4;
  double squares[lanes] = {}, products[lanes] = {}, references[lanes] = {}, tests[lanes] = {};
  const auto add = [&](std::size_t b, std::size_t j) {
    const double a = absmax[b], e = square[b], x = a * cross[b], c = a * a * codes[b];
    squares[j] += e;
    products[j] += c - x;
    references[j] += c - 2 * x + e;
    tests[j] += c;
  };
  std::size_t b = 0;
  for (; b + lanes <= blocks; b += lanes)
    for (std::size_t j = 0; j < lanes; ++j) add(b + j, j);
  for (; b < blocks; ++b) add(b, b % lanes);
  const auto total = [](const double(&lane)[lanes]) { return (lane[0] + lane[2]) + (lane[1] + lane[3]); };
  if (!std::isfinite(total(squares))) return false;
  for (std::size_t i = 0; i < blocks; ++i) errors[i] = {cross[i], codes[i]};
  sums.add({blocks * blocksize, total(squares), total(products), total(references), total(tests)});
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
  BlockSums block_sums;
  sum_blocks_of(source)(tables, weights.data(), packed.data(), absmax.data(), done, blocksize, block_sums);
  if (done == 0 || !add_blocks(block_sums, absmax.data(), done, blocksize, errors.data(), sums)) done = 0;
  for (std::size_t b = done; b < absmax.size(); ++b) {
    const std::size_t first = b * blocksize, count = std::min(blocksize, n - first);
    alignas(64) std::array<float, tile_weights> tile;
    const auto block = widen(source, weights.subspan(first * size, count * size), tile);
    errors[b] = add_block(tables, block, packed.data() + first / 2, absmax[b], sums);
  }
}

}  // namespace nibble
#endif
