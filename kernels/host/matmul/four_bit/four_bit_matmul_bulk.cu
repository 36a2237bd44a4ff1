#include "kernels/host/matmul/four_bit/four_bit_matmul_bulk.hpp"

#include <utility>

#include "kernels/host/matmul/four_bit/four_bit_matmul_tma_launch.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_bulk.hpp"

namespace nibble::kernels {

template <class Half>
bool run_bulk(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, StreamRef stream) {
  using four_bit_matmul::bulk_choices;
  bool launched = false;
  const auto try_tile = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
    constexpr FourBitMatmulBulkTile tile = bulk_choices[i].tile;
    if (arguments.bulk.tile != tile) return;
    const auto launch = [&]<bool Nested>() {
      using Kernel = FourBitMatmulBulk<Half, Nested, tile>;
      return launch_fed_by_tma<Half, Kernel>(arguments, memory, arguments.bulk.tile_n, arguments.bulk.splits, stream);
    };
    launched = arguments.products[0].weight.absmax == nullptr ? launch.template operator()<true>()
                                                              : launch.template operator()<false>();
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
