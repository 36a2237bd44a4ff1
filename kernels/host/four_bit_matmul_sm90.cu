#include "kernels/host/four_bit_matmul_sm90.hpp"

#include <algorithm>

#include "kernels/four_bit_matmul_sm90.hpp"
#include "kernels/host/four_bit_weight.hpp"

namespace nibble::kernels {
namespace {

template <class Kernel, class Half>
bool launch_sm90(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, StreamRef stream) {
  static_assert(Kernel::block_n == four_bit_matmul::sm90_block_n);
  static_assert(64 * Kernel::step_groups == four_bit_matmul::sm90_step_k);
  if (!is_loaded<Kernel>()) return false;
  const u32 m = static_cast<u32>(arguments.x.rows), splits = arguments.sm90.splits;
  const u64 k = arguments.x.columns;
  Kernel kernel{.product = {}, .codes_map = {}, .x_map = {}, .m = m, .sums = memory.sums(splits, arguments.n)};
  kernel.x_map = make_tensor_map(memory.x, sizeof(Half), k, m, static_cast<u64>(memory.x_stride) * sizeof(Half),
                                 Kernel::x_box_columns, Kernel::max_m, Swizzle::bytes128);
  u64 sums = 0, groups = 0, max_items = 0;
  for (u32 i = 0; i < arguments.matmul.product_count; ++i) {
    const FourBitMatmulArguments::Product& product = arguments.products[i];
    const nibble_four_bit& weight = product.weight;
    kernel.product[i] = {operand_of(weight),
                         matmul_output<Half>(product.y, product.given.bias, arguments.matmul.accumulate != 0),
                         static_cast<i64>(sums), static_cast<u32>(groups)};
    kernel.codes_map[i] = make_tensor_map(weight.packed + weight.first / 2, 1, k / 2, product.n, weight.stride / 2,
                                          Kernel::codes_box_bytes, Kernel::block_n, Swizzle::bytes128);
    const u64 of_product = ceil_div<u64>(product.n, Kernel::block_n) * ceil_div<u64>(m, Kernel::max_m);
    sums += m * product.n;
    groups += of_product;
    max_items = std::max(max_items, of_product * splits);
  }
  launch({resident_grid<Kernel>(max_items).x, 1, arguments.matmul.product_count}, Kernel::shared_bytes, stream, kernel,
         arguments.matmul.weights_are_ready != 0 ? Overlap::yes : Overlap::no);
  return true;
}

}  // namespace

template <class Half>
bool run_sm90(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, StreamRef stream) {
  const auto with_rows = [&]<u32 Rows>() {
    if (arguments.products[0].weight.absmax == nullptr)
      return launch_sm90<FourBitMatmulSm90<Half, true, Rows>>(arguments, memory, stream);
    return launch_sm90<FourBitMatmulSm90<Half, false, Rows>>(arguments, memory, stream);
  };
  if (arguments.sm90.rows == 64) return with_rows.template operator()<64>();
  if (arguments.sm90.rows == 96) return with_rows.template operator()<96>();
  return with_rows.template operator()<128>();
}

template bool run_sm90<bf16>(const FourBitMatmulArguments&, const MatmulMemory<bf16>&, StreamRef);
template bool run_sm90<f16>(const FourBitMatmulArguments&, const MatmulMemory<f16>&, StreamRef);

}  // namespace nibble::kernels
