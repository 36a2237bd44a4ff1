// Compiled once per CPU target.
#include "quant/errors/four_bit_error.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "nibble/fp16.hpp"
#include "nibble/nested.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/simd/lanes.hpp"
#include "quant/simd/widen.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/errors/four_bit_error.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#ifndef NIBBLE_QUANT_FOUR_BIT_CHANGE_SUMS
#define NIBBLE_QUANT_FOUR_BIT_CHANGE_SUMS
namespace nibble {

// With d = a' - a: sums of d X / a, d^2 T / a^2 and d T / a, in four lanes.
struct ChangeSums {
  alignas(16) float cross[4], square[4], test[4];
};

}  // namespace nibble
#endif

#include "quant/codecs/four_bit/four_bit_encode-inl.hpp"
#include "quant/errors/four_bit_error-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace nibble::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Source>
HWY_INLINE void encode_and_compare_blocks(const FourBitTables& tables, const std::byte* HWY_RESTRICT w,
                                          std::size_t blocks, std::size_t blocksize, std::uint8_t* HWY_RESTRICT packed,
                                          float* HWY_RESTRICT absmax, FourBitError* HWY_RESTRICT errors,
                                          TileSums& HWY_RESTRICT sums) {
  TileErrors<Source> tile(tables, blocksize, errors);
  encode_whole_blocks<Source>(tables, w, blocks, blocksize, packed, absmax,
                              [&](const std::byte* from, std::size_t count, const std::uint8_t* codes,
                                  const float* largest) HWY_ATTR { tile.add(from, codes, largest, count); });
  tile.end(sums);
}

template <class Source>
HWY_INLINE void compare_blocks(const FourBitTables& tables, const std::byte* HWY_RESTRICT w,
                               const std::uint8_t* HWY_RESTRICT packed, const float* HWY_RESTRICT absmax,
                               std::size_t blocks, std::size_t blocksize, FourBitError* HWY_RESTRICT errors,
                               TileSums& HWY_RESTRICT sums) {
  TileErrors<Source> tile(tables, blocksize, errors);
  tile.add(w, packed, absmax, blocks);
  tile.end(sums);
}

#define NIBBLE_COMPARE_BLOCKS_OF(name, Source)                                                                        \
  void encode_and_compare_blocks_##name(const FourBitTables& tables, const std::byte* HWY_RESTRICT w,                 \
                                        std::size_t blocks, std::size_t blocksize, std::uint8_t* HWY_RESTRICT packed, \
                                        float* HWY_RESTRICT absmax, FourBitError* HWY_RESTRICT errors,                \
                                        TileSums& HWY_RESTRICT sums) {                                                \
    encode_and_compare_blocks<Source>(tables, w, blocks, blocksize, packed, absmax, errors, sums);                    \
  }                                                                                                                   \
  void compare_blocks_##name(const FourBitTables& tables, const std::byte* HWY_RESTRICT w,                            \
                             const std::uint8_t* HWY_RESTRICT packed, const float* HWY_RESTRICT absmax,               \
                             std::size_t blocks, std::size_t blocksize, FourBitError* HWY_RESTRICT errors,            \
                             TileSums& HWY_RESTRICT sums) {                                                           \
    compare_blocks<Source>(tables, w, packed, absmax, blocks, blocksize, errors, sums);                               \
  }
NIBBLE_COMPARE_BLOCKS_OF(f32, F32)
NIBBLE_COMPARE_BLOCKS_OF(bf16, Bf16)
NIBBLE_COMPARE_BLOCKS_OF(f16, F16)
#undef NIBBLE_COMPARE_BLOCKS_OF

// Of n blocks, a multiple of 16, whose absmax is multiplied by `scale`.
void sum_changes(const FourBitError* HWY_RESTRICT errors, const float* HWY_RESTRICT absmax,
                 const float* HWY_RESTRICT decoded, std::size_t n, float scale, ChangeSums& HWY_RESTRICT sums) {
  const D d;
  const DI di;
  const V factor = hn::Set(d, scale);
  Lanes16 cross, square, test;
  for (std::size_t i = 0; i < n; i += 16)
    for (std::size_t k = 0; k < vector_parts; ++k) {
      const std::size_t at = i + k * vector_lanes;
      const auto pairs = hn::LoadU(di, reinterpret_cast<const std::int32_t*>(errors + at));
      const V x = fp32_of_lower_half(pairs), t = fp32_of_lower_half(hn::ShiftRight<16>(pairs));
      const V a = hn::Mul(hn::LoadU(d, absmax + at), factor);
      const V by = hn::Sub(hn::Mul(hn::LoadU(d, decoded + at), factor), a), by_test = hn::Mul(by, t);
      cross.add_product(k, hn::Mul(by, a), x);
      square.add_product(k, by_test, by);
      test.add_product(k, by_test, a);
    }
  cross.fold(sums.cross);
  square.fold(sums.square);
  test.fold(sums.test);
}

}  // namespace nibble::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace nibble {
namespace {

HWY_EXPORT(encode_and_compare_blocks_f32);
HWY_EXPORT(encode_and_compare_blocks_bf16);
HWY_EXPORT(encode_and_compare_blocks_f16);
HWY_EXPORT(compare_blocks_f32);
HWY_EXPORT(compare_blocks_bf16);
HWY_EXPORT(compare_blocks_f16);
HWY_EXPORT(sum_changes);

auto encode_and_compare_blocks_of(DType source) {
  return loop_of(source, HWY_DYNAMIC_DISPATCH(encode_and_compare_blocks_f32),
                 HWY_DYNAMIC_DISPATCH(encode_and_compare_blocks_bf16),
                 HWY_DYNAMIC_DISPATCH(encode_and_compare_blocks_f16));
}

auto compare_blocks_of(DType source) {
  return loop_of(source, HWY_DYNAMIC_DISPATCH(compare_blocks_f32), HWY_DYNAMIC_DISPATCH(compare_blocks_bf16),
                 HWY_DYNAMIC_DISPATCH(compare_blocks_f16));
}

// In fp64, weight by weight.
FourBitError add_block(const FourBitTables& tables, std::span<const float> weights, const std::uint8_t* packed,
                       float absmax, ErrorSums& sums) {
  double cross = 0, test = 0;  // over absmax and its square
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i])) continue;
    const double w = weights[i];
    const float c = tables.codebook[packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15];
    const double t = c * absmax, error = t - w;
    cross += error * c;
    test += static_cast<double>(c) * c;
    sums.add({1, error * error, w * t, w * w, t * t});
  }
  if (absmax == 0) return {0, 0};
  return {fp16::from_float(static_cast<float>(cross / absmax)), fp16::from_float(static_cast<float>(test))};
}

// Adds to `sums` what the loops computed for the whole blocks of an encoded tile (`tile`), and the rest weight by
// weight: a short last block, or everything if fp32 cannot hold the sums. `errors` may be empty if they are not needed.
void add_tile_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                     std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
                     const TileSums& tile, std::span<FourBitError> errors, ErrorSums& sums) {
  const std::size_t size = traits(source).bits / 8, n = weights.size() / size;
  std::size_t done = n / blocksize;
  const double square = sum_of_lanes(tile.square), cross = sum_of_lanes(tile.cross), test = sum_of_lanes(tile.test);
  if (tile.is_in_range && std::isfinite(square))
    sums.add({done * blocksize, square, test - cross, test - 2 * cross + square, test});
  else
    done = 0;
  for (std::size_t b = done; b < absmax.size(); ++b) {
    const std::size_t first = b * blocksize, count = std::min(blocksize, n - first);
    alignas(64) std::array<float, tile_weights> room;
    const auto block = widen(source, weights.subspan(first * size, count * size), room);
    const FourBitError error = add_block(tables, block, packed.data() + first / 2, absmax[b], sums);
    if (!errors.empty()) errors[b] = error;
  }
}

}  // namespace

std::size_t encode_and_compare_four_bit(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                                        std::size_t blocksize, std::span<std::uint8_t> packed, std::span<float> absmax,
                                        std::span<FourBitError> errors, ErrorSums& sums) {
  const std::size_t n = weights.size() / (traits(source).bits / 8);
  check_four_bit_sizes(n, blocksize, packed.size(), absmax.size());
  TileSums tile;
  encode_and_compare_blocks_of(source)(tables, weights.data(), n / blocksize, blocksize, packed.data(), absmax.data(),
                                       errors.empty() ? nullptr : errors.data(), tile);
  const std::size_t nonfinite = repair_blocks(tables, source, weights, blocksize, packed, absmax);
  add_tile_errors(tables, source, weights, packed, absmax, blocksize, tile, errors, sums);
  return nonfinite;
}

void sum_four_bit_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                         std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
                         std::span<FourBitError> errors, ErrorSums& sums) {
  if (source == DType::f64) {
    alignas(64) std::array<float, tile_weights> room;
    const auto wide = std::as_bytes(widen(source, weights, room));
    return sum_four_bit_errors(tables, DType::f32, wide, packed, absmax, blocksize, errors, sums);
  }
  TileSums tile;
  compare_blocks_of(source)(tables, weights.data(), packed.data(), absmax.data(),
                            weights.size() / (traits(source).bits / 8) / blocksize, blocksize,
                            errors.empty() ? nullptr : errors.data(), tile);
  add_tile_errors(tables, source, weights, packed, absmax, blocksize, tile, errors, sums);
}

void add_four_bit_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                         std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
                         std::vector<ErrorSums>& errors) {
  const std::size_t size = traits(source).bits / 8, n = weights.size() / size;
  for (std::size_t i = 0; i < n; i += tile_weights) {
    const std::size_t count = std::min(tile_weights, n - i);
    sum_four_bit_errors(
        tables, source, weights.subspan(i * size, count * size), packed.subspan(i / 2, ceil_div(count, 2)),
        absmax.subspan(i / blocksize, ceil_div(count, blocksize)), blocksize, {}, errors.emplace_back());
  }
}

ErrorSums change_of_errors(std::span<const FourBitError> errors, std::span<const float> absmax,
                           std::span<const std::uint8_t> codes, std::span<const float> nested_absmax, float offset) {
  constexpr std::size_t size = nested::blocksize;
  ErrorSums change;
  for (std::size_t first = 0; first < errors.size(); first += size) {
    const std::size_t n = std::min(errors.size() - first, size);
    const float largest = nested_absmax[first / size];
    alignas(64) std::array<float, size> decoded;
    nested::decode(codes.subspan(first, n), std::span(&largest, 1), nested::codebook, offset,
                   std::span(decoded).first(n));
    // Missing values add 0.
    const FourBitError* of_block = errors.data() + first;
    const float* values = absmax.data() + first;
    std::array<FourBitError, size> last_errors;
    alignas(64) std::array<float, size> last_values;
    if (n < size) {
      last_errors = {};
      last_values = {};
      std::copy_n(of_block, n, last_errors.begin());
      std::copy_n(values, n, last_values.begin());
      std::fill(decoded.begin() + static_cast<std::ptrdiff_t>(n), decoded.end(), 0.0f);
      of_block = last_errors.data();
      values = last_values.data();
    }
    // Absmax values are about offset + largest; squares have to stay within fp32.
    const int exponent = std::clamp(std::ilogb(std::abs(offset) + largest), -126, 126);
    ChangeSums sums;
    HWY_DYNAMIC_DISPATCH(sum_changes)(of_block, values, decoded.data(), size, std::ldexp(1.0f, -exponent), sums);
    const double unit = std::ldexp(1.0, 2 * exponent);
    const double cross = sum_of_lanes(sums.cross) * unit, square = sum_of_lanes(sums.square) * unit,
                 test = sum_of_lanes(sums.test) * unit;
    change.add({0, 2 * cross + square, test - cross, 0, 2 * test + square});
  }
  return change;
}

}  // namespace nibble
#endif
