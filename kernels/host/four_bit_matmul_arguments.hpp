// A product's arguments as the C interface has them: checked, and what follows from them for the launch.
#pragma once
#include <array>
#include <cstddef>

#include "kernels/host/four_bit_matmul_config.hpp"
#include "kernels/host/interface.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels {

struct FourBitMatmulArguments {
  nibble_matmul matmul;  // as the caller gave it
  struct Product {
    nibble_four_bit_product given;
    nibble_four_bit weight;
    nibble_matrix y;
    u64 n;  // rows of the weight, or of one expert's
  };
  std::array<Product, NIBBLE_MATMUL_MAX_PRODUCTS> products;  // matmul.product_count of them
  nibble_matrix x;
  nibble_dtype compute_dtype;  // F16 or BF16

  bool fits_tiles;  // FourBitMatmul can do it; else FourBitMatmulAny
  four_bit_matmul::LaunchConfig config;
  u64 n;  // of all products

  // The workspace, in this order: x rounded to the compute type, counters, partial sums.
  std::size_t rounded_x_bytes, counter_bytes, partial_bytes;
  [[nodiscard]] std::size_t workspace_bytes() const { return rounded_x_bytes + counter_bytes + partial_bytes; }

  /// Of a call that was copied whole. Throws Error(usage).
  explicit FourBitMatmulArguments(const nibble_matmul& call);

 private:
  void check_x();
  void check_experts() const;
  void check_product(u32 index);
  [[nodiscard]] bool all_fit_tiles() const;
};

}  // namespace nibble::kernels
