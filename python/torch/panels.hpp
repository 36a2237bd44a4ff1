#pragma once

// Products with a quantized weight on the CPU for any number of rows of x: the weight is decoded panel by panel into
// memory that stays in the cache, and torch multiplies by the panels.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "nibble/tensor.hpp"
#include "python/torch/tensors.hpp"

namespace nibble::torch_operators {

/// The size of a panel in bytes: one stays in the L2 and L3 caches. Other sizes have not been measured.
inline constexpr std::int64_t panel_bytes = std::int64_t{4} << 20;

[[nodiscard]] inline std::int64_t element_bytes(DType dtype) { return traits(dtype).bits / 8; }

/// y = x * transposed(weight) + bias for x [m, k] of type `dtype`. `decode(row, rows, out)` writes rows of the weight.
/// Panels have a multiple of `row_step` rows.
template <class Decode>
Tensor multiply_by_panels(const Tensor& x, DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t row_step,
                          const std::optional<Tensor>& bias, const Decode& decode) {
  const ScalarType type = x.scalar_type();
  const std::int64_t m = x.size(0);
  Tensor y = empty({m, rows}, type, x);
  if (m == 0 || rows == 0) return y;
  const std::int64_t row_bytes = std::max<std::int64_t>(columns * element_bytes(dtype), 1);
  const std::int64_t fitting = std::max<std::int64_t>(panel_bytes / row_bytes / row_step, 1) * row_step;
  const std::int64_t panel_rows = std::min(fitting, rows);
  Tensor panel = empty({panel_rows, columns}, type, x);
  auto* const out = static_cast<std::byte*>(panel.mutable_data_ptr());
  for (std::int64_t first = 0; first < rows; first += panel_rows) {
    const std::int64_t count = std::min(panel_rows, rows - first);
    // A thread decodes whole steps.
    parallel_for((count + row_step - 1) / row_step, 65536 / (row_step * row_bytes),
                 [&](std::int64_t a, std::int64_t b) {
                   const std::int64_t begin = a * row_step, end = std::min(b * row_step, count);
                   decode(first + begin, end - begin, out + begin * row_bytes);
                 });
    Tensor part = narrowed(y, 1, first, count);
    std::optional<Tensor> part_of_bias;
    if (bias) part_of_bias = narrowed(*bias, 0, first, count);
    linear_out(x, narrowed(panel, 0, 0, count), part_of_bias, part);
  }
  return y;
}

/// dx = dy * weight for dy [m, n] of type `dtype`. `decode(row, column, columns, out)` writes a part of a row, which
/// starts and ends at a multiple of `column_step`; if that is 0, rows cannot be cut.
template <class Decode>
Tensor multiply_transposed_by_panels(const Tensor& dy, DType dtype, std::int64_t rows, std::int64_t columns,
                                     std::int64_t column_step, const Decode& decode) {
  const std::int64_t m = dy.size(0);
  Tensor dx = empty({m, columns}, dy.scalar_type(), dy);
  if (m == 0 || columns == 0) return dx;
  // Cut by columns, not by rows: sums over n then have one rounding to a 16-bit type, not one for each panel.
  const std::int64_t size = element_bytes(dtype);
  const std::int64_t column_bytes = std::max<std::int64_t>(rows * size, 1);
  const std::int64_t fitting =
      column_step == 0 ? columns : std::max<std::int64_t>(panel_bytes / column_bytes / column_step, 1) * column_step;
  const std::int64_t panel_columns = std::min(fitting, columns);
  for (std::int64_t first = 0; first < columns; first += panel_columns) {
    const std::int64_t count = std::min(panel_columns, columns - first);
    const Tensor panel = empty({rows, count}, dy.scalar_type(), dy);
    decode(first, count, static_cast<std::byte*>(panel.mutable_data_ptr()));
    Tensor part = narrowed(dx, 1, first, count);
    matmul_out(dy, panel, part);
  }
  return dx;
}

}  // namespace nibble::torch_operators
