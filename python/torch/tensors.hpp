#pragma once

// What the operators ask of tensors. Everything goes through torch's stable ABI.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// clang-format off: ops.h needs library.h
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
// clang-format on

#include "nibble/error.hpp"
#include "nibble/tensor.hpp"

namespace nibble::torch_operators {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// Throws Error(usage) with `text` unless `holds`. `text` names the argument, the fact and the limit.
template <class Text> void require(bool holds, Text&& text) {
  if (!holds) throw Error(Errc::usage, text());
}

/// "[64, 32]"
[[nodiscard]] std::string shape_text(const Tensor& tensor);
/// "torch.float32", or a number for a type that nibble does not know.
[[nodiscard]] std::string_view dtype_text(ScalarType dtype);

/// F32, BF16 or F16; throws Error(usage) that names the argument for any other type.
[[nodiscard]] DType weight_type(std::string_view argument, ScalarType dtype);

/// Throws Error(usage) unless the tensor is on the device of `other`.
void require_device(std::string_view argument, const Tensor& tensor, const Tensor& other);

/// Throws Error(usage) unless the tensor has this type, is contiguous, and is on the device of `other`.
void require_plane(std::string_view argument, const Tensor& tensor, ScalarType dtype, const Tensor& other);

/// All elements in row-major order, without a copy where they already are.
[[nodiscard]] Tensor row_major(const Tensor& tensor);

/// A result that the caller is about to write as a whole. On the CPU, a large one is in huge pages.
[[nodiscard]] Tensor empty(torch::headeronly::IntHeaderOnlyArrayRef shape, ScalarType dtype, const Tensor& device_of);

/// x as a matrix [m, columns], contiguous. Throws Error(usage) unless its last dimension is `columns`.
[[nodiscard]] Tensor as_matrix(std::string_view argument, const Tensor& x, std::int64_t columns);

/// The result of a product with x, which the caller is about to write as a whole. Operators return `tensor`, which is
/// no view: autograd does not let users write to a view that an operator returned (`y += 1`).
struct Product {
  Tensor tensor;  ///< in the shape of x but for the last dimension, `columns`
  Tensor matrix;  ///< the same memory as [m, columns]
};
[[nodiscard]] Product empty_product(const Tensor& x, std::int64_t columns);

/// Throws Error(usage) unless the bias, if there is one, has `columns` values of the type of x.
void check_bias(const std::optional<Tensor>& bias, const Tensor& x, std::int64_t columns);

/// Elements [first, first + count) of a dimension, in the same memory.
[[nodiscard]] inline Tensor narrowed(Tensor tensor, std::int64_t dimension, std::int64_t first, std::int64_t count) {
  return torch::stable::narrow(tensor, dimension, first, count);
}

/// out = x * transposed(weight) + bias, by torch.
void linear_out(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& out);
/// out = a * b, by torch.
void matmul_out(const Tensor& a, const Tensor& b, Tensor& out);

/// Calls f(begin, end) for parts of [0, n) on torch's threads, a part of at least `grain`.
template <class F> void parallel_for(std::int64_t n, std::int64_t grain, const F& f) {
  if (n > 0) torch::stable::parallel_for(0, n, grain < 1 ? 1 : grain, f);
}

}  // namespace nibble::torch_operators
