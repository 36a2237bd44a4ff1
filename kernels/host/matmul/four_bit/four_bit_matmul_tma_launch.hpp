// What the kernels that TMA feeds (FourBitMatmulBulk, FourBitMatmulSm90) are launched with: here for the library, and
// for bench_tune and tests, which launch the kernels themselves.
#pragma once
#include <array>
#include <span>

#include "kernels/device/stream.hpp"
#include "kernels/host/four_bit_weight.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_arguments.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_launch.hpp"
#include "kernels/host/matmul/matmul_memory.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels {

/// One launch of a kernel for x of Half. The rows of x [m, k] are `x_stride` elements apart, and `sums` counts the n of
/// all weights.
template <class Half, class OwnKernel> class FourBitMatmulTmaLaunch {
 public:
  using Kernel = OwnKernel;

  /// A map needs a stride of whole 16 bytes, which one row of x need not have.
  FourBitMatmulTmaLaunch(const Half* x, i64 x_stride, u32 m, u64 k, const SplitSums& sums) {
    const u64 map_stride = m == 1 ? k : static_cast<u64>(x_stride);
    kernel_.x_map = make_tensor_map(x, sizeof(Half), k, m, map_stride * sizeof(Half), Kernel::x_box_columns,
                                    Kernel::max_m, Swizzle::bytes128);
    kernel_.m = m;
    kernel_.sums = sums;
    if constexpr (requires { kernel_.x_stride; }) {
      kernel_.x = x;
      kernel_.x_stride = x_stride;
    }
  }

  /// The next weight, whose stride is not 0. There may be max_weights.
  void add(const nibble_four_bit& weight, const MatmulOutput<Half>& output) {
    const u64 m = kernel_.m, n = weight.rows;
    kernel_.product[weights_] = {operand_of(weight), output, static_cast<i64>(sums_), static_cast<u32>(groups_), 0};
    kernel_.codes_map[weights_] =
        make_tensor_map(weight.packed + weight.first / 2, 1, weight.columns / 2, n, weight.stride / 2,
                        Kernel::codes_box_bytes, Kernel::block_n, Swizzle::bytes128);
    const u64 groups = ceil_div<u64>(n, Kernel::block_n) * ceil_div<u64>(m, Kernel::max_m);
    sums_ += m * n;
    groups_ += groups;
    items_[weights_++] = groups * kernel_.sums.splits;
  }

  void run(StreamRef stream, Overlap overlap) {
    run_with(resident_blocks<Kernel>(Kernel::shared_bytes), stream, overlap);
  }
  /// With so many blocks at a time.
  void run_with(u64 resident, StreamRef stream, Overlap overlap) {
    const std::span<const u64> items(items_.data(), weights_);
    const u32 blocks = give_blocks(kernel_.product, shares_of_blocks(items, resident));
    launch({blocks, 1, weights_}, Kernel::shared_bytes, stream, kernel_, overlap);
  }

 private:
  Kernel kernel_{};
  std::array<u64, Kernel::max_weights> items_ = {};
  u64 sums_ = 0, groups_ = 0;
  u32 weights_ = 0;
};

/// A call's product, in so many splits. False: the current device has no code of the kernel, and nothing was launched.
template <class Half, class Kernel>
bool launch_fed_by_tma(const FourBitMatmulArguments& arguments, u32 splits, const MatmulMemory<Half>& memory,
                       StreamRef stream) {
  if (!is_loaded<Kernel>()) return false;
  const nibble_matmul& matmul = arguments.matmul;
  FourBitMatmulTmaLaunch<Half, Kernel> one(memory.x, memory.x_stride, static_cast<u32>(arguments.x.rows),
                                           arguments.x.columns, memory.sums(splits, arguments.n));
  for (u32 i = 0; i < matmul.product_count; ++i) {
    const FourBitMatmulArguments::Product& product = arguments.products[i];
    one.add(product.weight, matmul_output<Half>(product.y, product.given.bias, matmul.accumulate != 0));
  }
  one.run(stream, matmul.weights_are_ready != 0 ? Overlap::yes : Overlap::no);
  return true;
}

}  // namespace nibble::kernels
