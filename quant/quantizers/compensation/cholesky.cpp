// Column by column of 64 x 64 blocks: the products of all columns before are subtracted, which is nearly all of the
// work; then the block on the diagonal is factored and the rows below are solved for. torch's factorization takes about
// 0.8 times as long (docs/compensation.md), but the order of a library's sums depends on the processor, its caches and
// the number of threads.
#include "quant/quantizers/compensation/cholesky.hpp"

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "quant/matmul/lines.hpp"
#include "quant/quantizers/compensation/products.hpp"

namespace nibble {
namespace {

class Factorization {
 public:
  Factorization(std::span<double> matrix, std::size_t k) : matrix_(matrix.data()), k_(k), panels_(k * width) {}

  std::optional<std::size_t> run(const std::function<void(double)>& progress) {
    for (first_ = 0; first_ < k_; first_ += width) {
      columns_ = std::min(width, k_ - first_);
      pack();
      Tile diagonal{};
      load(first_, columns_, diagonal);
      if (const auto failed = factor(diagonal)) return first_ + *failed;
      store(first_, columns_, diagonal);
      solve_below(diagonal);
      // k - x rows with x products each, for every column x: 3 x^2 - 2 x^3 of all
      const double columns = static_cast<double>(first_ + columns_) / static_cast<double>(k_);
      if (progress) progress(columns * columns * (3 - 2 * columns));
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t width = 64;        // of a block
  static constexpr std::size_t tile_rows = 48;    // of a task; whole groups of those that stay in registers
  static constexpr std::size_t depth_step = 256;  // 16 KiB of a panel, and 128 KiB of all panels, stay in L1 and L2
  static constexpr std::size_t lanes = panel_width<double>;
  using Tile = std::array<std::array<double, width>, width>;

  // The rows of L that meet the columns of the block, transposed: what all rows are multiplied with.
  void pack() {
    for (std::size_t c = 0; c < width; ++c) {
      double* const to = panels_.data() + c / lanes * lanes * k_ + c % lanes;
      for (std::size_t p = 0; p < first_; ++p) to[p * lanes] = c < columns_ ? matrix_[(first_ + c) * k_ + p] : 0.0;
    }
  }

  // Rows of the block's columns, less the products of the columns before.
  void load(std::size_t row, std::size_t rows, Tile& tile) const {
    for (std::size_t r = 0; r < rows; ++r) std::copy_n(matrix_ + (row + r) * k_ + first_, columns_, tile[r].begin());
    for (std::size_t p = 0; p < first_; p += depth_step)
      for (std::size_t c = 0; c < columns_; c += lanes)
        subtract_products({matrix_ + row * k_ + p, k_, 1}, rows, std::min(depth_step, first_ - p),
                          panels_.data() + c * k_ + p * lanes, tile[0].data() + c, width);
  }

  void store(std::size_t row, std::size_t rows, const Tile& tile) {
    for (std::size_t r = 0; r < rows; ++r)
      std::copy_n(tile[r].begin(), std::min(columns_, row + r + 1 - first_), matrix_ + (row + r) * k_ + first_);
  }

  std::optional<std::size_t> factor(Tile& a) const {
    for (std::size_t c = 0; c < columns_; ++c) {
      if (!(a[c][c] > 0) || !std::isfinite(a[c][c])) return c;
      a[c][c] = std::sqrt(a[c][c]);
      for (std::size_t r = c + 1; r < columns_; ++r) {
        a[r][c] /= a[c][c];
        for (std::size_t q = c + 1; q <= r; ++q) a[r][q] -= a[r][c] * a[q][c];
      }
    }
    return std::nullopt;
  }

  void solve_below(const Tile& diagonal) {
    Tile transposed{};
    for (std::size_t r = 0; r < columns_; ++r)
      for (std::size_t c = 0; c <= r; ++c) transposed[c][r] = diagonal[r][c];
    const std::size_t begin = first_ + columns_, tasks = (k_ - begin + tile_rows - 1) / tile_rows;
    const auto solve = [&](std::size_t task) {
      const std::size_t row = begin + task * tile_rows, rows = std::min(tile_rows, k_ - row);
      Tile tile{};
      load(row, rows, tile);
      for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = 0; c < columns_; ++c) {
          const double x = tile[r][c] /= transposed[c][c];
          for (std::size_t q = c + 1; q < width; ++q) tile[r][q] -= x * transposed[c][q];
        }
      store(row, rows, tile);
    };
    // Isolated: a waiting thread must not start another tensor meanwhile.
    tbb::this_task_arena::isolate([&] { tbb::parallel_for(std::size_t{0}, tasks, solve); });
  }

  double* matrix_;
  std::size_t k_;
  matmul::Lines<double> panels_;  // [width / lanes, k, lanes]
  std::size_t first_ = 0, columns_ = 0;
};

}  // namespace

std::optional<std::size_t> factor_cholesky(std::span<double> matrix, std::size_t k,
                                           const std::function<void(double)>& progress) {
  return Factorization(matrix, k).run(progress);
}

}  // namespace nibble
