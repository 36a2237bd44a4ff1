// Chooses a kernel for a product, checks the arguments, launches.
#include "kernels/four_bit_matmul.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/four_bit_matmul_any.hpp"
#include "kernels/interface.hpp"
#include "nibble/fp4.hpp"
#include "nibble/nf4.hpp"

namespace nibble::kernels {
namespace {

constexpr u64 max_tokens = 64;

/// Multiprocessors that splits are meant to fill: those of an H200. A constant, so that every device adds in the same
/// order.
constexpr u64 multiprocessors_to_fill = 132;

/// What a block does before its first weight and after its last (the table, the sums), in the bytes of weights that
/// the hot loop could read meanwhile: about 430 instructions of 256 threads, at 2.4 for a weight of 0.516 bytes.
constexpr u64 bytes_of_a_start = 24'000;

/// What all multiprocessors could read while a second kernel starts: about a microsecond, which is an estimate.
constexpr u64 bytes_of_a_launch = 4'000'000;

/// Blocks that share the inputs of a tile of rows, and what the product costs then.
struct Plan {
  u32 splits;
  u64 cost;  // the bytes that could be read meanwhile
};

/// As many splits as leave the fewest multiprocessors idle, by an estimate that has to promise a twentieth. Partial
/// sums are written and read, in the L2 cache, which counts half.
template <class Kernel> Plan plan_for(u64 m, u64 rows, u64 columns) {
  constexpr u64 slots = multiprocessors_to_fill * Kernel::min_blocks, max_splits = 16;
  const u64 tiles = ceil_div<u64>(rows, Kernel::rows);
  const u64 steps = std::max<u64>(1, ceil_div<u64>(columns, Kernel::inputs));
  Plan best{};
  for (u64 splits = 1; splits <= std::min(steps, max_splits); ++splits) {
    const u64 waves = ceil_div<u64>(tiles * splits, slots);
    const u64 bytes_of_a_block = Kernel::rows * ceil_div<u64>(steps, splits) * Kernel::inputs * 33 / 64;
    const u64 bytes_of_sums = splits > 1 ? bytes_of_a_launch + splits * m * rows * 4 : 0;
    const u64 cost = waves * slots * (bytes_of_a_block + bytes_of_a_start) + bytes_of_sums;
    if (best.splits == 0 || cost < (best.splits == 1 ? best.cost / 20 * 19 : best.cost))
      best = {static_cast<u32>(splits), cost};
  }
  return best;
}

/// Calls body.operator()<Kernel>() with the kernel for `m` tokens. Tiles with more rows read the tokens less often from
/// the L2 cache, but there are fewer of them for all multiprocessors. Up to 8 tokens the estimate decides.
template <class Half, bool Nested, class Body> decltype(auto) with_kernel(u64 m, u64 rows, u64 columns, Body&& body) {
  if (m <= 8) {
    using Rows16 = FourBitMatmul<Half, Nested, 1, 1, 8, 1>;
    using Rows32 = FourBitMatmul<Half, Nested, 1, 1, 8>;
    using Rows64 = FourBitMatmul<Half, Nested, 1, 2, 4>;
    const auto cost = [&]<class Kernel>() { return plan_for<Kernel>(m, rows, columns).cost; };
    const u64 rows16 = m <= Rows16::max_tokens ? cost.template operator()<Rows16>() : ~u64{0};
    const u64 rows32 = cost.template operator()<Rows32>(), rows64 = cost.template operator()<Rows64>();
    if (rows64 <= rows32 && rows64 <= rows16) return body.template operator()<Rows64>();
    if (rows32 <= rows16) return body.template operator()<Rows32>();
    return body.template operator()<Rows16>();
  }
  const bool few_rows = rows <= 8192;
  if (m <= 16 && few_rows) return body.template operator()<FourBitMatmul<Half, Nested, 2, 2, 4>>();
  if (m <= 16) return body.template operator()<FourBitMatmul<Half, Nested, 2, 4, 2>>();
  if (m <= 32) return body.template operator()<FourBitMatmul<Half, Nested, 4, 4, 2>>();
  if (few_rows) return body.template operator()<FourBitMatmul<Half, Nested, 8, 4, 2>>();
  return body.template operator()<FourBitMatmul<Half, Nested, 8, 8, 1>>();
}

std::size_t workspace_bytes_for(u64 m, u64 rows, u64 columns) {
  return with_kernel<bf16, true>(m, rows, columns, [&]<class Kernel>() -> std::size_t {
    const u32 splits = plan_for<Kernel>(m, rows, columns).splits;
    return splits == 1 ? 0 : splits * m * rows * sizeof(float);
  });
}

bool fits_tiles(const nibble_four_bit& weight, const nibble_matrix& x) {
  return weight.columns % 64 == 0 && weight.columns > 0 && weight.columns < u64{1} << 31 && weight.blocksize >= 64 &&
         weight.rows * (weight.columns / 64) < u64{1} << 32 && is_aligned(weight.packed, 8) && is_aligned(x.data, 16) &&
         (x.rows == 1 || x.stride % 8 == 0);
}

FourBitOperand operand(const nibble_four_bit& weight) {
  FourBitOperand operand{weight.packed,
                         weight.absmax,
                         weight.absmax_codes,
                         weight.nested_absmax,
                         weight.nested_codebook,
                         weight.nested_offset,
                         static_cast<i64>(weight.rows),
                         static_cast<i64>(weight.columns),
                         0,
                         {}};
  while (1u << operand.log2_blocksize < weight.blocksize) ++operand.log2_blocksize;
  std::memcpy(operand.value, weight.codebook == NIBBLE_NF4 ? nf4::codebook.value : fp4::codebook.value,
              sizeof operand.value);
  return operand;
}

template <class Half>
void matmul(const nibble_four_bit& weight, const nibble_matrix& x, const void* bias, const nibble_matrix& y,
            void* workspace, Stream stream) {
  const u32 m = static_cast<u32>(x.rows);
  const auto* tokens = static_cast<const Half*>(x.data);
  const auto x_stride = static_cast<i64>(x.stride);
  const MatmulOutput<Half> out{static_cast<const Half*>(bias), static_cast<Half*>(y.data), static_cast<i64>(y.stride)};
  if (!fits_tiles(weight, x)) {
    using Kernel = FourBitMatmulAny<Half>;
    launch({static_cast<u32>(ceil_div<u64>(weight.rows, Kernel::threads / 32)), ceil_div(m, Kernel::tokens)}, 0, stream,
           Kernel{operand(weight), tokens, x_stride, m, out});
    return;
  }
  const auto run_tiles = [&]<class Kernel>() {
    const u32 splits = plan_for<Kernel>(m, weight.rows, weight.columns).splits;
    auto* partial = splits == 1 ? nullptr : static_cast<float*>(workspace);
    launch({static_cast<u32>(ceil_div<u64>(weight.rows, Kernel::rows)), splits}, Kernel::shared_bytes(m), stream,
           Kernel{operand(weight), tokens, x_stride, m, out, partial});
    if (splits == 1) return;
    using Sum = SumPartials<Half>;
    launch({static_cast<u32>(ceil_div<u64>(weight.rows, Sum::threads)), m}, 0, stream,
           Sum{partial, splits, static_cast<i64>(weight.rows), out});
  };
  if (weight.absmax == nullptr)
    with_kernel<Half, true>(m, weight.rows, weight.columns, run_tiles);
  else
    with_kernel<Half, false>(m, weight.rows, weight.columns, run_tiles);
}

void check_product(const nibble_four_bit* weight, const nibble_matrix* x, const void* bias, const nibble_matrix* y) {
  const auto number = [](u64 n) { return std::to_string(n); };
  check_four_bit("weight", weight);
  check_matrix("x", x);
  check_matrix("y", y);
  if (x->dtype == NIBBLE_F32) refuse("x.dtype is F32, must be F16 or BF16");
  if (y->dtype != x->dtype) refuse("y.dtype is not x.dtype");
  if (x->rows < 1 || x->rows > max_tokens) refuse("x.rows is " + number(x->rows) + ", must be 1 to 64");
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

size_t nibble_matmul_four_bit_workspace(uint64_t m, uint64_t rows, uint64_t columns) {
  using namespace nibble::kernels;
  return workspace_bytes_for(std::min<u64>(m, max_tokens), rows, columns);
}

int nibble_matmul_four_bit(const nibble_four_bit* weight, const nibble_matrix* x, const void* bias,
                           const nibble_matrix* y, void* workspace, size_t workspace_bytes, nibble_stream stream) {
  using namespace nibble::kernels;
  return result_of([&] {
    check_product(weight, x, bias, y);
    check_workspace(workspace, workspace_bytes, workspace_bytes_for(x->rows, weight->rows, weight->columns));
    if (weight->rows == 0) return;
    if (x->dtype == NIBBLE_BF16)
      matmul<bf16>(*weight, *x, bias, *y, workspace, stream);
    else
      matmul<f16>(*weight, *x, bias, *y, workspace, stream);
  });
}
