// What FourBitMatmulBulk is launched with: here for the library, and for tests, which launch the kernel itself.
#pragma once
#include <array>
#include <span>

#include "kernels/device/stream.hpp"
#include "kernels/host/four_bit_weight.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_launch.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_bulk.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels {

/// One launch. The rows of x [m, k] are `x_stride` elements apart, and `sums` counts the n of all weights.
template <class Half, bool Nested, FourBitMatmulBulkTile Tile> class FourBitMatmulBulkLaunch {
 public:
  using Kernel = FourBitMatmulBulk<Half, Nested, Tile>;

  /// A map needs a stride of whole 16 bytes, which one row of x need not have.
  FourBitMatmulBulkLaunch(const Half* x, i64 x_stride, u32 m, u64 k, const SplitSums& sums)
      : kernel_{
            .product = {},
            .codes_map = {},
            .x_map = make_tensor_map(x, sizeof(Half), k, m, (m == 1 ? k : static_cast<u64>(x_stride)) * sizeof(Half),
                                     Kernel::x_box_columns, Kernel::max_m, Swizzle::bytes128),
            .x = x,
            .x_stride = x_stride,
            .m = m,
            .sums = sums} {}

  /// The next weight, whose stride is not 0. There may be max_weights.
  void add(const nibble_four_bit& weight, const MatmulOutput<Half>& output) {
    const u64 n = weight.rows, tiles = ceil_div<u64>(n, Kernel::block_n);
    kernel_.product[weights_] = {operand_of(weight), output, static_cast<i64>(sums_), static_cast<u32>(groups_), 0};
    kernel_.codes_map[weights_] =
        make_tensor_map(weight.packed + weight.first / 2, 1, weight.columns / 2, n, weight.stride / 2,
                        Kernel::codes_box_bytes, Kernel::block_n, Swizzle::bytes128);
    sums_ += kernel_.m * n;
    groups_ += tiles;
    items_[weights_++] = tiles * kernel_.sums.splits;
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
  Kernel kernel_;
  std::array<u64, Kernel::max_weights> items_ = {};
  u64 sums_ = 0, groups_ = 0;
  u32 weights_ = 0;
};

}  // namespace nibble::kernels
