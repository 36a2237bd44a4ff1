// Products of many rows of x: the weight is dequantized to the compute type in the workspace, a panel of rows at a
// time, and cuBLASLt multiplies x by the panel. Formats of weights differ in how they are dequantized.
#pragma once
#include <cstddef>
#include <functional>
#include <span>

#include "kernels/device/types.hpp"
#include "kernels/host/matmul/matmul_arguments.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels {

/// A weight, and where its product goes.
struct LibraryProduct {
  u64 n, k, stride;  // rows, columns, elements from a row to the next
  const void* bias;
  nibble_matrix y;
  /// Puts rows [first_row, first_row + rows) into the panel, `stride` elements apart, in the compute type.
  std::function<void(u64 first_row, u64 rows, void* panel, device::StreamRef stream)> dequantize;
};

/// Bytes of workspace with which the library can do the call. 0: it does not, since x has too few rows (`default_min_m`
/// is the least number, unless the caller has another), or the library cannot be loaded. Loads it if x has enough, and
/// makes its context of the current device.
std::size_t library_workspace_bytes(const MatmulArguments& arguments, std::span<const LibraryProduct> products,
                                    u64 default_min_m);

/// Does the call if arguments.library_bytes says so, and returns true; or returns false and leaves every y as it was,
/// because the library refuses.
bool multiply_by_library(const MatmulArguments& arguments, std::span<const LibraryProduct> products, void* workspace,
                         device::StreamRef stream);

}  // namespace nibble::kernels
