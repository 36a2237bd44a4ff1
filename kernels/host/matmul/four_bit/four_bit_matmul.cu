// Launches the kernel that a product's shapes are for.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/host/four_bit_weight.hpp"
#include "kernels/host/library/matmul_by_library.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_arguments.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_few_rows.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_launch.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_sm90.hpp"
#include "kernels/host/matmul/matmul_memory.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_any.hpp"

namespace nibble::kernels {
namespace {

/// Calls body.operator()<Kernel>() with the kernel of that tile, if it is compiled: all of four_bit_matmul::choices
/// are, and those of short runs, which never keep x.
template <class Half, bool Nested, bool KeepsX, class Body>
void with_kernel(const FourBitMatmulTile& tile, Body&& body) {
  using four_bit_matmul::choices;
  using four_bit_matmul::choices_of_short_runs;
  const auto try_tile = [&]<FourBitMatmulTile own>(std::integral_constant<FourBitMatmulTile, own>) {
    if constexpr (!KeepsX || (own.m_tiles == 1 && own.run == 64)) {
      if (tile == own) body.template operator()<FourBitMatmul<Half, Nested, own, KeepsX>>();
    }
  };
  const auto try_all = [&]<std::size_t... i>(std::index_sequence<i...>) {
    (try_tile(std::integral_constant<FourBitMatmulTile, choices[i].tile>{}), ...);
  };
  const auto try_all_of_short_runs = [&]<std::size_t... i>(std::index_sequence<i...>) {
    (try_tile(std::integral_constant<FourBitMatmulTile, choices_of_short_runs[i].tile>{}), ...);
  };
  try_all(std::make_index_sequence<choices.size()>{});
  try_all_of_short_runs(std::make_index_sequence<choices_of_short_runs.size()>{});
}

/// One product, with x of the compute type.
template <class Half> class Launcher {
 public:
  Launcher(const FourBitMatmulArguments& arguments, void* workspace, StreamRef stream)
      : arguments_(arguments),
        stream_(stream),
        overlap_(arguments.matmul.weights_are_ready != 0 ? Overlap::yes : Overlap::no),
        m_(static_cast<u32>(arguments.x.rows)),
        memory_(arguments, workspace) {}

  void run() {
    if (arguments_.n == 0) return;
    memory_.round_x(stream_);
    if (!arguments_.fits_tiles) return run_any();
    if (arguments_.fits_few_rows && run_few_rows(arguments_, memory_, stream_)) return;
    if (arguments_.fits_sm90 && run_sm90(arguments_, memory_, stream_)) return;
    memory_.clear_counters(stream_);
    const bool nested = arguments_.products[0].weight.absmax == nullptr;
    const auto by_tile = [&]<bool KeepsX>(std::bool_constant<KeepsX>) {
      const auto run = [&]<class Kernel>() { return run_tiles<Kernel>(); };
      if (nested)
        with_kernel<Half, true, KeepsX>(arguments_.config.tile, run);
      else
        with_kernel<Half, false, KeepsX>(arguments_.config.tile, run);
    };
    if (keeps_x())
      by_tile(std::true_type{});
    else
      by_tile(std::false_type{});
  }

 private:
  [[nodiscard]] static const four_bit_matmul::DeviceTuning& tuning() {
    return four_bit_matmul::tuning_of(capability(), multiprocessors());
  }

  // Whether all of x has room in shared memory, and the device is faster with it there. It changes nothing in the
  // product.
  [[nodiscard]] bool keeps_x() const {
    if (arguments_.config.tile.m_tiles != 1 || arguments_.matmul.experts > 0) return false;
    if (u64{m_} * arguments_.x.columns * 2 > tuning().max_kept_x_bytes) return false;
    bool keeps = false;
    with_kernel<Half, false, true>(arguments_.config.tile, [&]<class Kernel>() {
      keeps = FourBitMatmulLaunch<Half, Kernel>::fits(m_, arguments_.x.columns);
    });
    return keeps;
  }

  [[nodiscard]] FourBitOperand weight_of(const FourBitMatmulArguments::Product& product) const {
    FourBitOperand weight = operand_of(product.weight);
    weight.n = static_cast<i64>(product.n);  // of one expert
    return weight;
  }
  [[nodiscard]] MatmulOutput<Half> output_of(const FourBitMatmulArguments::Product& product) const {
    return matmul_output<Half>(product.y, product.given.bias, arguments_.matmul.accumulate != 0);
  }
  [[nodiscard]] u32 experts() const { return std::max(arguments_.matmul.experts, 1U); }

  template <class Kernel> void run_tiles() {
    FourBitMatmulLaunch<Half, Kernel> one(memory_.x, memory_.x_stride, m_, arguments_.x.columns,
                                          memory_.sums(arguments_.config.splits, arguments_.n), arguments_.matmul.ends);
    for (u32 i = 0; i < arguments_.matmul.product_count; ++i)
      one.add(weight_of(arguments_.products[i]), output_of(arguments_.products[i]));
    one.run(tuning(), arguments_.matmul.experts, stream_, overlap_);
  }

  void run_any() {
    using Kernel = FourBitMatmulAny<Half>;
    for (u32 i = 0; i < arguments_.matmul.product_count; ++i) {
      const FourBitMatmulArguments::Product& product = arguments_.products[i];
      if (product.n == 0) continue;
      launch(Kernel::ByWarps::grid(m_, product.n, experts()), 0, stream_,
             Kernel{weight_of(product), memory_.x, memory_.x_stride, m_, output_of(product), arguments_.matmul.ends},
             overlap_);
    }
  }

  const FourBitMatmulArguments& arguments_;
  StreamRef stream_;
  Overlap overlap_;
  u32 m_;
  MatmulMemory<Half> memory_;
};

}  // namespace
}  // namespace nibble::kernels

int nibble_matmul_four_bit_workspace(const nibble_matmul* matmul, size_t* bytes) {
  using namespace nibble::kernels;
  return result_of([&] {
    if (bytes == nullptr) refuse("bytes is null");
    *bytes = FourBitMatmulArguments(whole_matmul(matmul)).workspace_bytes();
  });
}

int nibble_matmul_four_bit(const nibble_matmul* matmul, void* workspace, size_t workspace_bytes, nibble_stream stream) {
  using namespace nibble::kernels;
  return result_of([&] {
    const FourBitMatmulArguments arguments(whole_matmul(matmul));
    check_workspace(workspace, workspace_bytes, arguments.workspace_bytes());
    if (multiply_by_library(arguments, arguments.library_products(), workspace, stream)) return;
    if (arguments.compute_dtype == NIBBLE_BF16)
      Launcher<bf16>(arguments, workspace, stream).run();
    else
      Launcher<f16>(arguments, workspace, stream).run();
  });
}
