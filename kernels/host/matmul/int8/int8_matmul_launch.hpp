// What Int8Matmul is launched with: here for the library, and for bench_tune, which compiles more of its kernels.
#pragma once
#include <cstddef>

#include "kernels/device/stream.hpp"
#include "kernels/matmul/int8/int8_matmul.hpp"

namespace nibble::kernels {

/// Kernel is an Int8Matmul of Half. The rows of x [m, k] are `x_stride` elements apart.
template <class Kernel, class Half>
void launch_int8_matmul(const Int8Operand& weight, const Half* x, i64 x_stride, u32 m, const MatmulOutput<Half>& out,
                        const SplitSums& sums, StreamRef stream, Overlap overlap) {
  const u64 items = ceil_div<u64>(static_cast<u64>(weight.n), Kernel::block_n) * sums.splits;
  const std::size_t shared_bytes = Kernel::shared_bytes(m);
  launch(resident_grid<Kernel>(items, shared_bytes), shared_bytes, stream, Kernel{weight, x, x_stride, m, out, sums},
         overlap);
}

}  // namespace nibble::kernels
