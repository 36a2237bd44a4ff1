// Launches the kernel that a product's shapes are for.
#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "kernels/host/library/matmul_by_library.hpp"
#include "kernels/host/matmul/int8/int8_matmul_arguments.hpp"
#include "kernels/host/matmul/int8/int8_matmul_launch.hpp"
#include "kernels/host/matmul/matmul_memory.hpp"
#include "kernels/matmul/int8/int8_matmul_any.hpp"

namespace nibble::kernels {
namespace {

constexpr Int8MatmulTile with_short_loads(Int8MatmulTile tile) {
  tile.load_bytes = 8;
  return tile;
}

/// Calls body.operator()<Kernel>() with the kernel of that tile, which is one of int8_matmul::choices, for loads of 16
/// or 8 bytes.
template <class Half, class Body> void with_kernel(const Int8MatmulTile& tile, Body&& body) {
  using int8_matmul::choices;
  const auto try_tile = [&]<Int8MatmulTile own>(std::integral_constant<Int8MatmulTile, own>) {
    if (tile == own) body.template operator()<Int8Matmul<Half, own>>();
  };
  const auto try_all = [&]<std::size_t... i>(std::index_sequence<i...>) {
    (try_tile(std::integral_constant<Int8MatmulTile, choices[i].tile>{}), ...);
    (try_tile(std::integral_constant<Int8MatmulTile, with_short_loads(choices[i].tile)>{}), ...);
  };
  try_all(std::make_index_sequence<choices.size()>{});
}

/// One product, with x of the compute type.
template <class Half> void multiply(const Int8MatmulArguments& arguments, void* workspace, StreamRef stream) {
  const u64 n = arguments.weight.rows;
  if (n == 0) return;
  const MatmulMemory<Half> memory(arguments, workspace);
  memory.round_x(stream);
  memory.clear_counters(stream);
  const Int8Operand weight{reinterpret_cast<const u8*>(arguments.weight.codes), arguments.weight.absmax,
                           static_cast<i64>(n), static_cast<i64>(arguments.weight.columns)};
  const MatmulOutput<Half> out = matmul_output<Half>(arguments.y, arguments.bias, arguments.matmul.accumulate != 0);
  const u32 m = static_cast<u32>(arguments.x.rows), splits = arguments.config.splits;
  const Overlap overlap = arguments.matmul.weights_are_ready != 0 ? Overlap::yes : Overlap::no;
  if (arguments.fits_tiles) {
    with_kernel<Half>(arguments.config.tile, [&]<class Kernel>() {
      launch_int8_matmul<Kernel>(weight, memory.x, memory.x_stride, m, out, memory.sums(splits, n), stream, overlap);
    });
  } else {
    using Kernel = Int8MatmulAny<Half>;
    launch(Kernel::grid(m, n), 0, stream, Kernel{weight, memory.x, memory.x_stride, m, out}, overlap);
  }
}

}  // namespace
}  // namespace nibble::kernels

int nibble_matmul_int8_workspace(const nibble_matmul* matmul, const nibble_int8_product* product, size_t* bytes) {
  using namespace nibble::kernels;
  return result_of([&] {
    if (bytes == nullptr) refuse("bytes is null");
    *bytes = Int8MatmulArguments(whole_matmul(matmul), product).workspace_bytes();
  });
}

int nibble_matmul_int8(const nibble_matmul* matmul, const nibble_int8_product* product, void* workspace,
                       size_t workspace_bytes, nibble_stream stream) {
  using namespace nibble::kernels;
  return result_of([&] {
    const Int8MatmulArguments arguments(whole_matmul(matmul), product);
    check_workspace(workspace, workspace_bytes, arguments.workspace_bytes());
    if (multiply_by_library(arguments, arguments.library_products(), workspace, stream)) return;
    if (arguments.compute_dtype == NIBBLE_BF16)
      multiply<bf16>(arguments, workspace, stream);
    else
      multiply<f16>(arguments, workspace, stream);
  });
}
