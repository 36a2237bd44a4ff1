#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/error_sums.hpp"
#include "nibble/tensor.hpp"

/// What 4-bit codes cost, tile by tile: a tile has up to 4096 weights.
///
/// With t = a c for absmax a and codebook value c, as it is decoded, and e = t - w, a tile is summed up as
///
///   E = sum e^2,  X = sum e t,  T = sum t^2
///
/// and since w = t - e, sum w t = T - X and sum w^2 = T - 2 X + E.
///
/// Double quantization adds d to the absmax a of a block, and with that d t / a to its errors: the block's E becomes
/// E + 2 d X / a + d^2 T / a^2. That is estimated, because sums of every block would cost a third more time: the blocks
/// of a tile are taken to share its X and T in proportion to a^2, as if each had the same sum of c^2. Then E of the
/// tile grows by
///
///   (2 X sum d a + T sum d^2) / sum a^2
///
/// of which nothing is estimated where a tile is one block. tests/quant/four_bit_error_test.cpp says how far that is
/// from the truth.
namespace nibble {

struct FourBitTables;  // quant/four_bit.hpp

/// What the loops hand over of the whole blocks of a tile: four fp32 partial sums; they are added up in fp64.
struct TileSums {
  // Squares of smaller or larger weights would underflow or overflow in fp32.
  static constexpr float min_absmax = 1e-12f;
  static constexpr float max_absmax = 1e12f;

  alignas(16) float square[4], cross[4], test[4];
  bool is_in_range;  ///< every absmax but 0 is between those
};

/// The sums of a tile whose whole blocks the loops have summed up. The rest is added weight by weight: a last block
/// that is short, and everything where fp32 cannot hold the sums.
[[nodiscard]] ErrorSums tile_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                                    std::span<const std::uint8_t> packed, std::span<const float> absmax,
                                    std::size_t blocksize, const TileSums& tile);

/// The same of a tile that was encoded elsewhere.
[[nodiscard]] ErrorSums tile_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                                    std::span<const std::uint8_t> packed, std::span<const float> absmax,
                                    std::size_t blocksize);

/// X and T of a tile: what has to be known until double quantization is done.
struct TileCross {
  double cross, test;
};

/// By how much the sums of tiles change, all but `count` and `reference`, when absmax becomes what double quantization
/// makes of it: codes, nested_absmax and offset as for nested::decode(). Every tile but the last has `blocks_per_tile`
/// absmax values, a power of two up to 128.
[[nodiscard]] ErrorSums change_of_errors(std::span<const TileCross> tiles, std::size_t blocks_per_tile,
                                         std::span<const float> absmax, std::span<const std::uint8_t> codes,
                                         std::span<const float> nested_absmax, float offset);

}  // namespace nibble
