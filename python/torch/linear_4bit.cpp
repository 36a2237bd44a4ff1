// y = x * transposed(weight) + bias and dx = dy * weight on the CPU, for a weight in 4-bit codes.

#include <fmt/format.h>

#include <cstddef>

#include "python/torch/four_bit.hpp"
#include "python/torch/operators.hpp"
#include "python/torch/panels.hpp"

namespace nibble::torch_operators::cpu {
namespace {

// F64 is for gradient checks: the exact weights, dequantized as a whole.
Tensor exact_weights(const FourBitParts& parts, std::int64_t rows, std::int64_t columns) {
  const Tensor weights =
      cpu::dequantize_4bit(parts.packed, parts.absmax, parts.nested_absmax, parts.nested_codebook, parts.nested_offset,
                           {rows, columns}, parts.blocksize, std::string(parts.quant_type), ScalarType::Float);
  return torch::stable::to(weights, ScalarType::Double);
}

}  // namespace

Tensor linear_4bit(const Tensor& x, const Tensor& packed, const Tensor& absmax,
                   const std::optional<Tensor>& nested_absmax, const std::optional<Tensor>& nested_codebook,
                   const std::optional<Tensor>& nested_offset, const std::optional<Tensor>& bias,
                   std::int64_t out_features, std::int64_t blocksize, const std::string& quant_type) {
  require(x.dim() > 0, [] { return std::string("x: has no dimension"); });
  const std::int64_t columns = x.size(x.dim() - 1), rows = out_features;
  const FourBitParts parts{packed, absmax, nested_absmax, nested_codebook, nested_offset, blocksize, quant_type};
  const FourBitRows weight(parts, rows, columns);
  check_bias(bias, x, rows);
  const Tensor matrix = as_matrix("x", x, columns);
  if (x.scalar_type() == ScalarType::Double) {
    Tensor y = empty({matrix.size(0), rows}, ScalarType::Double, x);
    linear_out(matrix, exact_weights(parts, rows, columns), bias, y);
    return shaped_like(y, x, rows);
  }
  const DType dtype = weight_type("x", x.scalar_type());
  const Tensor y = multiply_by_panels(matrix, dtype, rows, columns, weight.row_step(), bias,
                                      [&](std::int64_t row, std::int64_t count, void* out) {
                                        weight.decode(row * columns, count * columns, dtype, out);
                                      });
  return shaped_like(y, x, rows);
}

Tensor linear_4bit_dx(const Tensor& dy, const Tensor& packed, const Tensor& absmax,
                      const std::optional<Tensor>& nested_absmax, const std::optional<Tensor>& nested_codebook,
                      const std::optional<Tensor>& nested_offset, std::int64_t in_features, std::int64_t blocksize,
                      const std::string& quant_type) {
  require(dy.dim() > 0, [] { return std::string("dy: has no dimension"); });
  const std::int64_t rows = dy.size(dy.dim() - 1), columns = in_features;
  const FourBitParts parts{packed, absmax, nested_absmax, nested_codebook, nested_offset, blocksize, quant_type};
  const FourBitRows weight(parts, rows, columns);
  const Tensor matrix = as_matrix("dy", dy, rows);
  if (dy.scalar_type() == ScalarType::Double) {
    Tensor dx = empty({matrix.size(0), columns}, ScalarType::Double, dy);
    matmul_out(matrix, exact_weights(parts, rows, columns), dx);
    return shaped_like(dx, dy, columns);
  }
  const DType dtype = weight_type("dy", dy.scalar_type());
  const std::int64_t step = weight.rows_have_whole_blocks() ? blocksize : 0;
  const Tensor dx = multiply_transposed_by_panels(
      matrix, dtype, rows, columns, step, [&](std::int64_t column, std::int64_t count, std::byte* out) {
        const std::int64_t row_bytes = count * element_bytes(dtype);
        const std::int64_t row_step = step == 0 ? weight.row_step() : 1;
        parallel_for((rows + row_step - 1) / row_step, 65536 / (row_step * row_bytes + 1),
                     [&](std::int64_t a, std::int64_t b) {
                       const std::int64_t begin = a * row_step, end = std::min(b * row_step, rows);
                       if (count == columns) {
                         weight.decode(begin * columns, (end - begin) * columns, dtype, out + begin * row_bytes);
                         return;
                       }
                       for (std::int64_t row = begin; row < end; ++row)
                         weight.decode(row * columns + column, count, dtype, out + row * row_bytes);
                     });
      });
  return shaped_like(dx, dy, columns);
}

}  // namespace nibble::torch_operators::cpu
