#include "kernels/host/matmul/four_bit/four_bit_matmul_sm90.hpp"

#include "kernels/host/matmul/four_bit/four_bit_matmul_sm90_launch.hpp"

namespace nibble::kernels {
namespace {

template <class Half, bool Nested, u32 Rows>
bool launch_sm90(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, StreamRef stream) {
  using Launch = FourBitMatmulSm90Launch<Half, Nested, Rows>;
  if (!is_loaded<typename Launch::Kernel>()) return false;
  const nibble_matmul& matmul = arguments.matmul;
  Launch one(memory.x, memory.x_stride, static_cast<u32>(arguments.x.rows), arguments.x.columns,
             memory.sums(arguments.sm90.splits, arguments.n));
  for (u32 i = 0; i < matmul.product_count; ++i) {
    const FourBitMatmulArguments::Product& product = arguments.products[i];
    one.add(product.weight, matmul_output<Half>(product.y, product.given.bias, matmul.accumulate != 0));
  }
  one.run(stream, matmul.weights_are_ready != 0 ? Overlap::yes : Overlap::no);
  return true;
}

}  // namespace

template <class Half>
bool run_sm90(const FourBitMatmulArguments& arguments, const MatmulMemory<Half>& memory, StreamRef stream) {
  const auto with_rows = [&]<u32 Rows>() {
    return arguments.products[0].weight.absmax == nullptr ? launch_sm90<Half, true, Rows>(arguments, memory, stream)
                                                          : launch_sm90<Half, false, Rows>(arguments, memory, stream);
  };
  if (arguments.sm90.rows == 64) return with_rows.template operator()<64>();
  if (arguments.sm90.rows == 96) return with_rows.template operator()<96>();
  return with_rows.template operator()<128>();
}

template bool run_sm90<bf16>(const FourBitMatmulArguments&, const MatmulMemory<bf16>&, StreamRef);
template bool run_sm90<f16>(const FourBitMatmulArguments&, const MatmulMemory<f16>&, StreamRef);

}  // namespace nibble::kernels
