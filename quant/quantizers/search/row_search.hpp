#pragma once

#include <cstddef>
#include <span>

#include "nibble/tensor.hpp"
#include "quant/quantizers/column_weights.hpp"

namespace nibble {

/// The absmax of an int8 row that leaves the least squared error of those that are tried, in place of the largest
/// magnitude: that magnitude times 1, 0.96, ..., 0.55, then times the best of them +- 1/384, 2/384, ..., 12/384.
/// Weights beyond it get the code +-127. From 384 weights on, the RMSE of many rows is within 0.3 % of
/// that of the best of all.
///
/// `largest` is the row's int8::row_absmax(). All weights are finite, and fp16 can hold them. If `columns` is not
/// empty, the error of each weight is multiplied by its root.
[[nodiscard]] float search_row(DType source, std::span<const std::byte> weights, float largest,
                               const ColumnWeights& columns = {});

}  // namespace nibble
