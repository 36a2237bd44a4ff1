#include "kernels/host/matmul/four_bit/four_bit_matmul_bulk.hpp"

#include <utility>

#include "kernels/host/matmul/four_bit/four_bit_matmul_bulk_launch.hpp"

namespace nibble::kernels {
namespace {

template <class Half, bool Nested, FourBitMatmulBulkTile Tile>
bool launch_bulk(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, StreamRef stream) {
  using Launch = FourBitMatmulBulkLaunch<Half, Nested, Tile>;
  if (!is_loaded<typename Launch::Kernel>()) return false;
  const nibble_matmul& matmul = arguments.matmul;
  Launch one(memory.x, memory.x_stride, static_cast<u32>(arguments.x.rows), arguments.x.columns,
             memory.sums(arguments.bulk.splits, arguments.n));
  for (u32 i = 0; i < matmul.product_count; ++i) {
    const FourBitMatmulArguments::Product& product = arguments.products[i];
    one.add(product.weight, matmul_output<Half>(product.y, product.given.bias, matmul.accumulate != 0));
  }
  one.run(stream, matmul.weights_are_ready != 0 ? Overlap::yes : Overlap::no);
  return true;
}

}  // namespace

template <class Half>
bool run_bulk(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, StreamRef stream) {
  using four_bit_matmul::bulk_choices;
  bool launched = false;
  const auto try_tile = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
    constexpr FourBitMatmulBulkTile tile = bulk_choices[i].tile;
    if (arguments.bulk.tile != tile) return;
    launched = arguments.products[0].weight.absmax == nullptr
                   ? launch_bulk<Half, true, tile>(arguments, memory, stream)
                   : launch_bulk<Half, false, tile>(arguments, memory, stream);
  };
  const auto try_all = [&]<std::size_t... i>(std::index_sequence<i...>) {
    (try_tile(std::integral_constant<std::size_t, i>{}), ...);
  };
  try_all(std::make_index_sequence<bulk_choices.size()>{});
  return launched;
}

template bool run_bulk<bf16>(const FourBitMatmulArguments&, const MatmulMemory<bf16>&, StreamRef);
template bool run_bulk<f16>(const FourBitMatmulArguments&, const MatmulMemory<f16>&, StreamRef);

}  // namespace nibble::kernels
