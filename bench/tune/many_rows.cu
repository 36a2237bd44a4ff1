// Compiles FourBitMatmulSm90, and launches it as the library does (kernels/host/four_bit_matmul_sm90.cu).
#include "bench/tune.hpp"
#include "kernels/device/stream.hpp"
#include "kernels/four_bit_matmul_sm90.hpp"
#include "kernels/host/four_bit_weight.hpp"

namespace nibble::bench {
namespace {

template <std::uint32_t Rows> void launch_rows(const TunedCall& call, std::uint32_t splits, cudaStream_t stream) {
  using Kernel = kernels::FourBitMatmulSm90<device::bf16, true, Rows>;
  const std::uint64_t n = call.weight.rows, k = call.weight.columns, m = call.m;
  Kernel kernel{.product = {},
                .codes_map = {},
                .x_map = device::make_tensor_map(call.x, 2, k, m, 2 * k, Kernel::x_box_columns, Kernel::max_m,
                                                 device::Swizzle::bytes128),
                .m = call.m,
                .sums = {call.partial, call.counters, splits, static_cast<std::int64_t>(m * n)}};
  kernel.product[0] = {kernels::operand_of(call.weight),
                       {nullptr, static_cast<device::bf16*>(call.y), nullptr, static_cast<std::int64_t>(n), false},
                       0,
                       0};
  kernel.codes_map[0] = device::make_tensor_map(call.weight.packed, 1, k / 2, n, k / 2, Kernel::codes_box_bytes,
                                                Kernel::block_n, device::Swizzle::bytes128);
  const std::uint64_t groups =
      device::ceil_div<std::uint64_t>(n, Kernel::block_n) * device::ceil_div<std::uint64_t>(m, Rows);
  device::launch(device::resident_grid<Kernel>(groups * splits), Kernel::shared_bytes, stream, kernel);
}

}  // namespace

std::vector<ManyRowsKernel> many_rows_kernels() {
  if (device::capability() != 90) return {};
  return {{64, launch_rows<64>}, {96, launch_rows<96>}, {128, launch_rows<128>}};
}

}  // namespace nibble::bench
