// Tiles and splits of the product with an int8 weight, in microseconds.
#include "bench/kernels/tune/int8.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "bench/kernels/gpu/report.hpp"
#include "bench/kernels/operands/int8.hpp"
#include "bench/kernels/tune/product.hpp"
#include "bench/kernels/tune/tune.hpp"
#include "kernels/host/matmul/int8/int8_matmul_config.hpp"

namespace nibble::bench {
namespace {

namespace plan = nibble::kernels::int8_matmul;

constexpr double seconds_of_a_case = 10.0 / static_cast<double>(std::size(shapes) * tuned_m.size());

static_assert(std::all_of(plan::choices.begin(), plan::choices.end(), [](const plan::Choice& choice) {
  return std::find(tuned_int8_tiles.begin(), tuned_int8_tiles.end(), choice.tile) != tuned_int8_tiles.end();
}));

/// A kernel with a number of splits; `is_default`: as the plan would launch it.
struct Candidate {
  Int8Kernel kernel;
  std::uint32_t splits;
  bool is_default;
};

std::vector<Candidate> candidates(const std::vector<Int8Kernel>& kernels, const Shape& shape, u64 m) {
  const plan::LaunchConfig config = plan::config_for(m, shape.n, shape.k);
  std::vector<Candidate> all;
  for (const Int8Kernel& kernel : kernels) {
    // A tile of m that is mostly empty, or several of them, is never the fastest.
    if (m > kernel.tile.max_m() || (kernel.tile.m_tiles > 1 && 2 * m <= kernel.tile.max_m())) continue;
    const bool is_own = kernel.tile == config.tile;
    std::vector<std::uint32_t> splits(tuned_splits.begin(), tuned_splits.end());
    if (is_own && std::find(splits.begin(), splits.end(), config.splits) == splits.end())
      splits.push_back(config.splits);
    const u64 groups = device::ceil_div<u64>(shape.n, kernel.tile.block_n()),
              steps = device::ceil_div<u64>(shape.k, kernel.tile.block_k());
    for (const std::uint32_t one : splits)
      if (one <= steps && (one == 1 || groups <= nibble::kernels::max_groups))
        all.push_back({kernel, one, is_own && one == config.splits});
  }
  return all;
}

Json json_of(const Candidate& one) {
  const Int8MatmulTile& tile = one.kernel.tile;
  return {{"m_tiles", tile.m_tiles}, {"n_warps", tile.n_warps}, {"k_warps", tile.k_warps},
          {"n_tiles", tile.n_tiles}, {"groups", tile.groups},   {"splits", one.splits}};
}

std::string text_of(const Candidate& one) {
  const Int8MatmulTile& tile = one.kernel.tile;
  std::string text = "tile" + std::to_string(tile.m_tiles);
  for (const std::uint32_t size : {tile.n_warps, tile.k_warps, tile.n_tiles, tile.groups})
    text += "x" + std::to_string(size);
  return text + "/splits" + std::to_string(one.splits);
}

void run_case(Report& report, const std::vector<Int8Kernel>& kernels, const Shape& shape, u64 m,
              const std::vector<Int8>& weights, double read_gb_s) {
  TunedProduct<Int8> product(shape, m, weights);
  const std::string prefix = "tune-int8/" + shape.text() + "/m" + std::to_string(m) + "/";
  const auto launch = [&](const Candidate& one, std::size_t copy, cudaStream_t stream) {
    one.kernel.launch(product.call<Int8Call>(copy), one.splits, stream);
  };
  for (const Timed<Candidate>& one : product.measured(
           report, candidates(kernels, shape, m), seconds_of_a_case,
           [&](const Candidate& candidate) { return prefix + text_of(candidate); }, launch)) {
    Json line = product.line_of(one);
    line["int8_variant"] = json_of(one.candidate);
    line["default"] = one.candidate.is_default;
    line["gb_s"] = product.gb_s(one);
    line["share_of_read"] = product.gb_s(one) / read_gb_s;
    Report::print(line);
  }
}

}  // namespace

bool tune_int8() {
  print_device();
  const double read_gb_s = measured_bandwidth();
  const std::vector<Int8Kernel> kernels = int8_kernels();
  Report report;
  for (const Shape& shape : shapes) {
    const auto weights = random_copies<Int8>(shape);
    for (const u64 m : tuned_m)
      report.attempt("tune-int8/" + shape.text() + "/m" + std::to_string(m),
                     [&] { run_case(report, kernels, shape, m, weights, read_gb_s); });
  }
  return report.all_right();
}

}  // namespace nibble::bench
