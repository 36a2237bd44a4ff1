#include "kernels/host/matmul/four_bit/four_bit_matmul_sm90.hpp"

#include "kernels/host/matmul/four_bit/four_bit_matmul_tma_launch.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_sm90.hpp"

namespace nibble::kernels {

template <class Half>
bool run_sm90(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, StreamRef stream) {
  const auto with_rows = [&]<u32 Rows>() {
    const auto launch = [&]<bool Nested>() {
      using Kernel = FourBitMatmulSm90<Half, Nested, Rows>;
      static_assert(Kernel::block_n == four_bit_matmul::sm90_block_n);
      static_assert(64 * Kernel::step_groups == four_bit_matmul::sm90_step_k);
      return launch_fed_by_tma<Half, Kernel>(arguments, arguments.sm90.splits, memory, stream);
    };
    return arguments.products[0].weight.absmax == nullptr ? launch.template operator()<true>()
                                                          : launch.template operator()<false>();
  };
  if (arguments.sm90.rows == 64) return with_rows.template operator()<64>();
  if (arguments.sm90.rows == 96) return with_rows.template operator()<96>();
  return with_rows.template operator()<128>();
}

template bool run_sm90<bf16>(const FourBitMatmulArguments&, const MatmulMemory<bf16>&, StreamRef);
template bool run_sm90<f16>(const FourBitMatmulArguments&, const MatmulMemory<f16>&, StreamRef);

}  // namespace nibble::kernels
