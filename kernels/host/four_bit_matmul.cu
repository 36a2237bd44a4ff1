// Checks the arguments of a product and launches the kernel that its shape is for.
#include "kernels/four_bit_matmul.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/four_bit_matmul_any.hpp"
#include "kernels/host/four_bit_matmul_config.hpp"
#include "kernels/host/four_bit_weight.hpp"
#include "kernels/host/interface.hpp"

namespace nibble::kernels {
namespace {

/// Calls body.operator()<Kernel>() with the kernel of that tile, which is one of four_bit_matmul::choices.
template <class Half, bool Nested, class Body> void with_kernel(const FourBitMatmulTile& tile, Body&& body) {
  using four_bit_matmul::choices;
  const auto try_choice = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
    constexpr FourBitMatmulTile own = choices[i].tile;
    if (tile == own)
      body.template operator()<FourBitMatmul<Half, Nested, own.m_tiles, own.n_warps, own.k_warps, own.n_tiles>>();
  };
  const auto try_all = [&]<std::size_t... i>(std::index_sequence<i...>) {
    (try_choice(std::integral_constant<std::size_t, i>{}), ...);
  };
  try_all(std::make_index_sequence<choices.size()>{});
}

bool fits_tiles(const nibble_four_bit& weight, const nibble_matrix& x) {
  return weight.columns % 64 == 0 && weight.columns > 0 && weight.columns < u64{1} << 31 && weight.blocksize >= 64 &&
         weight.rows * (weight.columns / 64) < u64{1} << 32 && is_aligned(weight.packed, 8) && is_aligned(x.data, 16) &&
         (x.rows == 1 || x.stride % 8 == 0);
}

template <class Half>
void matmul(const nibble_four_bit& weight, const nibble_matrix& x, const void* bias, const nibble_matrix& y,
            void* workspace, StreamRef stream) {
  const u32 m = static_cast<u32>(x.rows);
  const u64 n = weight.rows, k = weight.columns;
  const auto* x_data = static_cast<const Half*>(x.data);
  const auto x_stride = static_cast<i64>(x.stride);
  const MatmulOutput<Half> out{static_cast<const Half*>(bias), static_cast<Half*>(y.data), static_cast<i64>(y.stride)};
  if (!fits_tiles(weight, x)) {
    using Kernel = FourBitMatmulAny<Half>;
    launch({static_cast<u32>(ceil_div<u64>(n, Kernel::block_n)), ceil_div(m, Kernel::block_m)}, 0, stream,
           Kernel{operand_of(weight), x_data, x_stride, m, out});
    return;
  }
  const four_bit_matmul::LaunchConfig config = four_bit_matmul::config_for(m, n, k);
  const auto run_tiles = [&]<class Kernel>() {
    const u32 splits = config.splits;
    auto* partial = splits == 1 ? nullptr : static_cast<float*>(workspace);
    launch({static_cast<u32>(ceil_div<u64>(n, Kernel::block_n)), splits}, Kernel::shared_bytes(m), stream,
           Kernel{operand_of(weight), x_data, x_stride, m, out, partial});
    if (splits == 1) return;
    using Sum = SumPartials<Half>;
    launch({static_cast<u32>(ceil_div<u64>(n, Sum::threads)), m}, 0, stream,
           Sum{partial, splits, static_cast<i64>(n), out});
  };
  if (weight.absmax == nullptr)
    with_kernel<Half, true>(config.tile, run_tiles);
  else
    with_kernel<Half, false>(config.tile, run_tiles);
}

void check_product(const nibble_four_bit* weight, const nibble_matrix* x, const void* bias, const nibble_matrix* y) {
  const auto number = [](u64 value) { return std::to_string(value); };
  check_four_bit("weight", weight);
  check_matrix("x", x);
  check_matrix("y", y);
  if (x->dtype == NIBBLE_F32) refuse("x.dtype is F32, must be F16 or BF16");
  if (y->dtype != x->dtype) refuse("y.dtype is not x.dtype");
  if (x->rows < 1 || x->rows > four_bit_matmul::max_m) refuse("x.rows is " + number(x->rows) + ", must be 1 to 64");
  if (x->columns != weight->columns)
    refuse("x.columns is " + number(x->columns) + ", weight.columns is " + number(weight->columns));
  if (y->rows != x->rows) refuse("y.rows is " + number(y->rows) + ", x.rows is " + number(x->rows));
  if (y->columns != weight->rows)
    refuse("y.columns is " + number(y->columns) + ", weight.rows is " + number(weight->rows));
  if (weight->rows >= u64{1} << 31) refuse("weight.rows is " + number(weight->rows) + ", must be less than 2^31");
  if (bias != nullptr) check_pointer("bias", bias, 2);
}

}  // namespace
}  // namespace nibble::kernels

size_t nibble_matmul_four_bit_workspace(uint64_t m, uint64_t n, uint64_t k) {
  using namespace nibble::kernels;
  const uint64_t taken = std::min<u64>(m, four_bit_matmul::max_m);
  return four_bit_matmul::workspace_bytes(four_bit_matmul::config_for(taken, n, k), taken, n);
}

int nibble_matmul_four_bit(const nibble_four_bit* weight, const nibble_matrix* x, const void* bias,
                           const nibble_matrix* y, void* workspace, size_t workspace_bytes, nibble_stream stream) {
  using namespace nibble::kernels;
  return result_of([&] {
    check_product(weight, x, bias, y);
    check_workspace(workspace, workspace_bytes,
                    nibble_matmul_four_bit_workspace(x->rows, weight->rows, weight->columns));
    if (weight->rows == 0) return;
    if (x->dtype == NIBBLE_BF16)
      matmul<bf16>(*weight, *x, bias, *y, workspace, stream);
    else
      matmul<f16>(*weight, *x, bias, *y, workspace, stream);
  });
}
