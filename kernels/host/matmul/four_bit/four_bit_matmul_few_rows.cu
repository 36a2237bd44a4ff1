#include "kernels/host/matmul/four_bit/four_bit_matmul_few_rows.hpp"

#include <cstddef>

#include "kernels/host/matmul/four_bit/four_bit_matmul_tma_launch.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_few_rows.hpp"

namespace nibble::kernels {
namespace {

struct Kernels {
  static constexpr auto& choices = four_bit_matmul::few_rows_choices;
  template <class Half, bool Nested, std::size_t i> using Kernel = FourBitMatmulFewRows<Half, Nested, choices[i].tile>;
};

}  // namespace

template <class Half>
bool run_few_rows(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, StreamRef stream) {
  return launch_chosen<Kernels>(arguments.few_rows, arguments, memory, stream);
}

template bool run_few_rows<bf16>(const FourBitMatmulArguments&, const MatmulMemory<bf16>&, StreamRef);
template bool run_few_rows<f16>(const FourBitMatmulArguments&, const MatmulMemory<f16>&, StreamRef);

}  // namespace nibble::kernels
