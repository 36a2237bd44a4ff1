#include "quant/quantizers/compensation/input_factor.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "nibble/error.hpp"
#include "quant/quantizers/compensation/cholesky.hpp"

namespace nibble {
namespace {

// The matrix and the order of its columns. Cholesky's L comes from the first column on, U from the last, so the matrix
// is factored with its columns in reverse: U[i, j] = L[k - 1 - i, k - 1 - j].
class SecondMoment {
 public:
  SecondMoment(std::span<double> matrix, std::size_t k) : matrix_(matrix), k_(k) { check(); }

  [[nodiscard]] double diagonal(std::size_t i) const { return at(i, i); }

  [[nodiscard]] double mean_diagonal() const {
    double sum = 0;
    for (std::size_t i = 0; i < k_; ++i) sum += diagonal(i);
    return sum / static_cast<double>(k_);
  }

  // Rows and columns in this order.
  void permute(std::span<const std::uint32_t> order) {
    constexpr std::size_t tile = 32;
    for (std::size_t row = 0; row < k_; row += tile)
      for (std::size_t column = 0; column <= row; column += tile)
        for (std::size_t r = row; r < std::min(row + tile, k_); ++r)
          for (std::size_t c = column; c < std::min(column + tile, r); ++c) at(r, c) = at(c, r);
    std::vector<double> room(k_);
    for (std::size_t r = 0; r < k_; ++r) {
      const auto row = matrix_.subspan(r * k_, k_);
      for (std::size_t c = 0; c < k_; ++c) room[c] = row[order[c]];
      std::ranges::copy(room, row.begin());
    }
    // Along each cycle of the permutation, with the first row of it put aside.
    std::vector<bool> is_done(k_);
    for (std::size_t first = 0; first < k_; ++first) {
      if (is_done[first]) continue;
      std::ranges::copy(matrix_.subspan(first * k_, k_), room.begin());
      std::size_t to = first;
      for (; order[to] != first; to = order[to]) {
        std::ranges::copy(matrix_.subspan(order[to] * k_, k_), matrix_.begin() + static_cast<std::ptrdiff_t>(to * k_));
        is_done[to] = true;
      }
      std::ranges::copy(room, matrix_.begin() + static_cast<std::ptrdiff_t>(to * k_));
      is_done[to] = true;
    }
  }

  // Factors the matrix with `added` on its diagonal, which is given. The upper triangle stays for the next attempt.
  [[nodiscard]] bool factor(std::span<const double> diagonal, double added,
                            const std::function<void(double)>& progress) {
    for (std::size_t r = 0; r < k_; ++r) {
      at(r, r) = diagonal[r] + added;
      for (std::size_t c = 0; c < r; ++c) at(r, c) = at(c, r);
    }
    return !factor_cholesky(matrix_, k_, progress);
  }

  [[nodiscard]] double& at(std::size_t row, std::size_t column) const { return matrix_[row * k_ + column]; }

 private:
  void check() const {
    for (std::size_t r = 0; r < k_; ++r)
      for (std::size_t c = r; c < k_; ++c)
        if (!std::isfinite(at(r, c)))
          throw Error(Errc::bad_input, "the second moment of the inputs is not finite at [" + std::to_string(r) + ", " +
                                           std::to_string(c) + "]");
    for (std::size_t i = 0; i < k_; ++i)
      if (diagonal(i) < 0)
        throw Error(Errc::bad_input, "the second moment of the inputs is negative at [" + std::to_string(i) + ", " +
                                         std::to_string(i) + "], where it is a sum of squares");
  }

  std::span<double> matrix_;
  std::size_t k_;
};

// Blocks with equal means, and columns with equal squares, stay in the order in which they are stored.
std::vector<std::uint32_t> order_of(const SecondMoment& moment, std::size_t k, const InputFactor::Options& options) {
  std::vector<std::uint32_t> order(k);
  std::iota(order.begin(), order.end(), 0U);
  if (options.order == ColumnOrder::stored) return order;
  const std::size_t blocksize = options.blocksize;
  std::vector<double> of_block(k / blocksize);
  for (std::size_t i = 0; i < k; ++i) of_block[i / blocksize] += moment.diagonal(i);
  std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) {
    const std::size_t block_a = a / blocksize, block_b = b / blocksize;
    if (block_a == block_b) return moment.diagonal(a) > moment.diagonal(b);
    return of_block[block_a] != of_block[block_b] ? of_block[block_a] > of_block[block_b] : block_a < block_b;
  });
  return order;
}

constexpr double max_damping = 1;

}  // namespace

InputFactor::InputFactor(std::span<double> second_moment, std::size_t k, const Options& options)
    : blocksize_(options.blocksize), tiles_(0) {
  if (second_moment.size() != k * k || k == 0)
    throw Error(Errc::usage, "a second moment of " + std::to_string(second_moment.size()) + " numbers is not that of " +
                                 std::to_string(k) + " inputs");
  if (k % blocksize_ != 0)
    throw Error(Errc::usage, "compensation needs rows of whole blocks, but " + std::to_string(k) +
                                 " columns are not a multiple of the block size " + std::to_string(blocksize_));
  if (!(options.damping > 0) || !std::isfinite(options.damping))
    throw Error(Errc::usage, "the damping of a second moment has to be a finite number above 0");
  SecondMoment moment(second_moment, k);
  order_ = order_of(moment, k, options);
  std::vector<std::uint32_t> reverse(order_.rbegin(), order_.rend());
  moment.permute(reverse);

  const double mean = moment.mean_diagonal();
  std::vector<double> diagonal(k);
  for (std::size_t i = 0; i < k; ++i) diagonal[i] = moment.diagonal(i);
  damping_ = options.damping;
  while (!moment.factor(diagonal, mean == 0 ? 1 : damping_ * mean, options.progress)) {
    if (damping_ >= max_damping)
      throw Error(
          Errc::bad_input,
          "the second moment of the inputs is not positive definite, even with the mean of its diagonal added to "
          "the diagonal");
    damping_ = std::min(10 * damping_, max_damping);
  }

  importance_.resize(k);
  double largest = 0;
  for (std::size_t i = 0; i < k; ++i) largest = std::max(largest, moment.at(i, i) * moment.at(i, i));
  for (std::size_t j = 0; j < k; ++j) {
    const double pivot = moment.at(k - 1 - j, k - 1 - j);
    importance_[j] = static_cast<float>(pivot * pivot / largest);
  }
  const std::size_t count = (k + tile_columns - 1) / tile_columns;
  tiles_ = matmul::Lines<float>(tile_at(count));
  for (std::size_t t = 0; t < count; ++t) {
    float* const to = tiles_.data() + tile_at(t);
    const std::size_t first = t * tile_columns;
    std::fill_n(to, (first + tile_columns) * tile_columns, 0.0f);
    const std::size_t end = std::min(k, first + tile_columns);
    for (std::size_t i = 0; i < end; ++i)
      for (std::size_t j = std::max(i + 1, first); j < end; ++j)
        to[i * tile_columns + j - first] =
            static_cast<float>(moment.at(k - 1 - i, k - 1 - j) / moment.at(k - 1 - j, k - 1 - j));
  }
}

std::uint64_t InputFactor::memory_bytes(std::uint64_t k) {
  return tile_at((k + tile_columns - 1) / tile_columns) * sizeof(float) + k * (sizeof(float) + sizeof(std::uint32_t));
}

// Beside the matrix: a block of its columns for Cholesky's products, and a few numbers for each column.
std::uint64_t InputFactor::making_bytes(std::uint64_t k) {
  return memory_bytes(k) + (k * k + 64 * k + 4 * k) * sizeof(double);
}

}  // namespace nibble
