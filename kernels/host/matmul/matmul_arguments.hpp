// The arguments that products with weights of every format share: checked, and the workspace that follows from them.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string>

#include "kernels/host/interface.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels {

/// With members that the caller does not know, which are those after `counters`, as 0. Throws Error(usage).
nibble_matmul whole_matmul(const nibble_matmul* given);

struct MatmulArguments {
  nibble_matmul matmul;  // as the caller gave it
  nibble_matrix x;
  nibble_dtype compute_dtype;  // F16 or BF16

  // The workspace, in this order: x rounded to the compute type, counters, partial sums.
  std::size_t rounded_x_bytes, counter_bytes = 0, partial_bytes = 0;
  // What the library needs instead, if it is to do the product; else 0.
  std::size_t library_bytes = 0;
  [[nodiscard]] std::size_t workspace_bytes() const {
    return std::max(rounded_x_bytes + counter_bytes + partial_bytes, library_bytes);
  }

 protected:
  /// Of a call that was copied whole. Checks x, the compute type and the counters. Throws Error(usage).
  explicit MatmulArguments(const nibble_matmul& call);

  /// y [m, n] of a weight with n rows. `whose` comes before n in the text: "weight.rows is ".
  [[nodiscard]] nibble_matrix checked_y(const std::string& name, const nibble_matrix* y, u64 n,
                                        const std::string& whose) const;
  static void check_bias(const std::string& name, const void* bias);

  /// Whether a kernel can copy rows of x 16 bytes at a time, if k is a multiple of 8.
  [[nodiscard]] bool x_fits_tiles() const;

  /// What blocks that divide k need of the workspace.
  void add_split_sums(u32 splits, u64 n);
};

}  // namespace nibble::kernels
