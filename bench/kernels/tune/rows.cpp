// Kernels for m from 33 to 256, in microseconds: where tune_table.py lets the library's plan change from mma.sync to
// wgmma.
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

constexpr double seconds_of_a_case = 30.0 / static_cast<double>(std::size(shapes) * many_m.size());

/// A launch, and how its line names it.
struct Candidate {
  std::string kernel;
  std::uint32_t rows, splits;  // rows of x at a time
  bool is_default;             // the plan's own for this kernel
  std::function<void(const TunedCall&, cudaStream_t)> launch;
};

std::vector<Candidate> candidates(const TunedKernels& mma, const Shape& shape, u64 m) {
  std::vector<Candidate> all;
  const auto splits_of = [&](u64 block_n, u64 rows, u64 block_k, std::uint32_t own) {
    const u64 groups = device::ceil_div(shape.n, block_n) * device::ceil_div(m, rows);
    std::vector<std::uint32_t> splits{own};
    for (const u64 one : tuned_splits)
      if (one != own && one <= device::ceil_div(shape.k, block_k) && (one == 1 || groups <= plan::max_groups))
        splits.push_back(static_cast<std::uint32_t>(one));
    return splits;
  };
  const plan::LaunchConfig config = plan::config_for(m, shape.n, shape.k, true);
  const auto kernel = std::find_if(mma.begin(), mma.end(),
                                   [&](const TunedKernel& one) { return one.tile == config.tile && !one.keeps_x; });
  if (kernel == mma.end()) throw std::runtime_error("the library's tile is not compiled");
  for (const std::uint32_t splits :
       splits_of(config.tile.block_n(), config.tile.max_m(), config.tile.block_k(), config.splits))
    all.push_back({"mma", config.tile.max_m(), splits, splits == config.splits,
                   [launch = kernel->launch, variant = Variant{.tile = config.tile, .splits = splits}](
                       const TunedCall& call, cudaStream_t stream) { launch(call, variant, stream); }});
  const plan::Sm90Config own = plan::sm90_config_for(m, shape.n, shape.k);
  for (const ManyRowsKernel& wgmma : many_rows_kernels())
    for (const std::uint32_t splits : splits_of(128, wgmma.rows, 256, own.splits))
      all.push_back({"wgmma", wgmma.rows, splits, wgmma.rows == own.rows && splits == own.splits,
                     [launch = wgmma.launch, splits](const TunedCall& call, cudaStream_t stream) {
                       launch(call, splits, stream);
                     }});
  return all;
}

void run_case(Report& report, const TunedKernels& mma, const Shape& shape, u64 m, const std::vector<FourBit>& weights,
              const Buffer& codebook) {
  TunedProduct<FourBit> product(shape, m, weights);
  const auto name_of = [&](const Candidate& one) {
    return "many-rows/" + shape.text() + "/m" + std::to_string(m) + "/" + one.kernel + std::to_string(one.rows) +
           "/splits" + std::to_string(one.splits);
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
  for (const Shape& shape : shapes) {
    const auto weights = random_copies<FourBit>(shape);
    for (const u64 m : many_m)
      report.attempt("many-rows/" + shape.text() + "/m" + std::to_string(m),
                     [&] { run_case(report, mma, shape, m, weights, codebook); });
  }
  return report.all_right();
}

}  // namespace nibble::bench
