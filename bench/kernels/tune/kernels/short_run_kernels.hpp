// Compiles FourBitMatmul for weights that are made of runs shorter than 64
// (kernels/matmul/four_bit/four_bit_matmul_run.hpp), for each of tuned_tiles_of_short_runs as the library has it or
// would have it, and with one thing in its loop changed.
#pragma once
#include "bench/kernels/tune/kernels/kernels.hpp"
#include "bench/kernels/tune/short_runs.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"

namespace nibble::bench {

/// The tile with the loop of that number; 0 is its own. Kernels of short runs have no prefetching.
constexpr FourBitMatmulTile with_loop(FourBitMatmulTile tile, std::size_t loop) {
  using kernels::XBarrier;
  if (loop == 1) tile.barrier = tile.barrier == XBarrier::block ? XBarrier::group : XBarrier::block;
  if (loop == 2) tile.loads_first = !tile.loads_first;
  return tile;
}

/// The tile as the library compiles it, if it does.
constexpr FourBitMatmulTile of_library(FourBitMatmulTile tile) {
  for (const auto& choice : kernels::four_bit_matmul::choices_of_short_runs) {
    FourBitMatmulTile sizes = choice.tile;
    sizes.barrier = tile.barrier;
    sizes.loads_first = tile.loads_first;
    if (sizes == tile) return choice.tile;
  }
  return tile;
}

template <std::uint32_t Run> void add_short_run_kernels(TunedKernels& to) {
  constexpr const auto& tiles = tuned_tiles_of_short_runs;
  constexpr std::size_t loops = 3;
  const auto add = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
    constexpr FourBitMatmulTile own = of_library(with_run(tiles[i / loops], Run)), tile = with_loop(own, i % loops);
    // If all warps of a block read the same part of k, both barriers are the same. Codes that are copied to shared
    // memory are always asked for in time.
    constexpr bool is_another[loops] = {true, tile.k_warps > 1, !tile.copies_codes()};
    if constexpr (is_another[i % loops]) {
      using Of = LaunchOf<tile, false>;
      to.push_back({tile, false, Of::Launch::fits, Of::launch});
    }
  };
  [&]<std::size_t... i>(std::index_sequence<i...>) { (add(std::integral_constant<std::size_t, i>{}), ...); }
  (std::make_index_sequence<tiles.size() * loops>{});
}

}  // namespace nibble::bench
