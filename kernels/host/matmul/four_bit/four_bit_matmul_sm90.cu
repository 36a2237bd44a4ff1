#include "kernels/host/matmul/four_bit/four_bit_matmul_sm90.hpp"

#include <utility>

#include "kernels/host/matmul/four_bit/four_bit_matmul_tma_launch.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_sm90.hpp"

namespace nibble::kernels {

template <class Half>
bool run_sm90(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, StreamRef stream) {
  using four_bit_matmul::sm90_choices;
  const four_bit_matmul::Sm90Config& config = arguments.sm90;
  bool launched = false;
  const auto try_tile = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
    constexpr FourBitMatmulSm90Tile tile = sm90_choices[i].tile;
    if (config.tile != tile) return;
    const auto launch = [&]<bool Nested>() {
      using Kernel = FourBitMatmulSm90<Half, Nested, tile>;
      return launch_fed_by_tma<Half, Kernel>(arguments, memory, config.tile_n, config.splits, stream);
    };
    launched = arguments.products[0].weight.absmax == nullptr ? launch.template operator()<true>()
                                                              : launch.template operator()<false>();
  };
  const auto try_all = [&]<std::size_t... i>(std::index_sequence<i...>) {
    (try_tile(std::integral_constant<std::size_t, i>{}), ...);
  };
  try_all(std::make_index_sequence<sm90_choices.size()>{});
  return launched;
}

template bool run_sm90<bf16>(const FourBitMatmulArguments&, const MatmulMemory<bf16>&, StreamRef);
template bool run_sm90<f16>(const FourBitMatmulArguments&, const MatmulMemory<f16>&, StreamRef);

}  // namespace nibble::kernels
