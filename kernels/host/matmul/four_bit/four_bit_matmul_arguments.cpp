#include "kernels/host/matmul/four_bit/four_bit_matmul_arguments.hpp"

#include <algorithm>
#include <string>

#include "nibble/kernels.hpp"

namespace nibble::kernels {
namespace {

std::string number(u64 value) { return std::to_string(value); }

// Whether each row of the weight is made of runs, which FourBitMatmul can load.
bool has_runs_of(u32 run, const nibble_four_bit& weight) {
  return weight.columns % run == 0 && weight.stride % run == 0 && weight.first % run == 0 && weight.columns > 0 &&
         weight.columns < u64{1} << 31 && weight.blocksize >= run &&
         weight.first / run + weight.rows * (weight.stride / run) < u64{1} << 32 &&
         is_aligned(weight.packed, run == 64 ? 8 : 4);
}

}  // namespace

FourBitMatmulArguments::FourBitMatmulArguments(const nibble_matmul& call) : MatmulArguments(call) {
  check_experts();
  if (matmul.product_count < 1 || matmul.product_count > products.size())
    refuse("matmul.product_count is " + number(matmul.product_count) + ", must be 1 to " + number(products.size()));
  if (matmul.experts > 0 && matmul.product_count > 1)
    refuse("matmul.product_count is " + number(matmul.product_count) + ", must be 1 with experts");
  n = 0;
  for (u32 i = 0; i < matmul.product_count; ++i) {
    products[i].given = whole_element("matmul.products", matmul.products, i);
    check_product(i);
    n += products[i].n;
  }

  const u64 m = x.rows, experts = std::max(matmul.experts, 1U);
  run = run_of_all();
  fits_tiles = run > 0;
  config = four_bit_matmul::config_for(device::ceil_div<u64>(m, experts), experts * n, x.columns, matmul.experts == 0,
                                       fits_tiles ? run : 64);
  fits_sm90 = run == 64 && all_fit_sm90();
  sm90 = four_bit_matmul::sm90_config_for(m, n, x.columns);
  fits_few_rows = run == 64 && all_fit_few_rows();
  if (fits_few_rows) few_rows = four_bit_matmul::few_rows_config_for(m, n, x.columns);
  // The workspace is the same for every device: the largest.
  if (fits_tiles && config.splits > 1) add_split_sums(config.splits, n);
  library_bytes = library_workspace_bytes(*this, library_products(), four_bit_matmul::min_library_m);
}

std::vector<LibraryProduct> FourBitMatmulArguments::library_products() const {
  std::vector<LibraryProduct> all;
  if (matmul.experts > 0) return all;
  for (u32 i = 0; i < matmul.product_count; ++i) {
    const nibble_four_bit& weight = products[i].weight;
    // The panel's elements are one row of a weight, also if they are a slice's, with what lies between its rows.
    const auto dequantize = [&weight, dtype = compute_dtype](u64 first_row, u64 rows, void* panel,
                                                             device::StreamRef stream) {
      const u64 size = (rows - 1) * weight.stride + weight.columns;
      nibble_four_bit row = weight;
      row.rows = 1;
      row.columns = row.stride = size;
      row.first = weight.first + first_row * weight.stride;
      cuda::dequantize(row, 0, {sizeof(nibble_matrix), dtype, 1, size, size, panel},
                       static_cast<nibble_stream>(stream));
    };
    all.push_back({weight.rows, weight.columns, weight.stride, products[i].given.bias, products[i].y, dequantize});
  }
  return all;
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

  product.y = checked_y("y" + end, product.given.y, product.n,
                        weight_name + (experts > 0 ? " has for each expert rows: " : ".rows is "));
  if (product.given.bias != nullptr && experts > 0) refuse("bias is given, must be null with experts");
  check_bias("bias" + end, product.given.bias);
}

u32 FourBitMatmulArguments::run_of_all() const {
  if (!x_fits_tiles()) return 0;
  const auto all_have = [&](u32 some) {
    return std::all_of(products.begin(), products.begin() + matmul.product_count,
                       [&](const Product& product) { return has_runs_of(some, product.weight); });
  };
  if (all_have(64)) return 64;
  const auto& runs = four_bit_matmul::short_runs;
  const auto longest = std::find_if(runs.begin(), runs.end(), all_have);
  return longest == runs.end() ? 0 : *longest;
}

// Copies by TMA need 16 bytes, and a matrix that is not empty. Most experts have few rows.
bool FourBitMatmulArguments::all_fit_tma() const {
  return matmul.experts == 0 && x.stride < u64{1} << 38 &&
         std::all_of(products.begin(), products.begin() + matmul.product_count,
                     [](const Product& product) { return product.n > 0 && is_aligned(product.weight.packed, 16); });
}

bool FourBitMatmulArguments::all_fit_sm90() const {
  constexpr u64 max_items = u64{1} << 31;  // tiles of n and chunks of m
  return x.rows >= four_bit_matmul::min_m_of_sm90 && (n / 64 + 1) * (x.rows / 32 + 1) < max_items && all_fit_tma();
}

bool FourBitMatmulArguments::all_fit_few_rows() const {
  return x.rows > 0 && x.rows <= four_bit_matmul::max_m_of_few_rows && all_fit_tma();
}

}  // namespace nibble::kernels
