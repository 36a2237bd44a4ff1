#include "python/torch/tensors.hpp"

#include <fmt/format.h>

#include <vector>

#include "core/memory/huge_page_advice.hpp"

namespace nibble::torch_operators {
namespace {

struct Type {
  ScalarType dtype;
  std::string_view text;
};
constexpr std::array<Type, 8> types{{{ScalarType::Float, "torch.float32"},
                                     {ScalarType::BFloat16, "torch.bfloat16"},
                                     {ScalarType::Half, "torch.float16"},
                                     {ScalarType::Double, "torch.float64"},
                                     {ScalarType::Byte, "torch.uint8"},
                                     {ScalarType::Char, "torch.int8"},
                                     {ScalarType::Int, "torch.int32"},
                                     {ScalarType::Long, "torch.int64"}}};

// Of x as a matrix.
std::int64_t rows_of(const Tensor& x) {
  std::int64_t rows = 1;
  for (std::int64_t i = 0; i + 1 < x.dim(); ++i) rows *= x.size(i);
  return rows;
}

}  // namespace

std::string shape_text(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return fmt::format("[{}]", fmt::join(sizes.begin(), sizes.end(), ", "));
}

std::string_view dtype_text(ScalarType dtype) {
  for (const Type& type : types)
    if (type.dtype == dtype) return type.text;
  return "another type";
}

DType weight_type(std::string_view argument, ScalarType dtype) {
  if (dtype == ScalarType::Float) return DType::f32;
  if (dtype == ScalarType::BFloat16) return DType::bf16;
  if (dtype == ScalarType::Half) return DType::f16;
  throw Error(Errc::usage,
              fmt::format("{}: is {}, not torch.float32, bfloat16 or float16", argument, dtype_text(dtype)));
}

void require_device(std::string_view argument, const Tensor& tensor, const Tensor& other) {
  require(tensor.device() == other.device(),
          [&] { return fmt::format("{}: is on another device than the other tensors", argument); });
}

void require_plane(std::string_view argument, const Tensor& tensor, ScalarType dtype, const Tensor& other) {
  require(tensor.scalar_type() == dtype, [&] {
    return fmt::format("{}: is {}, not {}", argument, dtype_text(tensor.scalar_type()), dtype_text(dtype));
  });
  require(tensor.is_contiguous(), [&] { return fmt::format("{}: is not contiguous", argument); });
  require_device(argument, tensor, other);
}

Tensor row_major(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

Tensor empty(torch::headeronly::IntHeaderOnlyArrayRef shape, ScalarType dtype, const Tensor& device_of) {
  const Tensor tensor = torch::stable::empty(shape, dtype, std::nullopt, device_of.device());
  if (tensor.is_cpu())
    advise_huge_pages({static_cast<std::byte*>(tensor.mutable_data_ptr()),
                       static_cast<std::size_t>(tensor.numel()) * tensor.element_size()});
  return tensor;
}

Tensor as_matrix(std::string_view argument, const Tensor& x, std::int64_t columns) {
  const std::int64_t dimensions = x.dim();
  require(dimensions > 0 && x.size(dimensions - 1) == columns, [&] {
    return fmt::format("{}: has the shape {}, and the weight needs {} columns", argument, shape_text(x), columns);
  });
  if (dimensions == 2) return row_major(x);
  const std::array<std::int64_t, 2> shape{rows_of(x), columns};
  return row_major(torch::stable::reshape(x, shape));
}

Product empty_product(const Tensor& x, std::int64_t columns) {
  const auto sizes = x.sizes();
  std::vector<std::int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = columns;
  const Tensor tensor = empty(shape, x.scalar_type(), x);
  if (x.dim() == 2) return {tensor, tensor};
  return {tensor, torch::stable::view(tensor, {rows_of(x), columns})};
}

void check_bias(const std::optional<Tensor>& bias, const Tensor& x, std::int64_t columns) {
  if (!bias) return;
  require_plane("bias", *bias, x.scalar_type(), x);
  require(bias->dim() == 1 && bias->size(0) == columns, [&] {
    return fmt::format("bias: has the shape {}, and the weight has {} rows", shape_text(*bias), columns);
  });
}

void linear_out(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& out) {
  using torch::stable::detail::from, torch::stable::detail::to;
  std::array<StableIValue, 4> stack{from(x), from(weight), from(bias), from(out)};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "out", stack.data(), TORCH_ABI_VERSION));
  (void)to<Tensor>(stack[0]);  // takes ownership
}

void matmul_out(const Tensor& a, const Tensor& b, Tensor& out) {
  using torch::stable::detail::from, torch::stable::detail::to;
  std::array<StableIValue, 3> stack{from(a), from(b), from(out)};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::mm", "out", stack.data(), TORCH_ABI_VERSION));
  (void)to<Tensor>(stack[0]);
}

}  // namespace nibble::torch_operators
