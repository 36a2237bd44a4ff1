// What the kernels that TMA feeds (FourBitMatmulFewRows, FourBitMatmulSm90) are launched with: here for the library,
// and for bench_tune and tests, which launch the kernels themselves.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/device/stream.hpp"
#include "kernels/host/four_bit_weight.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_arguments.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_launch.hpp"
#include "kernels/host/matmul/matmul_memory.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels {

/// One launch of a kernel for x of Half, in tiles of tile_n, where clusters of `splits` blocks divide k. The rows of x
/// [m, k] are `x_stride` elements apart.
template <class Half, class OwnKernel> class FourBitMatmulTmaLaunch {
 public:
  using Kernel = OwnKernel;

  /// A map needs a stride of whole 16 bytes, which one row of x need not have.
  FourBitMatmulTmaLaunch(const Half* x, i64 x_stride, u32 m, u64 k, u32 tile_n, u32 splits)
      : tile_n_(tile_n), cluster_(splits) {
    const u64 map_stride = m == 1 ? k : static_cast<u64>(x_stride);
    kernel_.x_map = make_tensor_map(x, sizeof(Half), k, m, map_stride * sizeof(Half), Kernel::x_box_columns,
                                    Kernel::max_m, Swizzle::bytes128);
    kernel_.m = m;
    kernel_.groups = static_cast<u32>(k / 64);
    kernel_.log2_splits = static_cast<u32>(std::countr_zero(splits));
    kernel_.tile_n = tile_n;
    if constexpr (requires { kernel_.x; }) {
      kernel_.x = x;
      kernel_.x_stride = x_stride;
    }
  }

  /// The next weight, whose stride is not 0. There may be max_weights.
  void add(const nibble_four_bit& weight, const MatmulOutput<Half>& output) {
    const u64 n = weight.rows;
    kernel_.product[weights_] = {operand_of(weight), output, 0, 0, 0};
    kernel_.codes_map[weights_] =
        make_tensor_map(weight.packed + weight.first / 2, 1, weight.columns / 2, n, weight.stride / 2,
                        Kernel::codes_box_bytes, tile_n_, Swizzle::bytes128);
    const u64 items = ceil_div<u64>(n, tile_n_) * ceil_div<u64>(kernel_.m, Kernel::max_m);
    items_[weights_] = items;
    kernel_.items[weights_++] = static_cast<u32>(items);
  }

  /// Whether the device has room for the blocks that divide k.
  [[nodiscard]] bool fits_device() const { return resident_clusters<Kernel>(cluster_, Kernel::shared_bytes) > 0; }

  void run(StreamRef stream, Overlap overlap) {
    run_with(resident_clusters<Kernel>(cluster_, Kernel::shared_bytes), stream, overlap);
  }
  /// With so many clusters at a time.
  void run_with(u64 resident, StreamRef stream, Overlap overlap) {
    const std::span<const u64> items(items_.data(), weights_);
    const std::vector<u32> shares = shares_of_blocks(items, resident);
    std::copy(shares.begin(), shares.end(), kernel_.clusters);
    const u32 blocks = cluster_ * *std::max_element(shares.begin(), shares.end());
    launch({blocks, 1, weights_}, Kernel::shared_bytes, stream, kernel_, overlap, cluster_);
  }

 private:
  Kernel kernel_{};
  u32 tile_n_, cluster_;
  std::array<u64, Kernel::max_weights> items_ = {};
  u32 weights_ = 0;
};

/// A call's product by the kernel whose tile was chosen: Kernels::Kernel<Half, Nested, i> of Kernels::choices[i].
/// False: the current device has no code of the kernel or no room for its clusters, and nothing was launched.
template <class Kernels, class Half, class Config>
bool launch_chosen(const Config& config, const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory,
                   StreamRef stream) {
  const nibble_matmul& matmul = arguments.matmul;
  const auto launch = [&]<class Kernel>(std::type_identity<Kernel>) {
    if (!is_loaded<Kernel>()) return false;
    FourBitMatmulTmaLaunch<Half, Kernel> one(memory.x, memory.x_stride, static_cast<u32>(arguments.x.rows),
                                             arguments.x.columns, config.tile_n, config.splits);
    for (u32 i = 0; i < matmul.product_count; ++i) {
      const FourBitMatmulArguments::Product& product = arguments.products[i];
      one.add(product.weight, matmul_output<Half>(product.y, product.given.bias, matmul.accumulate != 0));
    }
    if (!one.fits_device()) return false;
    one.run(stream, matmul.weights_are_ready != 0 ? Overlap::yes : Overlap::no);
    return true;
  };
  const auto launch_if_chosen = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
    if (config.tile != Kernels::choices[i].tile) return false;
    return arguments.products[0].weight.absmax == nullptr
               ? launch(std::type_identity<typename Kernels::template Kernel<Half, true, i>>())
               : launch(std::type_identity<typename Kernels::template Kernel<Half, false, i>>());
  };
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return (launch_if_chosen(std::integral_constant<std::size_t, i>()) || ...);
  }
  (std::make_index_sequence<Kernels::choices.size()>());
}

}  // namespace nibble::kernels
