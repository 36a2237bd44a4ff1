// Compiles FourBitMatmulSm90, and launches it as the library does.
#include "bench/kernels/tune/tune.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_tma_launch.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_sm90.hpp"

namespace nibble::bench {
namespace {

using device::bf16;

template <std::uint32_t Rows>
using LaunchOf = kernels::FourBitMatmulTmaLaunch<bf16, kernels::FourBitMatmulSm90<bf16, true, Rows>>;

template <std::uint32_t Rows> void launch_rows(const TunedCall& call, std::uint32_t splits, cudaStream_t stream) {
  const std::uint64_t n = call.weight.rows, k = call.weight.columns;
  LaunchOf<Rows> one(static_cast<const bf16*>(call.x), static_cast<std::int64_t>(k), call.m, k,
                     {call.partial, call.counters, splits, static_cast<std::int64_t>(call.m * n)});
  one.add(call.weight, {nullptr, static_cast<bf16*>(call.y), nullptr, static_cast<std::int64_t>(n), false});
  one.run(stream, device::Overlap::no);
}

template <std::uint32_t Rows> void add(std::vector<ManyRowsKernel>& to) {
  if (device::is_loaded<typename LaunchOf<Rows>::Kernel>()) to.push_back({Rows, launch_rows<Rows>});
}

}  // namespace

std::vector<ManyRowsKernel> many_rows_kernels() {
  std::vector<ManyRowsKernel> all;
  add<64>(all);
  add<96>(all);
  add<128>(all);
  return all;
}

}  // namespace nibble::bench
