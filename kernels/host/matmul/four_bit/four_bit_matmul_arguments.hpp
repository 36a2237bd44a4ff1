// The arguments of a product with 4-bit weights: checked, and what follows from them for the launch.
#pragma once
#include <array>
#include <vector>

#include "kernels/host/library/matmul_by_library.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"
#include "kernels/host/matmul/matmul_arguments.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels {

struct FourBitMatmulArguments : MatmulArguments {
  struct Product {
    nibble_four_bit_product given;
    nibble_four_bit weight;
    nibble_matrix y;
    u64 n;  // rows of the weight, or of one expert's
  };
  std::array<Product, NIBBLE_MATMUL_MAX_PRODUCTS> products;  // matmul.product_count of them

  bool fits_tiles;  // FourBitMatmul can do it; else FourBitMatmulAny
  u32 run;          // FourBitMatmulTile::run of its kernel, or 0
  four_bit_matmul::LaunchConfig config;
  bool fits_sm90;  // FourBitMatmulSm90 can do it, and is the faster one where it runs
  four_bit_matmul::Sm90Config sm90;
  bool fits_few_rows;  // the same for FourBitMatmulFewRows
  four_bit_matmul::FewRowsConfig few_rows{};
  u64 n;  // of all products

  /// Of a call that was copied whole. Throws Error(usage).
  explicit FourBitMatmulArguments(const nibble_matmul& call);

  /// For multiply_by_library(): none with experts, which have few rows each.
  [[nodiscard]] std::vector<LibraryProduct> library_products() const;

 private:
  void check_experts() const;
  void check_product(u32 index);
  /// The longest runs that all weights are made of; 0 if none, or if x does not fit.
  [[nodiscard]] u32 run_of_all() const;
  [[nodiscard]] bool all_fit_tma() const;
  [[nodiscard]] bool all_fit_sm90() const;
  [[nodiscard]] bool all_fit_few_rows() const;
};

}  // namespace nibble::kernels
