#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nibble/error_sums.hpp"
#include "nibble/tensor.hpp"

/// The error of 4-bit codes, block by block.
///
/// With t = a c for absmax a and codebook value c, as it is decoded, and e = t - w, a block is summed up as
///
///   E = sum e^2,  X = sum e t,  T = sum t^2
///
/// and that is enough for everything later: w = t - e gives sum w t = T - X and sum w^2 = T - 2 X + E. If double
/// quantization adds d to a, E becomes E + 2 d X / a + d^2 T / a^2. So E is added up over a tile of up to 4096 weights,
/// and X and T over a block.
namespace nibble {

struct FourBitTables;  // quant/codecs/four_bit/four_bit.hpp

/// X / a^2 and T / a^2 of a block as fp16, which are kept until double quantization is done. Both are at most 4096.
/// Each is within 2^-11 of its value (relative), or within 2^-25 (absolute) where it is below 6e-5.
struct FourBitError {
  std::uint16_t cross, test;
};

/// What the loops return for the whole blocks of a tile: four fp32 partial sums, which are added up in fp64.
struct TileSums {
  // Squares of smaller or larger weights would underflow or overflow in fp32.
  static constexpr float min_absmax = 1e-12f;
  static constexpr float max_absmax = 1e12f;

  alignas(16) float square[4], cross[4], test[4];
  bool is_in_range;  ///< the magnitude of every absmax but 0 is between those
};

/// encode_four_bit() for a tile of at most 4096 weights that begins with a block. Adds its error to `sums`. Puts into
/// `errors`, which may be empty, what is needed of each block if its absmax changes afterwards.
std::size_t encode_and_compare_four_bit(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                                        std::size_t blocksize, std::span<std::uint8_t> packed, std::span<float> absmax,
                                        std::span<FourBitError> errors, ErrorSums& sums);

/// The error of a tile that was encoded elsewhere. F64 weights count as the fp32 numbers that they are rounded to.
void sum_four_bit_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                         std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
                         std::span<FourBitError> errors, ErrorSums& sums);

/// The errors of weights of any number that begin with a block and were encoded elsewhere: appends the sums of each
/// tile of 4096 weights.
void add_four_bit_errors(const FourBitTables& tables, DType source, std::span<const std::byte> weights,
                         std::span<const std::uint8_t> packed, std::span<const float> absmax, std::size_t blocksize,
                         std::vector<ErrorSums>& errors);

/// By how much the sums (except `count` and `reference`) change when double quantization replaces absmax: codes,
/// nested_absmax and offset as for nested::decode().
[[nodiscard]] ErrorSums change_of_errors(std::span<const FourBitError> errors, std::span<const float> absmax,
                                         std::span<const std::uint8_t> codes, std::span<const float> nested_absmax,
                                         float offset);

}  // namespace nibble
