#include "kernels/host/four_bit_matmul_arguments.hpp"

#include <algorithm>
#include <string>

namespace nibble::kernels {
namespace {

std::string number(u64 value) { return std::to_string(value); }

const char* name_of(nibble_dtype dtype) { return dtype == NIBBLE_F32 ? "F32" : dtype == NIBBLE_F16 ? "F16" : "BF16"; }

constexpr std::size_t in_workspace(u64 bytes) { return device::ceil_div<u64>(bytes, 16) * 16; }

bool fits_tiles(const nibble_four_bit& weight) {
  return weight.columns % 64 == 0 && weight.stride % 64 == 0 && weight.first % 64 == 0 && weight.columns > 0 &&
         weight.columns < u64{1} << 31 && weight.blocksize >= 64 &&
         weight.first / 64 + weight.rows * (weight.stride / 64) < u64{1} << 32 && is_aligned(weight.packed, 8);
}

}  // namespace

FourBitMatmulArguments::FourBitMatmulArguments(const nibble_matmul& call) : matmul(call) {
  check_x();
  check_experts();
  if (matmul.products == nullptr) refuse("matmul.products is null");
  if (matmul.product_count < 1 || matmul.product_count > products.size())
    refuse("matmul.product_count is " + number(matmul.product_count) + ", must be 1 to " + number(products.size()));
  if (matmul.experts > 0 && matmul.product_count > 1)
    refuse("matmul.product_count is " + number(matmul.product_count) + ", must be 1 with experts");
  n = 0;
  for (u32 i = 0; i < matmul.product_count; ++i) {
    products[i].given = matmul.products[i];
    check_product(i);
    n += products[i].n;
  }
  if (matmul.counters != nullptr) check_pointer("matmul.counters", matmul.counters, alignof(u32));

  const u64 m = x.rows, experts = std::max(matmul.experts, 1U);
  fits_tiles = all_fit_tiles();
  config = four_bit_matmul::config_for(device::ceil_div<u64>(m, experts), experts * n, x.columns, matmul.experts == 0);
  const bool splits = fits_tiles && config.splits > 1;
  rounded_x_bytes = x.dtype == NIBBLE_F32 ? in_workspace(m * x.columns * 2) : 0;
  counter_bytes = splits && matmul.counters == nullptr ? NIBBLE_COUNTERS * sizeof(u32) : 0;
  partial_bytes = splits ? config.splits * m * n * sizeof(float) : 0;
}

void FourBitMatmulArguments::check_x() {
  check_matrix("x", matmul.x);
  x = *matmul.x;
  if (x.rows < 1 || x.rows >= u64{1} << 31) refuse("x.rows is " + number(x.rows) + ", must be 1 to 2^31 - 1");
  check_dtype("matmul.compute_dtype", matmul.compute_dtype);
  compute_dtype = matmul.compute_dtype;
  if (x.dtype == NIBBLE_F32) {
    if (compute_dtype == NIBBLE_F32) refuse("matmul.compute_dtype is F32, must be F16 or BF16 for an x of F32");
    return;
  }
  if (compute_dtype != NIBBLE_F32 && compute_dtype != x.dtype)
    refuse(std::string("matmul.compute_dtype is ") + name_of(compute_dtype) + ", x.dtype is " + name_of(x.dtype));
  compute_dtype = x.dtype;
}

void FourBitMatmulArguments::check_experts() const {
  constexpr u32 max_experts = 65535;  // a grid's third dimension
  if (matmul.experts > max_experts)
    refuse("matmul.experts is " + number(matmul.experts) + ", at most 65535 are possible");
  if (matmul.experts > 0) check_pointer("matmul.ends", matmul.ends, alignof(u32));
  if (matmul.experts == 0 && matmul.ends != nullptr) refuse("matmul.ends is given, must be null without experts");
}

void FourBitMatmulArguments::check_product(u32 index) {
  const u32 experts = matmul.experts;
  const std::string end = matmul.product_count == 1 ? "" : "[" + number(index) + "]", weight_name = "weight" + end;
  Product& product = products[index];
  product.weight = checked_four_bit(weight_name, product.given.weight);
  const nibble_four_bit& weight = product.weight;
  if (x.columns != weight.columns)
    refuse("x.columns is " + number(x.columns) + ", " + weight_name + ".columns is " + number(weight.columns));
  if (weight.rows >= u64{1} << 31) refuse(weight_name + ".rows is " + number(weight.rows) + ", must be less than 2^31");
  if (experts > 0 && weight.rows % experts != 0)
    refuse(weight_name + ".rows is " + number(weight.rows) + ", no multiple of the " + number(experts) + " experts");
  product.n = weight.rows / std::max(experts, 1U);

  const nibble_four_bit& first = products[0].weight;
  if (weight.blocksize != first.blocksize)
    refuse(weight_name + ".blocksize is " + number(weight.blocksize) + ", weight[0].blocksize is " +
           number(first.blocksize));
  if (weight.codebook != first.codebook) refuse(weight_name + ".codebook is not weight[0].codebook");
  if ((weight.absmax == nullptr) != (first.absmax == nullptr))
    refuse(weight_name + " and weight[0] do not both have nested absmax");

  const std::string y_name = "y" + end;
  check_matrix(y_name, product.given.y);
  product.y = *product.given.y;
  if (product.y.dtype != NIBBLE_F32 && product.y.dtype != compute_dtype)
    refuse(y_name + ".dtype is " + name_of(product.y.dtype) + ", must be " + name_of(compute_dtype) + " or F32");
  if (product.y.rows != x.rows) refuse(y_name + ".rows is " + number(product.y.rows) + ", x.rows is " + number(x.rows));
  if (product.y.columns != product.n)
    refuse(y_name + ".columns is " + number(product.y.columns) + ", " + weight_name +
           (experts > 0 ? " has for each expert rows: " : ".rows is ") + number(product.n));
  if (product.given.bias != nullptr) {
    if (experts > 0) refuse("bias is given, must be null with experts");
    check_pointer("bias" + end, product.given.bias, 2);
  }
}

bool FourBitMatmulArguments::all_fit_tiles() const {
  const bool rounded = x.dtype == NIBBLE_F32;  // in the workspace, without gaps
  if (!rounded && !(is_aligned(x.data, 16) && (x.rows == 1 || x.stride % 8 == 0))) return false;
  return std::all_of(products.begin(), products.begin() + matmul.product_count,
                     [](const Product& product) { return kernels::fits_tiles(product.weight); });
}

}  // namespace nibble::kernels
