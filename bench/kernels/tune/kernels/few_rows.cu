// Compiles FourBitMatmulFewRows in more tiles than the library, and launches it as the library does.
#include <algorithm>

#include "bench/kernels/tune/tune.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_tma_launch.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_few_rows.hpp"

namespace nibble::bench {
namespace {

using device::bf16;
using kernels::FourBitMatmulFewRowsTile;

template <FourBitMatmulFewRowsTile Tile>
using LaunchOf = kernels::FourBitMatmulTmaLaunch<bf16, kernels::FourBitMatmulFewRows<bf16, true, Tile>>;

template <FourBitMatmulFewRowsTile Tile>
void launch_tile(const TunedCall& call, std::uint32_t tile_n, std::uint32_t splits, cudaStream_t stream) {
  const std::uint64_t n = call.weight.rows, k = call.weight.columns;
  LaunchOf<Tile> one(static_cast<const bf16*>(call.x), static_cast<std::int64_t>(k), call.m, k, tile_n, splits);
  one.add(call.weight, {nullptr, static_cast<bf16*>(call.y), nullptr, static_cast<std::int64_t>(n), false});
  one.run(stream, device::Overlap::yes);
}

template <FourBitMatmulFewRowsTile Tile> void add(std::vector<FewRowsKernel>& to) {
  if (device::is_loaded<typename LaunchOf<Tile>::Kernel>()) to.push_back({Tile, launch_tile<Tile>});
}

}  // namespace

std::vector<FewRowsKernel> few_rows_kernels() {
  std::vector<FewRowsKernel> all;  // m_tiles, n_warps, k_warps
  add<FourBitMatmulFewRowsTile{1, 1, 16}>(all);
  add<FourBitMatmulFewRowsTile{1, 2, 8}>(all);
  add<FourBitMatmulFewRowsTile{1, 4, 4}>(all);
  add<FourBitMatmulFewRowsTile{2, 2, 8}>(all);
  add<FourBitMatmulFewRowsTile{2, 4, 4}>(all);
  return all;
}

}  // namespace nibble::bench
