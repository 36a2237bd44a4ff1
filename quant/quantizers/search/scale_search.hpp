#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "nibble/tensor.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/quantizers/column_weights.hpp"
#include "quant/quantizers/search/search_ratios.hpp"

namespace nibble {

/// The values of a codebook for the sums of ScaleSearch, in units of 1/4095, by the number of midpoints below them.
///
/// On targets that look up 32 words at once (AVX-512), that number is found as FourBitTables::bucket does, but from
/// y = x / 8 of the position x on its grid:
///
///   value[(y + bucket[y >> 8 & 31]) >> 8],  for y in [-4096, 4095]
///
/// A bucket of NF4 or FP4 has at most one midpoint. The sums of a number k are in [512 k, 512 k + 511].
struct SearchValues {
  explicit SearchValues(const FourBitTables& tables);

  static constexpr int end = 4096;                            ///< of the range of y
  alignas(64) std::array<std::int16_t, 32> bucket{};          ///< what a bucket adds to y
  alignas(64) std::array<std::int16_t, 32> value{};           ///< each twice
  alignas(16) std::array<std::uint8_t, 16> lower{}, upper{};  ///< for other targets: the bytes of each value

  [[nodiscard]] int of(std::size_t number) const { return value[2 * number]; }
  /// How many midpoints have a position below 8 y.
  [[nodiscard]] static std::size_t number(const FourBitTables& tables, int y);
};

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
/// and the A / B of the better of the two is the result. In these sums, weights are rounded to multiples of 1/4095 of
/// the largest magnitude, values of the codebook to multiples of 1/4095, and w / s to a position on
/// FourBitTables::grid: all CPU targets find the same numbers. Last, A / B is computed once more for the codes of that
/// result, without this rounding.
///
/// If columns count differently (column_weights.hpp), the error is sum (r w - s r c)^2, and so in A and B r w and r c
/// are in place of w and c. In these sums, r is rounded to multiples of 1/32767 of the largest one in the block, and
/// the products with it to multiples of 1/4095, as w and c are; the scales to try are WeightedSearchRatios.
///
/// Thread-safe. Blocks follow each other in `weights`; the last may be short. The tables have to outlive it.
class ScaleSearch {
 public:
  ScaleSearch(const FourBitTables& tables, std::size_t blocksize, AbsmaxChoice choice);

  /// Writes the absmax of every block: NaN if one of its weights is not finite. Blocks of zeros, and those whose
  /// largest magnitude is outside [1e-30, 1e30], get that magnitude: multiples of it, or one over it, could leave the
  /// normal numbers of fp32.
  void find(DType source, std::span<const std::byte> weights, std::span<float> absmax,
            const ColumnsFrom& columns = {}) const;

  /// Replaces the absmax of every block by `other` where that one's nearest codes leave less squared error: where
  /// s (2 A - s B) is greater. Blocks that find() does not search keep theirs.
  void take_better(DType source, std::span<const std::byte> weights, std::span<float> absmax,
                   std::span<const float> other, const ColumnsFrom& columns = {}) const;

 private:
  /// Replaces each absmax by the A / B of its codes, if it is not 0.
  void refit(DType source, std::span<const std::byte> weights, std::span<float> absmax,
             const ColumnsFrom& columns) const;

  const FourBitTables& tables_;
  SearchValues values_;
  std::size_t blocksize_;
  std::span<const float> ratios_;
  WeightedSearchRatios weighted_ratios_;
};

}  // namespace nibble
