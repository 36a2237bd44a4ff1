#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "nibble/findings.hpp"
#include "nibble/tensor.hpp"

namespace nibble {

static_assert(std::endian::native == std::endian::little, "weights are little-endian in memory as in files");

/// The most weights that a codec holds as fp32 at a time: 16 KiB, half of a small L1 cache. A multiple of every
/// blocksize.
inline constexpr std::size_t tile_weights = 4096;

/// How an fp64 number becomes fp32. To odd: towards zero, with the last bit set if that was not exact; another
/// rounding to 16 bits then gives what rounding the fp64 number once would.
enum class Rounding : std::uint8_t { nearest, odd };

/// Up to tile_weights weights of type F64, F32, BF16 or F16 as fp32: in `tile`, or where they are if they are fp32.
/// Exact but for F64. The bytes need no alignment.
[[nodiscard]] std::span<const float> widen(DType source, std::span<const std::byte> weights, std::span<float> tile,
                                           Rounding rounding = Rounding::nearest);

/// The loop for F32, BF16 or F16 weights; that of F32 for F64, which is widened before.
template <class Loop> Loop loop_of(DType source, Loop f32, Loop bf16, Loop f16) {
  return source == DType::bf16 ? bf16 : source == DType::f16 ? f16 : f32;
}

/// Counts NaN, infinities, and finite weights whose fp32 magnitude is at least `limit`. It is slow: call it only for
/// weights that are known to have some.
[[nodiscard]] Findings count_nonfinite(DType source, std::span<const std::byte> weights, std::uint64_t first,
                                       float limit = std::numeric_limits<float>::infinity());

/// Calls f(i, weights) for the weights [i, i + weights.size()) as fp32, tile by tile.
template <class F>
void for_each_tile(DType source, std::span<const std::byte> bytes, F&& f, Rounding rounding = Rounding::nearest) {
  alignas(64) std::array<float, tile_weights> tile;
  const std::size_t size = traits(source).bits / 8;
  for (std::size_t i = 0; i < bytes.size() / size; i += tile_weights) {
    const std::size_t n = std::min(tile_weights, bytes.size() / size - i);
    f(i, widen(source, bytes.subspan(i * size, n * size), tile, rounding));
  }
}

}  // namespace nibble
