// Compiled once per CPU target.
#include "quant/four_bit_error.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

#include "nibble/nested.hpp"
#include "quant/four_bit.hpp"
#include "quant/lanes.hpp"
#include "quant/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/four_bit_error.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef NIBBLE_QUANT_FOUR_BIT_CHANGE_SUMS
#define NIBBLE_QUANT_FOUR_BIT_CHANGE_SUMS
namespace nibble {

// With d = a' - a: sums of a^2, d a and d^2, in four lanes.
struct ChangeSums {
  alignas(16) float absmax_square[4], cross[4], square[4];
};

}  // namespace nibble
#endif

#include "quant/four_bit_error-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#define NIBBLE_COMPARE_BLOCKS_OF(name, Source)                                                          \
  void compare_blocks_##name(const FourBitTables& tables, const std::byte* HWY_RESTRICT w,              \
                             const std::uint8_t* HWY_RESTRICT packed, const float* HWY_RESTRICT absmax, \
                             std::size_t blocks, std::size_t blocksize, TileSums& HWY_RESTRICT sums) {  \
    TileErrors<Source> tile(tables, blocksize);                                                         \
    tile.add(w, packed, absmax, blocks);                                                                \
    tile.end(absmax, blocks, sums);                                                                     \
  }
NIBBLE_COMPARE_BLOCKS_OF(f32, F32)
NIBBLE_COMPARE_BLOCKS_OF(bf16, Bf16)
NIBBLE_COMPARE_BLOCKS_OF(f16, F16)
#undef NIBBLE_COMPARE_BLOCKS_OF

// Of n blocks, a multiple of 16, whose absmax is multiplied by `scale`.
void sum_changes(const float* HWY_RESTRICT absmax, const float* HWY_RESTRICT decoded, std::size_t n, float scale,
                 ChangeSums& HWY_RESTRICT sums) {
  const D d;
  const V factor = hn::Set(d, scale);
  Lanes16 absmax_square, cross, square;
  for (std::size_t i = 0; i < n; i += 16)
    for (std::size_t k = 0; k < vector_parts; ++k) {
      const std::size_t at = i + k * vector_lanes;
      const V a = hn::Mul(hn::LoadU(d, absmax + at), factor);
      const V by = hn::Sub(hn::Mul(hn::LoadU(d, decoded + at), factor), a);
      absmax_square.add_product(k, a, a);
      cross.add_product(k, by, a);
      square.add_product(k, by, by);
    }
  absmax_square.fold(sums.absmax_square);
  cross.fold(sums.cross);
  square.fold(sums.square);
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace {

HWY_EXPORT(compare_blocks_f32);
HWY_EXPORT(compare_blocks_bf16);
HWY_EXPORT(compare_blocks_f16);
HWY_EXPORT(sum_changes);

auto compare_blocks_of(DType source) {
  return loop_of(source, HWY_DYNAMIC_DISPATCH(compare_blocks_f32), HWY_DYNAMIC_DISPATCH(compare_blocks_bf16),
                 HWY_DYNAMIC_DISPATCH(compare_blocks_f16));
}

// In fp64, weight by weight.
void add_block(const FourBitTables& tables, std::span<const float> weights, const std::uint8_t* packed, float absmax,
               ErrorSums& sums) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i])) continue;
    const double w = weights[i];
    const double t = tables.codebook[packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15] * absmax, error = t - w;
    sums.add({1, error * error, w * t, w * w, t * t});
  }
}

// sum d a and sum d^2, over sum a^2.
struct Change {
  double cross = 0, square = 0;
};

Change change_of(std::span<const float> absmax, std::span<const float> decoded) {
  constexpr std::size_t vector = 16, max_blocks = tile_weights / 32;
  // What is missing adds 0.
  alignas(64) std::array<float, max_blocks> padded[2];
  const float* a = absmax.data();
  const float* b = decoded.data();
  std::size_t n = absmax.size();
  if (n % vector != 0) {
    n += vector - n % vector;
    padded[0].fill(0);
    padded[1].fill(0);
    a = std::ranges::copy(absmax, padded[0].begin()).out - absmax.size();
    b = std::ranges::copy(decoded, padded[1].begin()).out - decoded.size();
  }
  // Squares have to stay within fp32.
  const int exponent = std::clamp(std::ilogb(absmax.front()), -126, 126);
  ChangeSums sums;
  HWY_DYNAMIC_DISPATCH(sum_changes)(a, b, n, std::ldexp(1.0f, -exponent), sums);
  double all = sum_of_lanes(sums.absmax_square), cross = sum_of_lanes(sums.cross), square = sum_of_lanes(sums.square);
  if (!std::isfinite(square)) {  // their magnitudes are too far apart for fp32
    all = cross = square = 0;
    for (std::size_t i = 0; i < absmax.size(); ++i) {
      const double from = absmax[i], by = decoded[i] - from;
      all += from * from;
      cross += by * from;
      square += by * by;
    }
  }
  return all > 0 ? Change{cross / all, square / all} : Change{};
}

}  // namespace

ErrorSums tile_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                      std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
                      const TileSums& tile) {
  ErrorSums sums;
  const std::size_t size = traits(source).bits / 8, n = weights.size() / size;
  std::size_t done = n / blocksize;
  const double square = sum_of_lanes(tile.square), cross = sum_of_lanes(tile.cross), test = sum_of_lanes(tile.test);
  if (tile.is_in_range && std::isfinite(square))
    sums = {done * blocksize, square, test - cross, test - 2 * cross + square, test};
  else
    done = 0;
  for (std::size_t b = done; b < absmax.size(); ++b) {
    const std::size_t first = b * blocksize, count = std::min(blocksize, n - first);
    alignas(64) std::array<float, tile_weights> room;
    const auto block = widen(source, weights.subspan(first * size, count * size), room);
    add_block(tables, block, packed.data() + first / 2, absmax[b], sums);
  }
  return sums;
}

ErrorSums tile_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                      std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize) {
  TileSums tile;
  compare_blocks_of(source)(tables, weights.data(), packed.data(), absmax.data(),
                            weights.size() / (traits(source).bits / 8) / blocksize, blocksize, tile);
  return tile_errors(tables, source, weights, packed, absmax, blocksize, tile);
}

ErrorSums change_of_errors(std::span<const TileCross> tiles, std::size_t blocks_per_tile, std::span<const float> absmax,
                           std::span<const std::uint8_t> codes, std::span<const float> nested_absmax, float offset) {
  constexpr std::size_t size = nested::blocksize;
  assert(size % blocks_per_tile == 0);
  ErrorSums change;
  for (std::size_t first = 0; first < absmax.size(); first += size) {
    const std::size_t end = std::min(absmax.size(), first + size);
    alignas(64) std::array<float, size> decoded;
    nested::decode(codes.subspan(first, end - first), nested_absmax.subspan(first / size, 1), nested::codebook, offset,
                   std::span(decoded).first(end - first));
    for (std::size_t at = first; at < end; at += blocks_per_tile) {
      const std::size_t n = std::min(blocks_per_tile, end - at);
      const auto [cross, square] = change_of(absmax.subspan(at, n), std::span(decoded).subspan(at - first, n));
      const TileCross& tile = tiles[at / blocks_per_tile];
      change.add({0, 2 * tile.cross * cross + tile.test * square, (tile.test - tile.cross) * cross, 0,
                  tile.test * (2 * cross + square)});
    }
  }
  return change;
}

}  // namespace nibble
#endif
