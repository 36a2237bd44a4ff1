#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "nibble/tensor.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/quantizers/column_weights.hpp"
#include "quant/quantizers/search/search_ratios.hpp"
#include "quant/quantizers/search/search_values.hpp"

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
/// and the A / B of the better of the two is the result. In these sums, weights are rounded to multiples of 1/4095 of
/// the largest magnitude, values of the codebook to multiples of 1/4095, and w / s to a position on
/// FourBitTables::grid: all CPU targets find the same numbers. Last, A / B is computed once more for the codes of that
/// result, without this rounding.
///
/// If columns count differently (column_weights.hpp), the error is sum (r w - s r c)^2, and so in A and B r w and r c
/// are in place of w and c. In these sums, r is rounded to multiples of 1/32767 of the largest one in the block, and
/// the products with it to multiples of 1/4095, as w and c are; the scales to try are WeightedSearchRatios.
///
/// Thread-safe. The tables have to outlive it.
class ScaleSearch {
 public:
  ScaleSearch(const FourBitTables& tables, std::size_t blocksize, AbsmaxChoice choice);

 private:
  friend class SearchedBlocks;

  const FourBitTables& tables_;
  SearchValues values_;
  std::size_t blocksize_;
  std::span<const float> ratios_;
  WeightedSearchRatios weighted_ratios_;
};

/// Blocks that follow each other in `weights`; the last may be short. If `keeps`, take_better() uses again what find()
/// has read of blocks of up to 128 weights; this takes two bytes for a weight, six if columns count differently. The
/// search, the weights, and the columns have to outlive it.
class SearchedBlocks {
 public:
  SearchedBlocks(const ScaleSearch& search, DType source, std::span<const std::byte> weights,
                 const ColumnsFrom& columns = {}, bool keeps = false);
  ~SearchedBlocks();
  SearchedBlocks(const SearchedBlocks&) = delete;
  SearchedBlocks& operator=(const SearchedBlocks&) = delete;

  /// Writes the absmax of every block: NaN if one of its weights is not finite. Blocks of zeros, and those whose
  /// largest magnitude is outside [1e-30, 1e30], get that magnitude: multiples of it, or one over it, could leave the
  /// normal numbers of fp32.
  void find(std::span<float> absmax);

  /// Replaces the absmax of every block by `other` where that one's nearest codes leave less squared error: where
  /// s (2 A - s B) is greater. Blocks that find() does not search keep theirs.
  void take_better(std::span<float> absmax, std::span<const float> other);

 private:
  class Groups;

  /// Replaces each absmax by the A / B of its codes, if it is not 0.
  void refit(std::span<float> absmax) const;

  const ScaleSearch& search_;
  DType source_;
  std::span<const std::byte> weights_;
  ColumnsFrom columns_;
  std::unique_ptr<Groups> groups_;
};

}  // namespace nibble
