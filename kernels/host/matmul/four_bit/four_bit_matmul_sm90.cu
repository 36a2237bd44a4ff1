#include "kernels/host/matmul/four_bit/four_bit_matmul_sm90.hpp"

#include <cstddef>

#include "kernels/host/matmul/four_bit/four_bit_matmul_tma_launch.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_sm90.hpp"

namespace nibble::kernels {
namespace {

struct Kernels {
  static constexpr auto& choices = four_bit_matmul::sm90_choices;
  template <class Half, bool Nested, std::size_t i> using Kernel = FourBitMatmulSm90<Half, Nested, choices[i].tile>;
};

}  // namespace

template <class Half>
bool run_sm90(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, StreamRef stream) {
  return launch_chosen<Kernels>(arguments.sm90, arguments, memory, stream);
}

template bool run_sm90<bf16>(const FourBitMatmulArguments&, const MatmulMemory<bf16>&, StreamRef);
template bool run_sm90<f16>(const FourBitMatmulArguments&, const MatmulMemory<f16>&, StreamRef);

}  // namespace nibble::kernels
