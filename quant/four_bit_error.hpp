#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/error_sums.hpp"
#include "nibble/tensor.hpp"

/// What 4-bit codes cost, block by block.
///
/// With t = a c for absmax a and codebook value c, as it is decoded, and e = t - w, a block is summed up as
///
///   E = sum e^2,  X = sum e t,  T = sum t^2
///
/// and that is enough for everything later: w = t - e gives sum w t = T - X and sum w^2 = T - 2 X + E. If double
/// quantization adds d to a, E becomes E + 2 d X / a + d^2 T / a^2. So E is added up over a tile of up to 4096 weights,
/// and X and T over a block.
namespace nibble {

struct FourBitTables;  // quant/four_bit.hpp

/// X / a^2 and T / a^2 of a block as fp16: what has to be known until double quantization is done. Both are at most
/// 4096 and off by one part in 2^11, so what double quantization adds to E is right to that.
struct FourBitError {
  std::uint16_t cross, test;
};

/// What the loops hand over of the whole blocks of a tile: sums in four lanes, which is where fp32 ends.
struct TileSums {
  // Squares of smaller or larger weights are not for fp32.
  static constexpr float smallest_absmax = 1e-12f;
  static constexpr float largest_absmax = 1e12f;

  alignas(16) float square[4], cross[4], test[4];
  bool is_in_range;  ///< every absmax but 0 is between those
};

/// Adds what the loops found of an encoded tile's `blocks` whole blocks to `sums`, and the rest weight by weight: a
/// last block that is short, and everything where fp32 cannot hold the sums. `errors` may be empty if nobody asks.
void add_tile_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                     std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
                     const TileSums& tile, std::span<FourBitError> errors, ErrorSums& sums);

/// The same of a tile that was encoded elsewhere.
void sum_four_bit_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                         std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
                         std::span<FourBitError> errors, ErrorSums& sums);

/// By how much the sums change, all but `count` and `reference`, when absmax becomes what double quantization makes of
/// it: codes, nested_absmax and offset as for nested::decode().
[[nodiscard]] ErrorSums change_of_errors(std::span<const FourBitError> errors, std::span<const float> absmax,
                                         std::span<const std::uint8_t> codes, std::span<const float> nested_absmax,
                                         float offset);

}  // namespace nibble
