// Tiles and splits of the product with an int8 weight, in microseconds.
#include "bench/kernels/tune/int8.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "bench/kernels/gpu/report.hpp"
#include "bench/kernels/operands/int8.hpp"
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
  const std::vector<u16> host_x = random_bf16(m * shape.k, 1, m);
  const Buffer x = Buffer::of(host_x),
               partial(tuned_splits.back() * m * shape.n * sizeof(float), Buffer::Fill::nothing),
               counters = Buffer::of(std::vector<std::uint32_t>(nibble::kernels::max_groups));
  Buffer y(2 * m * shape.n);
  std::vector<Candidate> right;
  std::vector<Contender> contenders;
  for (Candidate& one : candidates(kernels, shape, m)) {
    const std::string name = "tune-int8/" + shape.text() + "/m" + std::to_string(m) + "/" + text_of(one);
    const auto launch = [&, one](std::size_t copy, cudaStream_t stream) {
      one.kernel.launch({.weight = weights[copy].argument(shape),
                         .m = static_cast<std::uint32_t>(m),
                         .x = x.as<void>(),
                         .y = y.as<void>(),
                         .partial = partial.as<float>(),
                         .counters = counters.as<std::uint32_t>()},
                        one.splits, stream);
    };
    const bool is_right = report.attempt(name, [&] {
      y.poison();
      launch(0, nullptr);
      check_product(
          shape, m, host_x, y, [&](u64 n) { return weights[0].row(shape, n); }, name);
    });
    if (!is_right) continue;
    contenders.push_back({name, weights.size(), launch});
    right.push_back(std::move(one));
  }
  const std::vector<Times> times =
      measure(contenders, {.seconds = seconds_of_a_case, .min_replays = 5, .min_calls = tuned_calls});
  for (std::size_t i = 0; i < right.size(); ++i) {
    Json line = line_of(contenders[i].by, times[i]);
    line["shape"] = shape.text();
    line["m"] = m;
    line["int8_variant"] = json_of(right[i]);
    line["default"] = right[i].is_default;
    const u64 bytes = weights[0].bytes() + x.bytes() + y.bytes();
    const double gb_s = static_cast<double>(bytes) / times[i].median * 1e-3;
    line["gb_s"] = gb_s;
    line["share_of_read"] = gb_s / read_gb_s;
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
