// Kernels for m up to 16 on sm_90a, which TMA feeds, in microseconds: the tile, how much of n of it is used, and the
// splits of k. tune_table.py fits the plan's costs to these times, and reads the tile in a line's name.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "bench/kernels/gpu/report.hpp"
#include "bench/kernels/operands/four_bit.hpp"
#include "bench/kernels/tune/product.hpp"
#include "bench/kernels/tune/tune.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"

namespace nibble::bench {
namespace {

namespace plan = nibble::kernels::four_bit_matmul;

constexpr std::array<u64, 3> few_m = {1, 8, 16};
constexpr double seconds_of_a_case = 20.0 / static_cast<double>(std::size(tma_shapes) * few_m.size());

/// A launch, and how its line names it.
struct Candidate {
  FewRowsKernel kernel;
  std::uint32_t tile_n, splits;
};

/// In how many turns the multiprocessors of an H100 take tiles of that size, if k is divided.
u64 turns_of(u64 n, u64 tile_n, u64 splits) { return device::ceil_div(device::ceil_div(n, tile_n) * splits, u64{132}); }

/// Of the tiles with equally many turns the smallest, the largest tiles, and what the plan takes.
std::vector<Candidate> candidates(const Shape& shape, u64 m, const plan::FewRowsConfig& own) {
  std::vector<Candidate> all;
  for (const FewRowsKernel& kernel : few_rows_kernels()) {
    const u64 block_n = kernel.tile.block_n(), steps = device::ceil_div(shape.k, u64{kernel.tile.block_k()});
    if (m > kernel.tile.max_m()) continue;
    for (std::uint32_t splits = 1; splits <= std::min<u64>(steps, 8); splits *= 2) {
      if (splits > 1 && turns_of(shape.n, block_n, splits) > 2) continue;
      for (u64 tile_n = 16; tile_n <= block_n; tile_n += 16) {
        const u64 turns = turns_of(shape.n, tile_n, splits);
        const bool is_smallest = tile_n == 16 || turns_of(shape.n, tile_n - 16, splits) > turns;
        const bool is_own = kernel.tile == own.tile && tile_n == own.tile_n && splits == own.splits;
        if (is_own || tile_n == block_n || (is_smallest && 4 * tile_n >= block_n && turns <= 8))
          all.push_back({kernel, static_cast<std::uint32_t>(tile_n), splits});
      }
    }
  }
  return all;
}

void run_case(Report& report, const Shape& shape, u64 m, const std::vector<FourBit>& weights, const Buffer& codebook) {
  TunedProduct<FourBit> product(shape, m, weights);
  const plan::FewRowsConfig own = plan::few_rows_config_for(m, shape.n, shape.k);
  const auto name_of = [&](const Candidate& one) {
    const auto& tile = one.kernel.tile;
    return "few-rows/" + shape.text() + "/m" + std::to_string(m) + "/tile" + std::to_string(tile.m_tiles) + "x" +
           std::to_string(tile.n_warps) + "x" + std::to_string(tile.k_warps) + "/n" + std::to_string(one.tile_n) +
           "/splits" + std::to_string(one.splits);
  };
  const auto launch = [&](const Candidate& one, std::size_t copy, cudaStream_t stream) {
    one.kernel.launch(product.call<TunedCall>(copy, codebook), one.tile_n, one.splits, stream);
  };
  for (const Timed<Candidate>& one :
       product.measured(report, candidates(shape, m, own), seconds_of_a_case, name_of, launch)) {
    Json line = product.line_of(one);
    line["tile_n"] = one.candidate.tile_n;
    line["splits"] = one.candidate.splits;
    line["default"] = one.candidate.kernel.tile == own.tile && one.candidate.tile_n == own.tile_n &&
                      one.candidate.splits == own.splits;
    line["gb_s"] = product.gb_s(one);
    Report::print(line);
  }
}

}  // namespace

bool tune_few_rows() {
  print_device();
  const Buffer codebook = nested_codebook();
  Report report;
  for (const Shape& shape : tma_shapes) {
    const auto weights = random_copies<FourBit>(shape);
    for (const u64 m : few_m)
      report.attempt("few-rows/" + shape.text() + "/m" + std::to_string(m),
                     [&] { run_case(report, shape, m, weights, codebook); });
  }
  return report.all_right();
}

}  // namespace nibble::bench
