// The arguments of a product with an int8 weight: checked, and what follows from them for the launch.
#pragma once
#include <vector>

#include "kernels/host/library/matmul_by_library.hpp"
#include "kernels/host/matmul/int8/int8_matmul_config.hpp"
#include "kernels/host/matmul/matmul_arguments.hpp"

namespace nibble::kernels {

struct Int8MatmulArguments : MatmulArguments {
  nibble_int8 weight;
  const void* bias;
  nibble_matrix y;

  bool fits_tiles;  // Int8Matmul can do it; else Int8MatmulAny
  int8_matmul::LaunchConfig config;

  /// Of a call that was copied whole. Throws Error(usage).
  Int8MatmulArguments(const nibble_matmul& call, const nibble_int8_product* product);

  /// For multiply_by_library().
  [[nodiscard]] std::vector<LibraryProduct> library_products() const;

 private:
  void check_call() const;
};

}  // namespace nibble::kernels
