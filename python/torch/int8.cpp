// LLM.int8() weights on the CPU: products, codes from weights and back. A row of the weight has one absmax.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "nibble/bf16.hpp"
#include "nibble/fp16.hpp"
#include "nibble/int8.hpp"
#include "python/torch/executor.hpp"
#include "python/torch/operators.hpp"

namespace nibble::torch_operators::cpu {
namespace {

// A checked weight. The tensors must outlive it.
class Int8Rows {
 public:
  Int8Rows(const Tensor& weight, const Tensor& absmax) : rows_(check(weight, absmax)), columns_(weight.size(1)) {
    codes_ = weight.const_data_ptr<std::int8_t>();
    absmax_ = absmax.const_data_ptr<float>();
  }

  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t columns() const noexcept { return columns_; }

  /// The same weight for products.
  [[nodiscard]] matmul::Int8Weight for_products() const {
    const auto n = static_cast<std::size_t>(rows_), k = static_cast<std::size_t>(columns_);
    return {n, k, {codes_, n * k}, {absmax_, n}};
  }

  /// Columns [first, first + count) of a row, rounded to F32, BF16 or F16.
  void decode(std::int64_t row, std::int64_t first, std::int64_t count, DType to, std::byte* out) const {
    const std::span<const std::int8_t> codes(codes_ + row * columns_ + first, static_cast<std::size_t>(count));
    if (to == DType::f32) {
      int8::decode_row(codes, absmax_[row], {reinterpret_cast<float*>(out), codes.size()});
      return;
    }
    std::array<float, 2048> tile;
    auto* const halves = reinterpret_cast<std::uint16_t*>(out);
    for (std::size_t i = 0; i < codes.size(); i += tile.size()) {
      const std::span<float> weights = std::span(tile).first(std::min(tile.size(), codes.size() - i));
      int8::decode_row(codes.subspan(i, weights.size()), absmax_[row], weights);
      const std::span<std::uint16_t> rounded(halves + i, weights.size());
      (void)(to == DType::bf16 ? bf16::encode(weights, rounded) : fp16::encode(weights, rounded));
    }
  }

  /// Whole rows.
  void decode_rows(std::int64_t first, std::int64_t count, DType to, std::byte* out) const {
    for (std::int64_t i = 0; i < count; ++i)
      decode(first + i, 0, columns_, to, out + i * columns_ * traits(to).bits / 8);
  }

 private:
  static std::int64_t check(const Tensor& weight, const Tensor& absmax) {
    require_plane("weight", weight, ScalarType::Char, weight);
    require(weight.dim() == 2,
            [&] { return fmt::format("weight: has the shape {}, not two dimensions", shape_text(weight)); });
    require_plane("absmax", absmax, ScalarType::Float, weight);
    require(absmax.numel() == weight.size(0), [&] {
      return fmt::format("absmax: has {} values, and the weight has {} rows", absmax.numel(), weight.size(0));
    });
    return weight.size(0);
  }

  std::int64_t rows_, columns_;
  const std::int8_t* codes_;
  const float* absmax_;
};

Tensor decoded(const Int8Rows& weight, DType to, ScalarType dtype, const Tensor& device_of) {
  Tensor out = empty({weight.rows(), weight.columns()}, dtype, device_of);
  auto* const bytes = static_cast<std::byte*>(out.mutable_data_ptr());
  const std::int64_t columns = weight.columns();
  parallel_for(weight.rows(), 16384 / (columns + 1), [&](std::int64_t a, std::int64_t b) {
    weight.decode_rows(a, b - a, to, bytes + a * columns * traits(to).bits / 8);
  });
  return out;
}

}  // namespace

Tensor linear_int8(const Tensor& x, const Tensor& weight, const Tensor& absmax, const std::optional<Tensor>& bias) {
  const Int8Rows rows(weight, absmax);
  const Tensor matrix = as_matrix("x", x, rows.columns());
  check_bias(bias, x, rows.rows());
  if (x.scalar_type() == ScalarType::Double) {
    Product y = empty_product(x, rows.rows());
    linear_out(matrix, torch::stable::to(decoded(rows, DType::f32, ScalarType::Float, x), ScalarType::Double), bias,
               y.matrix);
    return y.tensor;
  }
  const DType dtype = weight_type("x", x.scalar_type());
  const Product y = empty_product(x, rows.rows());
  matmul::linear(rows.for_products(), dtype, bytes_of(matrix), bytes_of(bias), writable_bytes_of(y.matrix),
                 on_torch_threads);
  return y.tensor;
}

Tensor linear_int8_dx(const Tensor& dy, const Tensor& weight, const Tensor& absmax) {
  const Int8Rows rows(weight, absmax);
  const std::int64_t columns = rows.columns();
  const Tensor matrix = as_matrix("dy", dy, rows.rows());
  if (dy.scalar_type() == ScalarType::Double) {
    Product dx = empty_product(dy, columns);
    matmul_out(matrix, torch::stable::to(decoded(rows, DType::f32, ScalarType::Float, dy), ScalarType::Double),
               dx.matrix);
    return dx.tensor;
  }
  const DType dtype = weight_type("dy", dy.scalar_type());
  const Product dx = empty_product(dy, columns);
  matmul::linear_dx(rows.for_products(), dtype, bytes_of(matrix), writable_bytes_of(dx.matrix), on_torch_threads);
  return dx.tensor;
}

std::tuple<Tensor, Tensor> quantize_int8(const Tensor& weights) {
  const DType source = weight_type("weights", weights.scalar_type());
  require(weights.dim() == 2,
          [&] { return fmt::format("weights: has the shape {}, not two dimensions", shape_text(weights)); });
  const Tensor matrix = row_major(weights);
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1), row_bytes = columns * (traits(source).bits / 8);
  const Tensor codes = empty({rows, columns}, ScalarType::Char, weights);
  const Tensor absmax = empty({rows}, ScalarType::Float, weights);
  const auto* const from = static_cast<const std::byte*>(matrix.const_data_ptr());
  auto* const to = codes.mutable_data_ptr<std::int8_t>();
  auto* const scales = absmax.mutable_data_ptr<float>();
  parallel_for(rows, 16384 / (columns + 1), [&](std::int64_t a, std::int64_t b) {
    for (std::int64_t row = a; row < b; ++row) {
      const std::span<const std::byte> bytes(from + row * row_bytes, static_cast<std::size_t>(row_bytes));
      bool plain = true;
      scales[row] = int8::row_absmax(source, bytes, plain);
      int8::encode_row(source, bytes, scales[row], plain, {to + row * columns, static_cast<std::size_t>(columns)});
    }
  });
  return {codes, absmax};
}

Tensor dequantize_int8(const Tensor& weight, const Tensor& absmax, ScalarType dtype) {
  const DType to = weight_type("dtype", dtype);
  return decoded(Int8Rows(weight, absmax), to, dtype, weight);
}

}  // namespace nibble::torch_operators::cpu
