// Compiles FourBitMatmul for all tuned_tiles and depths of prefetching. The library's own code launches them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "bench/kernels/tune/tune.hpp"
#include "kernels/host/four_bit_weight.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_launch.hpp"

namespace nibble::bench {

template <FourBitMatmulTile Tile, bool KeepsX> struct LaunchOf {
  using Kernel = kernels::FourBitMatmul<device::bf16, true, Tile, KeepsX>;
  using Launch = kernels::FourBitMatmulLaunch<device::bf16, Kernel>;

  static void launch(const TunedCall& call, const Variant& variant, cudaStream_t stream) {
    const std::uint64_t n = call.weight.rows, k = call.weight.columns;
    Launch one(static_cast<const device::bf16*>(call.x), static_cast<std::int64_t>(k), call.m, k,
               {call.partial, call.counters, variant.splits, static_cast<std::int64_t>(call.m * n)});
    one.add(kernels::operand_of(call.weight),
            {nullptr, static_cast<device::bf16*>(call.y), nullptr, static_cast<std::int64_t>(n), false});
    one.run({.capability = 0, .multiprocessors = 0, .max_kept_x_bytes = 0, .has_resident_grid = variant.is_resident}, 0,
            stream, variant.overlaps ? device::Overlap::yes : device::Overlap::no);
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
      to.push_back({tile, KeepsX, Of::Launch::fits, Of::launch});
    }
  };
  [&]<std::size_t... i>(std::index_sequence<i...>) { (add(std::integral_constant<std::size_t, i>{}), ...); }
  (std::make_index_sequence<tuned_tiles.size() * depths>{});
}

}  // namespace nibble::bench
