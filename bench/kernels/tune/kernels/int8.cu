// Compiles Int8Matmul for all tuned_int8_tiles. The library's own code launches them.
#include <cstddef>
#include <utility>

#include "bench/kernels/tune/int8.hpp"
#include "kernels/host/matmul/int8/int8_matmul_launch.hpp"

namespace nibble::bench {
namespace {

using device::bf16;

template <Int8MatmulTile Tile> void launch_tile(const Int8Call& call, std::uint32_t splits, cudaStream_t stream) {
  using Kernel = kernels::Int8Matmul<bf16, Tile>;
  const auto n = static_cast<std::int64_t>(call.weight.rows), k = static_cast<std::int64_t>(call.weight.columns);
  kernels::launch_int8_matmul<Kernel>(
      {reinterpret_cast<const device::u8*>(call.weight.codes), call.weight.absmax, n, k},
      static_cast<const bf16*>(call.x), k, call.m, {nullptr, static_cast<bf16*>(call.y), nullptr, n, false},
      {call.partial, call.counters, splits, static_cast<std::int64_t>(call.m) * n}, stream, device::Overlap::no);
}

template <std::size_t... i> std::vector<Int8Kernel> kernels_of(std::index_sequence<i...>) {
  return {{tuned_int8_tiles[i], launch_tile<tuned_int8_tiles[i]>}...};
}

}  // namespace

std::vector<Int8Kernel> int8_kernels() { return kernels_of(std::make_index_sequence<tuned_int8_tiles.size()>{}); }

}  // namespace nibble::bench
