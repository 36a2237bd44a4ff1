// The operators on CUDA tensors, by the kernels of libnibble_cuda (nibble/kernels.h), which is loaded when the first
// CUDA tensor comes. Up to 64 rows of x are multiplied by codes; for more, and for dx and F32, the weight is
// dequantized into scratch, and torch multiplies.

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include <torch/csrc/stable/accelerator.h>

#include "nibble/kernels.h"
#include "python/torch/four_bit.hpp"
#include "python/torch/operators.hpp"
#include "quant/quantizers/cuda_library.hpp"

namespace nibble::torch_operators::cuda {
namespace {

constexpr std::int64_t max_rows = 64;  // of x, for products with codes

// The file beside the library that this function is a part of.
std::string beside(const char* name) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&beside), &info) == 0 || info.dli_fname == nullptr) return name;
  return (std::filesystem::path(info.dli_fname).parent_path() / name).string();
}

// Loaded once and for good.
struct Kernels {
  Kernels() {
    const CudaLibrary library(beside("libnibble_cuda.so"));
    library.require_version("nibble_kernels_version", NIBBLE_KERNELS_VERSION, "the kernels' interface");
    library.find(last_error, "nibble_last_error");
    library.find(matmul_four_bit_workspace, "nibble_matmul_four_bit_workspace");
    library.find(matmul_four_bit, "nibble_matmul_four_bit");
    library.find(matmul_int8_workspace, "nibble_matmul_int8_workspace");
    library.find(matmul_int8, "nibble_matmul_int8");
    library.find(dequantize_four_bit, "nibble_dequantize_four_bit");
    library.find(dequantize_int8, "nibble_dequantize_int8");
    library.find(quantize_four_bit, "nibble_quantize_four_bit");
    library.find(quantize_int8, "nibble_quantize_int8");
    // torch has loaded its library long before; its functions for CUDA are not in the stable ABI's own library.
    void* const torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    require(torch_cuda != nullptr, [] { return std::string("this torch was built without CUDA"); });
    current_stream =
        reinterpret_cast<decltype(current_stream)>(dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream"));
    require(current_stream != nullptr, [] { return std::string("there is no aoti_torch_get_current_cuda_stream"); });
  }

  void check(int status) const {
    if (status != NIBBLE_OK) throw Error(static_cast<Errc>(status), last_error());
  }

  decltype(&nibble_last_error) last_error = nullptr;
  decltype(&nibble_matmul_four_bit_workspace) matmul_four_bit_workspace = nullptr;
  decltype(&nibble_matmul_four_bit) matmul_four_bit = nullptr;
  decltype(&nibble_matmul_int8_workspace) matmul_int8_workspace = nullptr;
  decltype(&nibble_matmul_int8) matmul_int8 = nullptr;
  decltype(&nibble_dequantize_four_bit) dequantize_four_bit = nullptr;
  decltype(&nibble_dequantize_int8) dequantize_int8 = nullptr;
  decltype(&nibble_quantize_four_bit) quantize_four_bit = nullptr;
  decltype(&nibble_quantize_int8) quantize_int8 = nullptr;
  AOTITorchError (*current_stream)(std::int32_t device, void** stream) = nullptr;
};

const Kernels& kernels() {
  try {
    static const Kernels loaded;
    return loaded;
  } catch (const Error& error) {
    throw Error(error.code(), std::string("cannot use CUDA: ") + error.what());
  }
}

// Makes a tensor's device the current one, and finds the stream that torch uses there.
class OnDevice {
 public:
  explicit OnDevice(const Tensor& tensor) : guard_(tensor.get_device_index()) {
    void* stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(kernels().current_stream(tensor.get_device_index(), &stream));
    stream_ = static_cast<nibble_stream>(stream);
  }
  [[nodiscard]] nibble_stream stream() const noexcept { return stream_; }

 private:
  torch::stable::accelerator::DeviceGuard guard_;
  nibble_stream stream_ = nullptr;
};

nibble_dtype type_of(std::string_view argument, ScalarType dtype) {
  switch (weight_type(argument, dtype)) {
    case DType::bf16:
      return NIBBLE_BF16;
    case DType::f16:
      return NIBBLE_F16;
    default:
      return NIBBLE_F32;
  }
}

nibble_matrix matrix_of(const Tensor& tensor) {
  const auto rows = static_cast<std::uint64_t>(tensor.size(0)), columns = static_cast<std::uint64_t>(tensor.size(1));
  return {sizeof(nibble_matrix), type_of("x", tensor.scalar_type()), rows, columns, columns, tensor.mutable_data_ptr()};
}

nibble_four_bit weight_of(const FourBitParts& parts, std::int64_t rows, std::int64_t columns) {
  check_four_bit(parts, rows * columns);
  nibble_four_bit weight{};
  weight.struct_bytes = sizeof weight;
  weight.codebook = parts.quant_type == "nf4" ? NIBBLE_NF4 : NIBBLE_FP4;
  weight.blocksize = static_cast<std::uint32_t>(parts.blocksize);
  weight.rows = static_cast<std::uint64_t>(rows);
  weight.columns = static_cast<std::uint64_t>(columns);
  weight.packed = static_cast<const std::uint8_t*>(parts.packed.const_data_ptr());
  if (!parts.nested()) {
    weight.absmax = parts.absmax.const_data_ptr<float>();
    return weight;
  }
  weight.absmax_codes = parts.absmax.const_data_ptr<std::uint8_t>();
  weight.nested_absmax = parts.nested_absmax->const_data_ptr<float>();
  weight.nested_codebook = parts.nested_codebook->const_data_ptr<float>();
  weight.nested_offset = parts.nested_offset->const_data_ptr<float>();
  return weight;
}

Tensor dequantized(const nibble_four_bit& weight, ScalarType dtype, const Tensor& like) {
  const OnDevice device(like);
  const Tensor out =
      empty({static_cast<std::int64_t>(weight.rows), static_cast<std::int64_t>(weight.columns)}, dtype, like);
  const nibble_matrix matrix = matrix_of(out);
  kernels().check(kernels().dequantize_four_bit(&weight, 0, &matrix, device.stream()));
  return out;
}

nibble_int8 int8_weight_of(const Tensor& weight, const Tensor& absmax) {
  require_plane("weight", weight, ScalarType::Char, weight);
  require(weight.dim() == 2,
          [&] { return fmt::format("weight: has the shape {}, not two dimensions", shape_text(weight)); });
  require_plane("absmax", absmax, ScalarType::Float, weight);
  require(absmax.numel() == weight.size(0), [&] {
    return fmt::format("absmax: has {} values, and the weight has {} rows", absmax.numel(), weight.size(0));
  });
  return {sizeof(nibble_int8), static_cast<std::uint64_t>(weight.size(0)), static_cast<std::uint64_t>(weight.size(1)),
          weight.const_data_ptr<std::int8_t>(), absmax.const_data_ptr<float>()};
}

Tensor dequantized(const nibble_int8& weight, ScalarType dtype, const Tensor& like) {
  const OnDevice device(like);
  const Tensor out =
      empty({static_cast<std::int64_t>(weight.rows), static_cast<std::int64_t>(weight.columns)}, dtype, like);
  const nibble_matrix matrix = matrix_of(out);
  kernels().check(kernels().dequantize_int8(&weight, 0, &matrix, device.stream()));
  return out;
}

// Whether x is multiplied by codes: in F32 that would round x.
bool by_codes(const Tensor& x) { return x.size(0) <= max_rows && x.scalar_type() != ScalarType::Float; }

nibble_matmul matmul_of(const nibble_matrix& x) {
  nibble_matmul matmul{};
  matmul.struct_bytes = sizeof matmul;
  matmul.x = &x;
  matmul.compute_dtype = x.dtype;
  matmul.min_library_m = NIBBLE_NO_LIBRARY;
  return matmul;
}

}  // namespace

Tensor linear_4bit(const Tensor& x, const Tensor& packed, const Tensor& absmax,
                   const std::optional<Tensor>& nested_absmax, const std::optional<Tensor>& nested_codebook,
                   const std::optional<Tensor>& nested_offset, const std::optional<Tensor>& bias,
                   std::int64_t out_features, std::int64_t blocksize, const std::string& quant_type) {
  require(x.dim() > 0, [] { return std::string("x: has no dimension"); });
  const std::int64_t columns = x.size(x.dim() - 1);
  const FourBitParts parts{packed, absmax, nested_absmax, nested_codebook, nested_offset, blocksize, quant_type};
  const nibble_four_bit weight = weight_of(parts, out_features, columns);
  require_device("x", x, packed);
  check_bias(bias, x, out_features);
  const Tensor matrix = as_matrix("x", x, columns);
  Product y = empty_product(x, out_features);
  if (y.matrix.numel() == 0) return y.tensor;
  if (!by_codes(matrix)) {
    linear_out(matrix, dequantized(weight, x.scalar_type(), x), bias, y.matrix);
    return y.tensor;
  }
  const OnDevice device(x);
  const nibble_matrix from = matrix_of(matrix), to = matrix_of(y.matrix);
  const nibble_four_bit_product product{sizeof product, &weight, bias ? bias->const_data_ptr() : nullptr, &to};
  nibble_matmul matmul = matmul_of(from);
  matmul.products = &product;
  matmul.product_count = 1;
  std::size_t bytes = 0;
  kernels().check(kernels().matmul_four_bit_workspace(&matmul, &bytes));
  const Tensor workspace = empty({static_cast<std::int64_t>(bytes)}, ScalarType::Byte, x);
  kernels().check(kernels().matmul_four_bit(&matmul, workspace.mutable_data_ptr(), bytes, device.stream()));
  return y.tensor;
}

Tensor linear_4bit_dx(const Tensor& dy, const Tensor& packed, const Tensor& absmax,
                      const std::optional<Tensor>& nested_absmax, const std::optional<Tensor>& nested_codebook,
                      const std::optional<Tensor>& nested_offset, std::int64_t in_features, std::int64_t blocksize,
                      const std::string& quant_type) {
  require(dy.dim() > 0, [] { return std::string("dy: has no dimension"); });
  const std::int64_t rows = dy.size(dy.dim() - 1);
  const FourBitParts parts{packed, absmax, nested_absmax, nested_codebook, nested_offset, blocksize, quant_type};
  const nibble_four_bit weight = weight_of(parts, rows, in_features);
  require_device("dy", dy, packed);
  const Tensor matrix = as_matrix("dy", dy, rows);
  Product dx = empty_product(dy, in_features);
  if (dx.matrix.numel() > 0) matmul_out(matrix, dequantized(weight, dy.scalar_type(), dy), dx.matrix);
  return dx.tensor;
}

std::tuple<Tensor, Tensor> quantize_4bit(const Tensor& weights, std::int64_t blocksize, const std::string& quant_type) {
  const nibble_dtype dtype = type_of("weights", weights.scalar_type());
  (void)four_bit_tables(quant_type);
  require(blocksize >= 32 && blocksize <= 4096 && (blocksize & (blocksize - 1)) == 0,
          [&] { return fmt::format("blocksize: is {}, not one of 32, 64, ..., 4096", blocksize); });
  const Tensor flat = row_major(weights);
  const std::int64_t n = flat.numel();
  const Tensor packed = empty({(n + 1) / 2, 1}, ScalarType::Byte, weights);
  const Tensor absmax = empty({(n + blocksize - 1) / blocksize}, ScalarType::Float, weights);
  const OnDevice device(weights);
  nibble_four_bit_output out{};
  out.struct_bytes = sizeof out;
  out.codebook = quant_type == "nf4" ? NIBBLE_NF4 : NIBBLE_FP4;
  out.blocksize = static_cast<std::uint32_t>(blocksize);
  out.packed = packed.mutable_data_ptr<std::uint8_t>();
  out.absmax = absmax.mutable_data_ptr<float>();
  if (n > 0)
    kernels().check(kernels().quantize_four_bit(flat.const_data_ptr(), dtype, static_cast<std::uint64_t>(n), &out,
                                                nullptr, nullptr, 0, device.stream()));
  return {packed, absmax};
}

Tensor dequantize_4bit(const Tensor& packed, const Tensor& absmax, const std::optional<Tensor>& nested_absmax,
                       const std::optional<Tensor>& nested_codebook, const std::optional<Tensor>& nested_offset,
                       const std::vector<std::int64_t>& shape, std::int64_t blocksize, const std::string& quant_type,
                       ScalarType dtype) {
  std::int64_t n = 1;
  for (const std::int64_t size : shape)
    require(size >= 0 && !__builtin_mul_overflow(n, size, &n), [] { return std::string("shape: is too large"); });
  const FourBitParts parts{packed, absmax, nested_absmax, nested_codebook, nested_offset, blocksize, quant_type};
  const nibble_four_bit weight = weight_of(parts, 1, n);
  const Tensor out = n > 0 ? dequantized(weight, dtype, packed) : empty({0}, dtype, packed);
  return torch::stable::view(out, shape);
}

Tensor linear_int8(const Tensor& x, const Tensor& weight, const Tensor& absmax, const std::optional<Tensor>& bias) {
  const nibble_int8 rows = int8_weight_of(weight, absmax);
  const std::int64_t n = weight.size(0);
  require_device("x", x, weight);
  check_bias(bias, x, n);
  const Tensor matrix = as_matrix("x", x, weight.size(1));
  Product y = empty_product(x, n);
  if (y.matrix.numel() == 0) return y.tensor;
  if (!by_codes(matrix)) {
    linear_out(matrix, dequantized(rows, x.scalar_type(), x), bias, y.matrix);
    return y.tensor;
  }
  const OnDevice device(x);
  const nibble_matrix from = matrix_of(matrix), to = matrix_of(y.matrix);
  const nibble_int8_product product{sizeof product, &rows, bias ? bias->const_data_ptr() : nullptr, &to};
  const nibble_matmul matmul = matmul_of(from);
  std::size_t bytes = 0;
  kernels().check(kernels().matmul_int8_workspace(&matmul, &product, &bytes));
  const Tensor workspace = empty({static_cast<std::int64_t>(bytes)}, ScalarType::Byte, x);
  kernels().check(kernels().matmul_int8(&matmul, &product, workspace.mutable_data_ptr(), bytes, device.stream()));
  return y.tensor;
}

Tensor linear_int8_dx(const Tensor& dy, const Tensor& weight, const Tensor& absmax) {
  const nibble_int8 rows = int8_weight_of(weight, absmax);
  require_device("dy", dy, weight);
  const Tensor matrix = as_matrix("dy", dy, weight.size(0));
  Product dx = empty_product(dy, weight.size(1));
  if (dx.matrix.numel() > 0) matmul_out(matrix, dequantized(rows, dy.scalar_type(), dy), dx.matrix);
  return dx.tensor;
}

std::tuple<Tensor, Tensor> quantize_int8(const Tensor& weights) {
  require(weights.dim() == 2,
          [&] { return fmt::format("weights: has the shape {}, not two dimensions", shape_text(weights)); });
  const Tensor flat = row_major(weights);
  const nibble_matrix matrix = matrix_of(flat);
  const Tensor codes = empty({flat.size(0), flat.size(1)}, ScalarType::Char, weights);
  const Tensor absmax = empty({flat.size(0)}, ScalarType::Float, weights);
  const OnDevice device(weights);
  kernels().check(kernels().quantize_int8(&matrix, codes.mutable_data_ptr<std::int8_t>(),
                                          absmax.mutable_data_ptr<float>(), nullptr, device.stream()));
  return {codes, absmax};
}

Tensor dequantize_int8(const Tensor& weight, const Tensor& absmax, ScalarType dtype) {
  const nibble_int8 rows = int8_weight_of(weight, absmax);
  (void)weight_type("dtype", dtype);
  return dequantized(rows, dtype, weight);
}

}  // namespace nibble::torch_operators::cuda
