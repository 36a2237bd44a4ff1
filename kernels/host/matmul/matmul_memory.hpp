// What a product's kernel reads and writes besides the weight: x in the compute type, y, and the workspace.
#pragma once
#include "kernels/device/stream.hpp"
#include "kernels/host/matmul/matmul_arguments.hpp"
#include "kernels/host/matmul/round_rows.hpp"
#include "kernels/matmul/split_sums.hpp"

namespace nibble::kernels {

template <class Half> MatmulOutput<Half> matmul_output(const nibble_matrix& y, const void* bias, bool accumulate) {
  const bool is_f32 = y.dtype == NIBBLE_F32;
  return {static_cast<const Half*>(bias), is_f32 ? nullptr : static_cast<Half*>(y.data),
          is_f32 ? static_cast<float*>(y.data) : nullptr, static_cast<i64>(y.stride), accumulate};
}

template <class Half> class MatmulMemory {
 public:
  const Half* x;
  i64 x_stride;

  MatmulMemory(const MatmulArguments& arguments, void* workspace)
      : x(static_cast<const Half*>(arguments.x.data)),
        x_stride(static_cast<i64>(arguments.x.stride)),
        arguments_(arguments),
        workspace_(static_cast<char*>(workspace)) {
    if (arguments.x.dtype == NIBBLE_F32) {
      x = static_cast<const Half*>(workspace);
      x_stride = static_cast<i64>(arguments.x.columns);
    }
  }

  /// Rounds x into the workspace if it is fp32.
  void round_x(StreamRef stream) const {
    if (arguments_.x.dtype == NIBBLE_F32) round_rows(arguments_.x, reinterpret_cast<Half*>(workspace_), stream);
  }
  /// Clears the counters of blocks that divide k if the workspace has them. Not every kernel uses counters.
  void clear_counters(StreamRef stream) const {
    if (arguments_.counter_bytes > 0) clear_memory(counters(), arguments_.counter_bytes, stream);
  }

  /// Of all m rows and the n of all weights.
  [[nodiscard]] SplitSums sums(u32 splits, u64 n) const {
    char* const partial = workspace_ + arguments_.rounded_x_bytes + arguments_.counter_bytes;
    return {reinterpret_cast<float*>(partial), counters(), splits, static_cast<i64>(arguments_.x.rows * n)};
  }

 private:
  [[nodiscard]] u32* counters() const {
    if (arguments_.counter_bytes == 0) return arguments_.matmul.counters;
    return reinterpret_cast<u32*>(workspace_ + arguments_.rounded_x_bytes);
  }

  const MatmulArguments& arguments_;
  char* workspace_;
};

}  // namespace nibble::kernels
