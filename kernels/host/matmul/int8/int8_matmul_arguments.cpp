#include "kernels/host/matmul/int8/int8_matmul_arguments.hpp"

#include <string>

#include "nibble/kernels.hpp"

namespace nibble::kernels {
namespace {

/// The most that lanes can load of the weight's rows at a time; 0 if the kernel with tiles can load nothing.
u32 load_bytes_of(const nibble_int8& weight) {
  if (weight.columns >= u64{1} << 31) return 0;
  for (const u32 bytes : {16U, 8U})
    if (weight.columns % bytes == 0 && is_aligned(weight.codes, bytes)) return bytes;
  return 0;
}

}  // namespace

Int8MatmulArguments::Int8MatmulArguments(const nibble_matmul& call, const nibble_int8_product* product)
    : MatmulArguments(call) {
  check_call();
  const nibble_int8_product given = whole("product", product);
  weight = checked_int8("weight", given.weight);
  if (x.columns != weight.columns)
    refuse("x.columns is " + std::to_string(x.columns) + ", weight.columns is " + std::to_string(weight.columns));
  if (weight.rows >= u64{1} << 31) refuse("weight.rows is " + std::to_string(weight.rows) + ", must be less than 2^31");
  y = checked_y("y", given.y, weight.rows, "weight.rows is ");
  bias = given.bias;
  check_bias("bias", bias);

  config = int8_matmul::config_for(x.rows, weight.rows, weight.columns);
  config.tile.load_bytes = load_bytes_of(weight);
  fits_tiles = x_fits_tiles() && config.tile.load_bytes > 0;
  if (fits_tiles && config.splits > 1) add_split_sums(config.splits, weight.rows);
  library_bytes = library_workspace_bytes(*this, library_products(), int8_matmul::min_library_m);
}

std::vector<LibraryProduct> Int8MatmulArguments::library_products() const {
  const auto dequantize = [this](u64 first_row, u64 rows, void* panel, device::StreamRef stream) {
    cuda::dequantize(weight, first_row,
                     {sizeof(nibble_matrix), compute_dtype, rows, weight.columns, weight.columns, panel},
                     static_cast<nibble_stream>(stream));
  };
  return {{weight.rows, weight.columns, weight.columns, bias, y, dequantize}};
}

// What only products with 4-bit weights can do.
void Int8MatmulArguments::check_call() const {
  if (matmul.products != nullptr) refuse("matmul.products is given, must be null with an int8 weight");
  if (matmul.product_count != 0)
    refuse("matmul.product_count is " + std::to_string(matmul.product_count) + ", must be 0 with an int8 weight");
  if (matmul.experts != 0)
    refuse("matmul.experts is " + std::to_string(matmul.experts) + ", must be 0 with an int8 weight");
  if (matmul.ends != nullptr) refuse("matmul.ends is given, must be null without experts");
}

}  // namespace nibble::kernels
