#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quant/matmul/lines.hpp"

namespace nibble {

/// In which order columns are quantized. Those of a block follow each other in any case, because its scale is chosen
/// when its first column is reached.
enum class ColumnOrder : std::uint8_t {
  stored,   ///< as they are stored
  largest,  ///< blocks by the mean square of their inputs, and the columns of a block by that of theirs, largest first
};

/// How the rounding errors of some columns of a weight are made up for by the columns that are quantized after them.
///
/// The error of a layer's output is sum over the tokens |(w - q) x|^2 = (w - q) H transposed(w - q) for each row w and
/// its codes' values q, with the second moment H = transposed(X) X of the inputs. With H = U transposed(U), U upper
/// triangular, that is |(w - q) U|^2, whose term j has no column after j. It is least when q[j] is the nearest value to
///
///   w[j] + sum over i < j of (w[i] - q[i]) * U[i, j] / U[j, j]
///
/// which is what GPTQ (Frantar et al., 2023) computes by the inverse: transposed(inverse(U)) is the Cholesky factor of
/// inverse(H). No inverse is needed here.
///
/// H is damped first: `damping` times the mean of its diagonal is added to the diagonal, and ten times as much as
/// before for as long as H is not positive definite, up to the mean itself. A column whose input was always 0 gets no
/// correction and passes none on. If all inputs were 0, nothing is corrected.
///
/// U is computed in fp64 with sums in a fixed order: its bits do not depend on the CPU target or on threads.
class InputFactor {
 public:
  struct Options {
    std::size_t blocksize = 64;  ///< columns that share a scale
    ColumnOrder order = ColumnOrder::stored;
    double damping = 0.01;
    /// Is called as by factor_cholesky(), from 0 on for each damping that is tried.
    std::function<void(double)> progress{};
  };

  /// `second_moment` [k, k] is overwritten; its lower triangle is not read. Runs on the caller's oneTBB arena. Throws
  /// Error(bad_input) if a number is not finite or the matrix is not positive definite however damped, Error(usage) if
  /// k is not a multiple of the blocksize or the damping is not a finite number above 0.
  InputFactor(std::span<double> second_moment, std::size_t k, const Options& options);

  /// Bytes that it keeps, and those that it has while it is made, second_moment included.
  [[nodiscard]] static std::uint64_t memory_bytes(std::uint64_t k);
  [[nodiscard]] static std::uint64_t making_bytes(std::uint64_t k);

  [[nodiscard]] std::size_t columns() const noexcept { return order_.size(); }
  [[nodiscard]] std::size_t blocksize() const noexcept { return blocksize_; }
  /// The damping that was enough.
  [[nodiscard]] double damping() const noexcept { return damping_; }
  /// The columns as they are quantized.
  [[nodiscard]] std::span<const std::uint32_t> order() const noexcept { return order_; }
  /// U[j, j]^2 = 1 / diagonal(inverse(U))[j]^2 in this order, over the largest of them: what a squared error of column
  /// j adds to that of the output, given that the columns after it make up for what they can.
  [[nodiscard]] std::span<const float> importance() const noexcept { return importance_; }

  /// U[i, j] / U[j, j] for j = 64 tile + c, with i and j counted in this order: element i * 64 + c. Rows i >= j are 0;
  /// there are 64 (tile + 1) rows.
  [[nodiscard]] const float* tile(std::size_t tile) const noexcept { return tiles_.data() + tile_at(tile); }
  static constexpr std::size_t tile_columns = 64;

 private:
  [[nodiscard]] static constexpr std::uint64_t tile_at(std::uint64_t tile) {
    return tile * (tile + 1) / 2 * tile_columns * tile_columns;
  }

  std::size_t blocksize_;
  double damping_ = 0;
  std::vector<std::uint32_t> order_;
  std::vector<float> importance_;
  matmul::Lines<float> tiles_;
};

}  // namespace nibble
