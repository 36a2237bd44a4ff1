#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble {

/// How much the errors of a matrix's columns count. If the outputs of a layer are y = W x, and its inputs are not
/// correlated, the mean square of an output's error is
///
///   sum over j of h_j (w_j - t_j)^2 = sum over j of (r_j w_j - r_j t_j)^2,  r_j = sqrt(h_j)
///
/// where h_j is the mean square of x_j, w_j are the weights of a row, and t_j is what their codes are decoded to.
/// Thread-safe.
class ColumnWeights {
 public:
  /// All columns count alike.
  ColumnWeights() = default;

  /// `mean_square` has h_j for each column, finite and not negative. The roots are relative to the largest, computed in
  /// fp32, and at least 2^-20: columns without any input must not leave a block without an error. They are all 1 if
  /// there is no input at all.
  explicit ColumnWeights(std::vector<float> mean_square);

  /// Whether all columns count alike because nothing is known of them.
  [[nodiscard]] bool empty() const noexcept { return roots_.empty(); }

  /// The r_j of weights [first, first + n) of a row-major matrix: in place, or copied to `room`, which has n values.
  [[nodiscard]] std::span<const float> roots(std::uint64_t first, std::size_t n, std::span<float> room) const;

  /// Multiplies each weight of `weights`, which begin with weight `first` of the matrix, by its r_j.
  void apply(std::uint64_t first, std::span<float> weights) const;

 private:
  std::vector<float> roots_;  // by column
};

/// The columns of weights that begin with weight `first` of the matrix; null: all count alike.
struct ColumnsFrom {
  const ColumnWeights* columns = nullptr;
  std::uint64_t first = 0;

  [[nodiscard]] ColumnsFrom after(std::uint64_t weights) const { return {columns, first + weights}; }
};

}  // namespace nibble
