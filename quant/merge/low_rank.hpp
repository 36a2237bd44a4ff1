#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

/// Products of two factors, for each of several experts:
///
///   P[e, i, j] = sum over k of L[e, i, k] * R[e, k, j]
///
/// Each element is summed up in fp32 in the order of k, every step rounded once (fma), so its bits do not depend on the
/// CPU target, nor on the range that is asked for.
class LowRankProduct {
 public:
  LowRankProduct(std::uint64_t experts, std::uint64_t rows, std::uint64_t columns, std::uint64_t rank);

  /// Bytes that it keeps: both factors as fp32, the right one padded to whole tiles.
  [[nodiscard]] static std::uint64_t memory_bytes(std::uint64_t experts, std::uint64_t rows, std::uint64_t columns,
                                                  std::uint64_t rank);

  /// Elements of the factors, which are 0 at first.
  [[nodiscard]] float& left(std::uint64_t expert, std::uint64_t row, std::uint64_t k) {
    return left_[(expert * rows_ + row) * rank_ + k];
  }
  [[nodiscard]] float& right(std::uint64_t expert, std::uint64_t k, std::uint64_t column) {
    return right_[((expert * tiles_ + column / tile_columns) * rank_ + k) * tile_columns + column % tile_columns];
  }

  /// to[i] = from[i] + scale * P[first + i], the product with the scale rounded before the sum; the elements of P are
  /// numbered as in memory. `from` and `to` may be the same. Thread-safe. Takes about 2 * rank operations an element.
  void add(std::uint64_t first, float scale, std::span<const float> from, std::span<float> to) const;

  static constexpr std::uint64_t tile_columns = 64;

 private:
  std::uint64_t rows_, columns_, rank_, tiles_;
  std::vector<float> left_;   // [experts, rows, rank]
  std::vector<float> right_;  // [experts, tiles, rank, tile_columns]: what a tile needs is contiguous
};

}  // namespace nibble
