#include "kernels/host/matmul/matmul_arguments.hpp"

#include <cstddef>

namespace nibble::kernels {
namespace {

const char* name_of(nibble_dtype dtype) { return dtype == NIBBLE_F32 ? "F32" : dtype == NIBBLE_F16 ? "F16" : "BF16"; }

constexpr std::size_t in_workspace(u64 bytes) { return device::ceil_div<u64>(bytes, 16) * 16; }

}  // namespace

nibble_matmul whole_matmul(const nibble_matmul* given) {
  return whole("matmul", given, offsetof(nibble_matmul, min_library_m));
}

MatmulArguments::MatmulArguments(const nibble_matmul& call) : matmul(call) {
  x = checked_matrix("x", matmul.x);
  if (x.rows < 1 || x.rows >= u64{1} << 31) refuse("x.rows is " + std::to_string(x.rows) + ", must be 1 to 2^31 - 1");
  check_dtype("matmul.compute_dtype", matmul.compute_dtype);
  compute_dtype = matmul.compute_dtype;
  if (x.dtype == NIBBLE_F32) {
    if (compute_dtype == NIBBLE_F32) refuse("matmul.compute_dtype is F32, must be F16 or BF16 for an x of F32");
  } else {
    if (compute_dtype != NIBBLE_F32 && compute_dtype != x.dtype)
      refuse(std::string("matmul.compute_dtype is ") + name_of(compute_dtype) + ", x.dtype is " + name_of(x.dtype));
    compute_dtype = x.dtype;
  }
  if (matmul.counters != nullptr) check_pointer("matmul.counters", matmul.counters, alignof(u32));
  rounded_x_bytes = x.dtype == NIBBLE_F32 ? in_workspace(x.rows * x.columns * 2) : 0;
}

nibble_matrix MatmulArguments::checked_y(const std::string& name, const nibble_matrix* given, u64 n,
                                         const std::string& whose) const {
  const nibble_matrix y = checked_matrix(name, given);
  if (y.dtype != NIBBLE_F32 && y.dtype != compute_dtype)
    refuse(name + ".dtype is " + name_of(y.dtype) + ", must be " + name_of(compute_dtype) + " or F32");
  if (y.rows != x.rows) refuse(name + ".rows is " + std::to_string(y.rows) + ", x.rows is " + std::to_string(x.rows));
  if (y.columns != n) refuse(name + ".columns is " + std::to_string(y.columns) + ", " + whose + std::to_string(n));
  return y;
}

void MatmulArguments::check_bias(const std::string& name, const void* bias) {
  if (bias != nullptr) check_pointer(name, bias, 2);
}

bool MatmulArguments::x_fits_tiles() const {
  if (x.dtype == NIBBLE_F32) return true;  // rounded to the workspace, where it has no gaps
  return is_aligned(x.data, 16) && (x.rows == 1 || x.stride % 8 == 0);
}

void MatmulArguments::add_split_sums(u32 splits, u64 n) {
  counter_bytes = matmul.counters == nullptr ? NIBBLE_COUNTERS * sizeof(u32) : 0;
  partial_bytes = splits * x.rows * n * sizeof(float);
}

}  // namespace nibble::kernels
