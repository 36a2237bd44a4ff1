#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "nibble/codec.hpp"

/// What the 4-bit formats share: blocks, packing, and how they lie in a checkpoint. A format adds its FourBitTables.
namespace nibble {

/// How to find the code of v in [-1, 1]. The codes are numbered by the number of midpoints below v, and that number
/// is guessed as
///
///   g = floor(base + v * (slope - bend * |v|))
///
/// which make_tables() proves to be right or one too small. So one lookup and one compare finish it,
/// g + (v > midpoint[g]), where 15 compares take 4 times as long, and roundings in the guess do not matter.
struct FourBitTables {
  alignas(64) std::array<float, 16> midpoint;     ///< ascending, between neighbours of the codebook; rest infinite
  alignas(16) std::array<std::uint8_t, 16> code;  ///< by number
  alignas(64) std::array<float, 16> codebook;     ///< by code
  float base, slope, bend;
  bool splits_zero;  ///< two codes have the value 0, and their midpoint 0 is not in the table: it adds (v > 0)
};

/// Does not compile as a constant if the guess is wrong for any v.
constexpr FourBitTables make_tables(const float (&codebook)[16], const std::array<std::uint8_t, 16>& ascending,
                                    float base, float slope, float bend) {
  FourBitTables tables{{}, ascending, {}, base, slope, bend, false};
  std::size_t midpoints = 0;
  for (std::size_t i = 0; i < 16; ++i) tables.codebook[i] = codebook[i];
  for (std::size_t i = 0; i < 15; ++i) {
    const float midpoint = (codebook[ascending[i]] + codebook[ascending[i + 1]]) / 2;
    if (midpoint == 0)
      tables.splits_zero = true;
    else
      tables.midpoint[midpoints++] = midpoint;
  }
  for (std::size_t i = midpoints; i < 16; ++i) tables.midpoint[i] = std::numeric_limits<float>::infinity();

  // The guess rises with |v| < 1.001, so it is enough to look at the midpoints: at number k it must be in [k, k + 1),
  // and stay in the table at the ends. The margin is far above what rounding can do.
  const auto guess = [&](double v) { return base + v * (slope - bend * (v < 0 ? -v : v)); };
  constexpr double margin = 1e-3, end = 1.001;
  bool right = slope >= 2 * bend && guess(-end) > -1 + margin && guess(end) < 16 - margin &&
               guess(end) < static_cast<double>(midpoints) + 1 - margin;
  for (std::size_t k = 0; k < midpoints; ++k) {
    const double at = guess(tables.midpoint[k]);
    right = right && at > static_cast<double>(k) + margin && at < static_cast<double>(k) + 1 - margin;
  }
  if (!right) throw "the guess misses the code by more than one";
  return tables;
}

/// nf4::encode() and nf4::decode() for any tables.
std::size_t encode_four_bit(const FourBitTables& tables, std::span<const float> weights, std::size_t blocksize,
                            std::span<std::uint8_t> packed, std::span<float> absmax);
void decode_four_bit(const FourBitTables& tables, std::span<const std::uint8_t> packed, std::span<const float> absmax,
                     std::size_t blocksize, std::span<float> weights);

/// A codec that stores 4-bit codes as bitsandbytes does (docs/nf4.md).
std::unique_ptr<const Codec> make_four_bit(std::string_view name, std::string_view summary, const FourBitTables& tables,
                                           const CodecOptions& options);

}  // namespace nibble
