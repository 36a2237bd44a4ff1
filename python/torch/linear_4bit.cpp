// y = x * transposed(weight) + bias and dx = dy * weight on the CPU, for a weight in 4-bit codes.

#include <fmt/format.h>

#include <cstddef>

#include "python/torch/executor.hpp"
#include "python/torch/four_bit.hpp"
#include "python/torch/operators.hpp"

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
    Product y = empty_product(x, rows);
    linear_out(matrix, exact_weights(parts, rows, columns), bias, y.matrix);
    return y.tensor;
  }
  const DType dtype = weight_type("x", x.scalar_type());
  const Product y = empty_product(x, rows);
  matmul::linear(weight.for_products(), dtype, bytes_of(matrix), bytes_of(bias), writable_bytes_of(y.matrix),
                 on_torch_threads);
  return y.tensor;
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
    Product dx = empty_product(dy, columns);
    matmul_out(matrix, exact_weights(parts, rows, columns), dx.matrix);
    return dx.tensor;
  }
  const DType dtype = weight_type("dy", dy.scalar_type());
  const Product dx = empty_product(dy, columns);
  matmul::linear_dx(weight.for_products(), dtype, bytes_of(matrix), writable_bytes_of(dx.matrix), on_torch_threads);
  return dx.tensor;
}

}  // namespace nibble::torch_operators::cpu
