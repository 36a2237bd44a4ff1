// What the kernels that TMA feeds (FourBitMatmulBulk, FourBitMatmulSm90) are launched with: here for the library, and
// for bench_tune and tests, which launch the kernels themselves.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <vector>

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
  FourBitMatmulTmaLaunch(const Half* x, i64 x_stride, u32 m, u64 k, const SplitSums& sums, u32 tile_n = Kernel::block_n)
      : tile_n_(tile_n), cluster_(splits_are_clusters ? sums.splits : 1) {
    const u64 map_stride = m == 1 ? k : static_cast<u64>(x_stride);
    kernel_.x_map = make_tensor_map(x, sizeof(Half), k, m, map_stride * sizeof(Half), Kernel::x_box_columns,
                                    Kernel::max_m, Swizzle::bytes128);
    kernel_.m = m;
    if constexpr (splits_are_clusters) {
      kernel_.x = x;
      kernel_.x_stride = x_stride;
      kernel_.groups = static_cast<u32>(k / 64);
      kernel_.log2_splits = static_cast<u32>(std::countr_zero(sums.splits));
      kernel_.tile_n = tile_n;
    } else {
      kernel_.sums = sums;
    }
  }

  /// The next weight, whose stride is not 0. There may be max_weights.
  void add(const nibble_four_bit& weight, const MatmulOutput<Half>& output) {
    const u64 m = kernel_.m, n = weight.rows;
    kernel_.product[weights_] = {operand_of(weight), output, static_cast<i64>(sums_), static_cast<u32>(groups_), 0};
    kernel_.codes_map[weights_] =
        make_tensor_map(weight.packed + weight.first / 2, 1, weight.columns / 2, n, weight.stride / 2,
                        Kernel::codes_box_bytes, tile_n_, Swizzle::bytes128);
    const u64 groups = ceil_div<u64>(n, tile_n_) * ceil_div<u64>(m, Kernel::max_m);
    sums_ += m * n;
    groups_ += groups;
    items_[weights_] = groups;
    if constexpr (splits_are_clusters)
      kernel_.tiles[weights_] = static_cast<u32>(groups);
    else
      items_[weights_] *= kernel_.sums.splits;
    ++weights_;
  }

  /// Whether the device has room for the blocks that divide k.
  [[nodiscard]] bool fits_device() const {
    if constexpr (splits_are_clusters)
      return resident_clusters<Kernel>(cluster_, Kernel::shared_bytes) > 0;
    else
      return true;
  }

  void run(StreamRef stream, Overlap overlap) {
    if constexpr (splits_are_clusters)
      run_with(resident_clusters<Kernel>(cluster_, Kernel::shared_bytes), stream, overlap);
    else
      run_with(resident_blocks<Kernel>(Kernel::shared_bytes), stream, overlap);
  }
  /// With so many blocks or clusters at a time.
  void run_with(u64 resident, StreamRef stream, Overlap overlap) {
    const std::span<const u64> items(items_.data(), weights_);
    const std::vector<u32> shares = shares_of_blocks(items, resident);
    if constexpr (splits_are_clusters) std::copy(shares.begin(), shares.end(), kernel_.clusters);
    const u32 blocks = cluster_ * give_blocks(kernel_.product, shares);
    launch({blocks, 1, weights_}, Kernel::shared_bytes, stream, kernel_, overlap, cluster_);
  }

 private:
  /// The blocks that divide k are a cluster, which adds its sums itself.
  static constexpr bool splits_are_clusters = requires(Kernel kernel) { kernel.clusters; };

  Kernel kernel_{};
  u32 tile_n_, cluster_;
  std::array<u64, Kernel::max_weights> items_ = {};
  u64 sums_ = 0, groups_ = 0;
  u32 weights_ = 0;
};

/// A call's product, in so many splits, and in tiles of tile_n if the kernel takes others than block_n. False: the
/// current device has no code of the kernel or no room for its clusters, and nothing was launched.
template <class Half, class Kernel>
bool launch_fed_by_tma(const FourBitMatmulArguments& arguments, u32 splits, const MatmulMemory<Half>& memory,
                       StreamRef stream, u32 tile_n = Kernel::block_n) {
  if (!is_loaded<Kernel>()) return false;
  const nibble_matmul& matmul = arguments.matmul;
  FourBitMatmulTmaLaunch<Half, Kernel> one(memory.x, memory.x_stride, static_cast<u32>(arguments.x.rows),
                                           arguments.x.columns, memory.sums(splits, arguments.n), tile_n);
  for (u32 i = 0; i < matmul.product_count; ++i) {
    const FourBitMatmulArguments::Product& product = arguments.products[i];
    one.add(product.weight, matmul_output<Half>(product.y, product.given.bias, matmul.accumulate != 0));
  }
  if (!one.fits_device()) return false;
  one.run(stream, matmul.weights_are_ready != 0 ? Overlap::yes : Overlap::no);
  return true;
}

}  // namespace nibble::kernels
