#include "quant/merge/tensor_merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/ranges.hpp"
#include "core/refuse.hpp"
#include "quant/errors/squares.hpp"
#include "quant/merge/adapter_values.hpp"
#include "quant/simd/widen.hpp"

namespace nibble {
namespace {

std::vector<float> adapter_values(const Reader& reader, std::size_t tensor) {
  std::vector<float> values(element_count(reader.tensors().shape(tensor)));
  for_each_value(reader, tensor, 0, values.size(), [&](std::uint64_t i, float value) { values[i] = value; });
  return values;
}

// W as one matrix: that of a kernel is [out, in * height * width], experts are put one below the other.
struct Sides {
  std::uint64_t experts, rows, columns;
};
Sides sides_of(const Adapter& adapter, const TensorUpdate& update, const Shape& shape) {
  const std::uint64_t elements = element_count(shape);
  if (shape.empty() || elements == 0) return {1, 1, elements};
  // The factor of a kernel has as many dimensions as the kernel.
  const bool has_experts =
      update.low_rank && shape.size() == 3 && adapter.weights().tensors().shape(update.low_rank->a).size() == 2;
  if (!has_experts) return {1, shape[0], elements / shape[0]};
  return {shape[0], shape[1], elements / (shape[0] * shape[1])};
}

SquaresOfFinite squares_of(std::span<const float> values) {
  ErrorSums sums;
  for (std::size_t i = 0; i < values.size(); i += tile_weights) {
    const auto tile = values.subspan(i, std::min(tile_weights, values.size() - i));
    sums.add(compare_squares(tile, tile));
  }
  return {sums.reference, sums.count};
}

}  // namespace

TensorMerge::TensorMerge(const Adapter& adapter, const TensorUpdate& update, const Shape& shape,
                         ExpertFactors& expert_factors)
    : adapter_(adapter), update_(update) {
  const Sides sides = sides_of(adapter, update, shape);
  rows_ = sides.experts * sides.rows;
  columns_ = sides.columns;
  if (update.low_rank) {
    product_.emplace(sides.experts, sides.rows, sides.columns, update.low_rank->rank);
    read_factors(expert_factors);
    if (update.low_rank->magnitude) factors_ = adapter_values(adapter.weights(), *update.low_rank->magnitude);
  }
  if (update.bias) bias_ = adapter_values(adapter.weights(), *update.bias);
  if (update.tokens) {
    tokens_ = adapter_values(adapter.weights(), *update.tokens);
    token_of_row_.resize(update.token_rows.size());
    std::iota(token_of_row_.begin(), token_of_row_.end(), 0u);
    std::ranges::sort(token_of_row_, {}, [&](std::uint32_t token) { return update.token_rows[token]; });
  }
}

std::uint64_t TensorMerge::memory_bytes(const Adapter& adapter, const TensorUpdate& update, const Shape& shape) {
  const Sides sides = sides_of(adapter, update, shape);
  std::uint64_t bytes = 0;
  const auto add = [&](std::optional<std::size_t> tensor) {
    if (tensor) bytes += element_count(adapter.weights().tensors().shape(*tensor)) * sizeof(float);
  };
  if (update.low_rank) {
    bytes += LowRankProduct::memory_bytes(sides.experts, sides.rows, sides.columns, update.low_rank->rank);
    add(update.low_rank->magnitude);
  }
  add(update.tokens);
  add(update.bias);
  return bytes + update.token_rows.size() * sizeof(std::uint32_t);
}

// A is [experts * rank, in], B is [out, rank * experts] with the experts innermost.
void TensorMerge::read_factors(ExpertFactors& expert_factors) {
  const LowRankUpdate& update = *update_.low_rank;
  const Reader& reader = adapter_.weights();
  const auto put_b = [&](std::uint64_t expert, std::uint64_t out, std::uint64_t k, float value) {
    (update.transposed ? product_->right(expert, k, out) : product_->left(expert, out, k)) = value;
  };
  const std::uint64_t in = update.transposed ? rows_ / update.experts : columns_;
  const std::uint64_t first_expert = update.expert.value_or(0);
  const std::uint64_t end_expert = update.expert ? first_expert + 1 : update.experts;
  const std::uint64_t size = update.rank * in;  // of one expert's A
  for_each_value(reader, update.a, first_expert * size, end_expert * size, [&](std::uint64_t i, float value) {
    const std::uint64_t expert = i / size - first_expert, k = i / in % update.rank, column = i % in;
    (update.transposed ? product_->left(expert, column, k) : product_->right(expert, k, column)) = value;
  });
  if (update.expert) {
    const auto expert_b =
        expert_factors.get(update.b, [&] { return std::make_shared<const ExpertFactor>(adapter_, update); });
    const auto rows = expert_b->rows(*update.expert, update.first_out, rows_);
    for (std::uint64_t i = 0; i < rows.size(); ++i) put_b(0, i / update.rank, i % update.rank, rows[i]);
    return;
  }
  const std::uint64_t width = update.rank * update.experts;
  for_each_value(reader, update.b, 0, element_count(reader.tensors().shape(update.b)),
                 [&](std::uint64_t i, float value) {
                   put_b(i % width % update.experts, i / width, i % width / update.experts, value);
                 });
}

void TensorMerge::add_update(std::uint64_t first, std::span<float> merged) const {
  if (product_) product_->add(first, static_cast<float>(update_.low_rank->scale), merged, merged);
}

void TensorMerge::measure_norms(const ReadBase& read) {
  if (!is_scaled()) return;
  const std::uint64_t panel_rows = std::max<std::uint64_t>(panel_bytes / sizeof(float) / columns_, 1);
  std::vector<SquaresOfFinite> squares(factors_.size());
  if (update_.low_rank->transposed) {
    // One panel at a time, so that each column is summed up in the order of the rows.
    std::vector<float> panel;
    for (std::uint64_t row = 0; row < rows_; row += panel_rows) {
      panel.resize(std::min(panel_rows, rows_ - row) * columns_);
      read_updated(row * columns_, panel, read);
      add_squares_of_columns(panel, squares);
    }
  } else {
    for_each_range(rows_, panel_rows, [&](std::uint64_t row, std::uint64_t rows) {
      std::vector<float> panel(rows * columns_);
      read_updated(row * columns_, panel, read);
      for (std::uint64_t r = 0; r < rows; ++r)
        squares[row + r] = squares_of(std::span(panel).subspan(r * columns_, columns_));
    });
  }
  for (std::size_t i = 0; i < factors_.size(); ++i) divide_factor(i, squares[i]);
}

void TensorMerge::divide_factor(std::size_t output, const SquaresOfFinite& squares) {
  float& factor = factors_[output];
  const auto norm = static_cast<float>(std::sqrt(squares.sum));
  if (norm == 0 || !std::isfinite(norm) || !std::isfinite(factor / norm)) {
    const std::uint64_t weights = rows_ * columns_ / factors_.size();
    const std::string fact = squares.count == 0 ? "no finite weight"
                             : squares.count == weights
                                 ? fmt::format("the norm {}", norm)
                                 : fmt::format("the norm {} without the weights that are not finite ({} of {})", norm,
                                               weights - squares.count, weights);
    refuse(adapter_.weights().label_of(*update_.low_rank->magnitude),
           "tensor '{}': element {} is {}, but {} {} of W + dW has {}: DoRA cannot scale it",
           printable(adapter_.weights().tensors().name(*update_.low_rank->magnitude)), output, factor,
           update_.low_rank->transposed ? "column" : "row", output, fact);
  }
  factor /= norm;
}

void TensorMerge::read_updated(std::uint64_t first, std::span<float> out, const ReadBase& read) const {
  if (update_.replacement)
    read_as_floats(adapter_.weights(), *update_.replacement, first, out);
  else
    read(first, out);
  add_update(first, out);
}

// Not those of a NaN or infinity, which would spread to its whole column.
void TensorMerge::add_squares_of_columns(std::span<const float> panel, std::span<SquaresOfFinite> squares) const {
  constexpr std::uint64_t columns_of_task = 256;
  for_each_range(columns_, columns_of_task, [&](std::uint64_t first, std::uint64_t n) {
    for (std::uint64_t row = 0; row < panel.size(); row += columns_)
      for (std::uint64_t c = first; c < first + n; ++c) {
        const double weight = panel[row + c];
        if (!std::isfinite(weight)) continue;
        squares[c].sum += weight * weight;
        ++squares[c].count;
      }
  });
}

void TensorMerge::merge(std::uint64_t first, std::span<const float> base, std::span<float> merged) const {
  if (update_.replacement)
    read_as_floats(adapter_.weights(), *update_.replacement, first, merged);
  else if (merged.data() != base.data())
    std::ranges::copy(base, merged.begin());
  add_update(first, merged);
  if (is_scaled())
    for (std::size_t i = 0; i < merged.size(); ++i) merged[i] *= factors_[factor_of(first + i)];
  if (!bias_.empty())
    for (std::size_t i = 0; i < merged.size(); ++i)
      merged[i] += static_cast<float>(update_.bias_scale) * bias_[first + i];
  if (!token_of_row_.empty()) replace_rows(first, merged);
}

std::uint64_t TensorMerge::factor_of(std::uint64_t weight) const {
  return update_.low_rank->transposed ? weight % columns_ : weight / columns_;
}

void TensorMerge::replace_rows(std::uint64_t first, std::span<float> merged) const {
  const auto row_of = [&](std::uint32_t token) { return update_.token_rows[token]; };
  for (auto token = std::ranges::lower_bound(token_of_row_, first / columns_, {}, row_of);
       token != token_of_row_.end() && row_of(*token) * columns_ < first + merged.size(); ++token) {
    const std::uint64_t begin = row_of(*token) * columns_;
    for (std::uint64_t c = 0; c < columns_; ++c)
      if (begin + c >= first && begin + c < first + merged.size())
        merged[begin + c - first] = tokens_[*token * columns_ + c];
  }
}

}  // namespace nibble
