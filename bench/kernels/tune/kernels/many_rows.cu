// Compiles FourBitMatmulSm90 in more tiles than the library, and launches it as the library does.
#include "bench/kernels/tune/tune.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_tma_launch.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_sm90.hpp"

namespace nibble::bench {
namespace {

using device::bf16;
using kernels::FourBitMatmulSm90Tile;

template <FourBitMatmulSm90Tile Tile>
using LaunchOf = kernels::FourBitMatmulTmaLaunch<bf16, kernels::FourBitMatmulSm90<bf16, true, Tile>>;

template <FourBitMatmulSm90Tile Tile>
void launch_tile(const TunedCall& call, std::uint32_t tile_n, std::uint32_t splits, cudaStream_t stream) {
  const std::uint64_t n = call.weight.rows, k = call.weight.columns;
  LaunchOf<Tile> one(static_cast<const bf16*>(call.x), static_cast<std::int64_t>(k), call.m, k, tile_n, splits);
  one.add(call.weight, {nullptr, static_cast<bf16*>(call.y), nullptr, static_cast<std::int64_t>(n), false});
  one.run(stream, device::Overlap::yes);
}

template <FourBitMatmulSm90Tile Tile> void add(std::vector<ManyRowsKernel>& to) {
  if (device::is_loaded<typename LaunchOf<Tile>::Kernel>()) to.push_back({Tile, launch_tile<Tile>});
}

}  // namespace

std::vector<ManyRowsKernel> many_rows_kernels() {
  std::vector<ManyRowsKernel> all;  // rows, n_warpgroups, k_warpgroups
  add<FourBitMatmulSm90Tile{32, 2, 2}>(all);
  add<FourBitMatmulSm90Tile{32, 4, 1}>(all);
  add<FourBitMatmulSm90Tile{64, 2, 2}>(all);
  add<FourBitMatmulSm90Tile{64, 3, 1}>(all);
  add<FourBitMatmulSm90Tile{64, 4, 1}>(all);
  add<FourBitMatmulSm90Tile{96, 3, 1}>(all);
  add<FourBitMatmulSm90Tile{128, 2, 1}>(all);
  return all;
}

}  // namespace nibble::bench
