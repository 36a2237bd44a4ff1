#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/tensor.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/quantizers/search/search_ratios.hpp"

namespace nibble {

/// The absmax of 4-bit blocks that leaves the least squared error, in place of the largest magnitude. It may be
/// negative, because decoding multiplies: the codebook of NF4 is lopsided, so it fits a block or its mirror image
/// better.
///
/// For given codes with values c, the error sum (w - s c)^2 is least at s = A / B, where it is sum w^2 - A^2 / B:
///
///   A = sum w c,  B = sum c^2
///
/// So A^2 / B is computed for the nearest codes of some s, which are the largest magnitude times each of
/// search_ratios(), and the largest wins. Then A^2 / B is computed for the nearest codes of the winner's A / B, too,
/// and the A / B of the better of the two is the result. Sums run over a block in the order of its weights, in fp32, so
/// all CPU targets find the same numbers.
///
/// Thread-safe. Blocks follow each other in `weights`; the last may be short. The tables have to outlive it.
class ScaleSearch {
 public:
  ScaleSearch(const FourBitTables& tables, std::size_t blocksize, AbsmaxChoice choice);

  /// Writes the absmax of every block: NaN if one of its weights is not finite. Blocks of zeros, and those whose
  /// largest magnitude is outside [1e-30, 1e30], get that magnitude: multiples of it, or one over it, could leave the
  /// normal numbers of fp32.
  void find(DType source, std::span<const std::byte> weights, std::span<float> absmax) const;

  /// By how much the nearest codes leave less squared error than zeros would, over absmax^2: 2 A / absmax - B. 0 where
  /// absmax is 0.
  void gains(DType source, std::span<const std::byte> weights, std::span<const float> absmax,
             std::span<float> gains) const;

  /// The codes whose values are nearest to w / absmax: the number of midpoints below w * (1 / absmax), in fp32, with
  /// 1e-38 in place of a smaller |absmax|; the code of 0 where absmax is 0. Two codes to a byte, the first in the upper
  /// half.
  void encode(DType source, std::span<const std::byte> weights, std::span<const float> absmax,
              std::span<std::uint8_t> packed) const;

  // What the loops need of a codebook. [-1, 1] is cut into 32 buckets, each with at most one midpoint; a codebook that
  // has two in one throws std::logic_error.
  struct Nearest {
    explicit Nearest(const FourBitTables& tables);

    alignas(64) std::array<float, 16> value{};  ///< ascending; of two codes with the same value, one
    std::size_t values = 0;
    alignas(64) std::array<float, 32> midpoint{}, below{}, above{};  ///< by bucket: the midpoint and its neighbours
  };

 private:
  const FourBitTables& tables_;
  std::size_t blocksize_;
  Nearest nearest_;
  std::array<float, max_search_ratios> inverse_{};  // one over each ratio
  std::size_t ratios_;
};

}  // namespace nibble
