// Kernels for m from 24 to 256, in microseconds: where tune_table.py lets the library's plan change from mma.sync to
// wgmma. It also fits the plan's costs of wgmma to these times, and reads the tile and tile_n in a line's name.
#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/gpu/report.hpp"
#include "bench/kernels/operands/four_bit.hpp"
#include "bench/kernels/tune/product.hpp"
#include "bench/kernels/tune/tune.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"

namespace nibble::bench {
namespace {

namespace plan = nibble::kernels::four_bit_matmul;

constexpr double seconds_of_a_case = 30.0 / static_cast<double>(std::size(tma_shapes) * many_m.size());

/// A launch, and how its line names it.
struct Candidate {
  std::string kernel, variant;
  u64 rows;  // of x at a time
  std::uint32_t splits;
  bool is_default;  // the plan's own for this kernel
  std::function<void(const TunedCall&, cudaStream_t)> launch;
};

void add_mma(std::vector<Candidate>& to, const TunedKernels& kernels, const Shape& shape, u64 m) {
  const plan::LaunchConfig config = plan::config_for(m, shape.n, shape.k, true);
  const auto kernel = std::find_if(kernels.begin(), kernels.end(),
                                   [&](const TunedKernel& one) { return one.tile == config.tile && !one.keeps_x; });
  if (kernel == kernels.end()) throw std::runtime_error("the library's tile is not compiled");
  const u64 groups = plan::groups_of(config.tile, m, shape.n),
            steps = device::ceil_div(shape.k, u64{config.tile.block_k()});
  std::vector<std::uint32_t> all_splits{config.splits};
  for (const u64 one : tuned_splits)
    if (one != config.splits && one <= steps && (one == 1 || groups <= plan::max_groups))
      all_splits.push_back(static_cast<std::uint32_t>(one));
  for (const std::uint32_t splits : all_splits)
    to.push_back({"mma", "", config.tile.max_m(), splits, splits == config.splits,
                  [launch = kernel->launch, variant = Variant{.tile = config.tile, .splits = splits, .overlaps = true}](
                      const TunedCall& call, cudaStream_t stream) { launch(call, variant, stream); }});
}

// With more blocks of a divided k, an H100 has more than two turns.
constexpr u64 max_blocks_of_a_divided_k = 2 * 132;

void add_wgmma(std::vector<Candidate>& to, const Shape& shape, u64 m) {
  const plan::Sm90Config own = plan::sm90_config_for(m, shape.n, shape.k);
  for (const ManyRowsKernel& kernel : many_rows_kernels()) {
    const auto& tile = kernel.tile;
    for (std::uint32_t tile_n = tile.block_n(); tile_n > 0; tile_n -= 64)
      for (const std::uint32_t splits : {1U, 2U, 4U, 8U}) {
        const u64 items = device::ceil_div(shape.n, u64{tile_n}) * device::ceil_div(m, u64{tile.rows});
        const bool has_steps = splits == 1 || splits * tile.step_k <= shape.k;
        const bool is_of_plans =
            2 * tile_n >= tile.block_n() && (splits == 1 || items * splits <= max_blocks_of_a_divided_k);
        const bool is_own = tile == own.tile && tile_n == own.tile_n && splits == own.splits;
        if (!is_own && !(has_steps && is_of_plans)) continue;
        const std::string variant = "x" + std::to_string(tile.n_warpgroups) + "x" + std::to_string(tile.k_warpgroups) +
                                    "/n" + std::to_string(tile_n);
        to.push_back({"wgmma", variant, tile.rows, splits, is_own,
                      [launch = kernel.launch, tile_n, splits](const TunedCall& call, cudaStream_t stream) {
                        launch(call, tile_n, splits, stream);
                      }});
      }
  }
}

std::vector<Candidate> candidates(const TunedKernels& mma, const Shape& shape, u64 m) {
  std::vector<Candidate> all;
  add_mma(all, mma, shape, m);
  add_wgmma(all, shape, m);
  return all;
}

void run_case(Report& report, const TunedKernels& mma, const Shape& shape, u64 m, const std::vector<FourBit>& weights,
              const Buffer& codebook) {
  TunedProduct<FourBit> product(shape, m, weights);
  const auto name_of = [&](const Candidate& one) {
    return "many-rows/" + shape.text() + "/m" + std::to_string(m) + "/" + one.kernel + std::to_string(one.rows) +
           one.variant + "/splits" + std::to_string(one.splits);
  };
  const auto launch = [&](const Candidate& one, std::size_t copy, cudaStream_t stream) {
    one.launch(product.call<TunedCall>(copy, codebook), stream);
  };
  for (const Timed<Candidate>& one :
       product.measured(report, candidates(mma, shape, m), seconds_of_a_case, name_of, launch)) {
    Json line = product.line_of(one);
    line["kernel"] = one.candidate.kernel;
    line["rows"] = one.candidate.rows;
    line["splits"] = one.candidate.splits;
    line["default"] = one.candidate.is_default;
    line["tflop_s"] = 2e-6 * static_cast<double>(m * shape.size()) / one.times.median;
    Report::print(line);
  }
}

}  // namespace

bool tune_many_rows() {
  print_device();
  TunedKernels mma;
  add_group_kernels(mma);
  const Buffer codebook = nested_codebook();
  Report report;
  for (const Shape& shape : tma_shapes) {
    const auto weights = random_copies<FourBit>(shape);
    for (const u64 m : many_m)
      report.attempt("many-rows/" + shape.text() + "/m" + std::to_string(m),
                     [&] { run_case(report, mma, shape, m, weights, codebook); });
  }
  return report.all_right();
}

}  // namespace nibble::bench
