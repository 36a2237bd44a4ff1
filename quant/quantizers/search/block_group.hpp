#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/quantizers/search/search_values.hpp"

/// What ScaleSearch does with a group of blocks: a lane of a vector belongs to each block. Weights are 16-bit integers,
/// multiples of 1/4095 of their block's largest magnitude, and so are the values of the codebook. Sums of 64 products
/// are exact, and are added in the order of the weights: every CPU target finds the same numbers.
namespace nibble::block_group {

inline constexpr std::size_t max_lanes = 16;
inline constexpr std::size_t exact = 64;  ///< weights whose sums fit 32 bits: products are below 2^24

/// How many blocks a group has on the CPU target.
[[nodiscard]] std::size_t lanes();

/// A number of each block.
struct alignas(64) OfLanes : std::array<float, max_lanes> {};

/// A and B of each block for one scale, times 4095^2.
struct Sums {
  OfLanes product{}, square{};
};

/// One over a scale that is relative to the largest magnitude, for two weights: 8 w * inverse / 2^15 is the position of
/// w / scale on FourBitTables::grid, over 8.
using Inverse = std::array<std::int16_t, 2>;
struct alignas(64) Inverses : std::array<Inverse, max_lanes> {};
[[nodiscard]] Inverses inverse_of(const OfLanes& scales);
[[nodiscard]] Inverses inverse_of(float scale);  ///< the same for every block

/// Weights of a group, as interleave() lays them out. If columns count differently, their roots and the products of the
/// two, in units of 1/32767 and 1/4095; otherwise null.
struct LaidOut {
  std::int16_t *weights, *roots, *weighted;
};

/// Writes factor[lane] * rows[lane][i], rounded, of n weights of each block; n is a multiple of 8. Of every eight
/// weights, the pairs (0, 4) of all blocks come first, then the pairs (1, 5), (2, 6) and (3, 7). `to` is aligned.
void interleave(const float* const* rows, std::size_t n, const float* factor, std::int16_t* to);

/// Computes the products of weights and roots.
void weigh(const LaidOut& group, std::size_t n);

/// Adds n weights of each block to the sums of each scale, one over which is given.
void add_sums(const FourBitTables& tables, const SearchValues& values, const LaidOut& group, std::size_t n,
              std::span<const Inverses> inverse, std::span<Sums> sums);

/// The function that add_sums() calls on a CPU target, and on processors with AVX512_VNNI in its place; null on others.
using AddSums = void (*)(const FourBitTables&, const SearchValues&, const LaidOut&, std::size_t, const Inverses*, Sums*,
                         std::size_t count);
[[nodiscard]] AddSums add_sums_of_target();
[[nodiscard]] AddSums add_sums_vnni();

/// For each block, if the A^2 / B of one of the sums is above `best`: raises it, and writes that A / B to `scale`.
void choose(std::span<const Sums> sums, OfLanes& best, OfLanes& scale);

}  // namespace nibble::block_group
