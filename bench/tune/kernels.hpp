// Compiles FourBitMatmul for all tuned_tiles and depths of prefetching, and launches it as the library does
// (kernels/host/four_bit_matmul.cu).
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "bench/tune.hpp"
#include "kernels/device/stream.hpp"
#include "kernels/four_bit_matmul.hpp"
#include "kernels/host/four_bit_weight.hpp"

namespace nibble::bench {

template <FourBitMatmulTile Tile, bool KeepsX> struct LaunchOf {
  using Kernel = kernels::FourBitMatmul<device::bf16, true, Tile, KeepsX>;

  static bool fits(std::uint64_t m, std::uint64_t k) {
    return m <= Kernel::max_m && Kernel::shared_bytes(static_cast<std::uint32_t>(m), k) <= Kernel::shared_limit;
  }
  static void launch(const TunedCall& call, const Variant& variant, cudaStream_t stream) {
    const std::uint64_t n = call.weight.rows, k = call.weight.columns;
    Kernel kernel{.product = {},
                  .x = static_cast<const device::bf16*>(call.x),
                  .x_stride = static_cast<std::int64_t>(k),
                  .m = call.m,
                  .sums = {call.partial, call.counters, variant.splits, static_cast<std::int64_t>(call.m * n)},
                  .ends = nullptr};
    kernel.product[0] = {kernels::operand_of(call.weight),
                         {nullptr, static_cast<device::bf16*>(call.y), nullptr, static_cast<std::int64_t>(n), false},
                         0,
                         0};
    const std::uint64_t items = device::ceil_div<std::uint64_t>(n, Kernel::block_n) * variant.splits;
    const auto blocks =
        variant.is_resident ? device::resident_grid<Kernel>(items).x : static_cast<std::uint32_t>(items);
    device::launch({blocks}, Kernel::shared_bytes(call.m, k), stream, kernel,
                   variant.overlaps ? device::Overlap::yes : device::Overlap::no);
  }
};

/// Adds the kernels of all tiles that wait and load in this way. Of those that keep x, in which a step waits for
/// nothing, there is one way only.
template <kernels::XBarrier Barrier, bool LoadsFirst, bool KeepsX> void add_kernels(TunedKernels& to) {
#if !defined(NIBBLE_BENCH_SIMULATED)
  constexpr std::size_t depths = 5;
#else
  constexpr std::size_t depths = Barrier == kernels::XBarrier::group && LoadsFirst && !KeepsX ? 2 : 1;
#endif
  const auto add = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
    constexpr FourBitMatmulTile sizes = tuned_tiles[i / depths];
    constexpr FourBitMatmulTile tile{sizes.m_tiles, sizes.n_warps, sizes.k_warps, sizes.n_tiles,
                                     Barrier,       LoadsFirst,    i % depths};
    // If all warps of a block read the same part of k, both barriers are the same.
    constexpr bool is_double = Barrier == kernels::XBarrier::block && tile.k_warps == 1;
    if constexpr (!is_double && (!KeepsX || tile.m_tiles == 1)) {
      using Of = LaunchOf<tile, KeepsX>;
      to.push_back({tile, KeepsX, Of::fits, Of::launch});
    }
  };
  [&]<std::size_t... i>(std::index_sequence<i...>) { (add(std::integral_constant<std::size_t, i>{}), ...); }
  (std::make_index_sequence<tuned_tiles.size() * depths>{});
}

}  // namespace nibble::bench
