// Variants of the product of few tokens, in microseconds: what tune_table.py makes the library's table of.
//
//   bench_tune [--shape NxK]    30 s for a shape of the whole speed table, 8 s for one of products alone
//   bench_tune --few-rows       the kernel that TMA feeds, for m up to 16 (few_rows.cpp): 25 s
//   bench_tune --many-rows      kernels for m from 24 to 256 (rows.cpp): 45 s
//   bench_tune --int8           tiles and splits of the product with an int8 weight (int8.cpp): 10 s
//
// For each shape and m, three stages, each of which measures its variants in turns:
//
//   tiles      each tile with each number of splits
//   loops      for each tile, with its best number of splits: one thing changed at a time
//   together   for each tile: the changes that made it faster, all at once
//
// 0: all was right; 1: a result was wrong, or CUDA failed; 77: there is no GPU.
#include "bench/kernels/tune/tune.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/gpu/bandwidth.hpp"
#include "bench/kernels/gpu/report.hpp"
#include "bench/kernels/operands/four_bit.hpp"
#include "bench/kernels/tune/int8.hpp"
#include "bench/kernels/tune/product.hpp"
#include "bench/kernels/tune/short_runs.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"

namespace nibble::bench {
namespace {

namespace plan = nibble::kernels::four_bit_matmul;
using kernels::XBarrier;
using Clock = std::chrono::steady_clock;

/// There are few kernels for runs shorter than 64, and few weights that have them.
constexpr double seconds_of(const Shape& shape) { return shape.run() == 64 ? 30 : 8; }

/// A variant, and in what it differs from the first of its tile.
struct Candidate {
  Variant variant;
  std::string change = "none";
  double time = 0;
};

constexpr bool has_sizes_of(const FourBitMatmulTile& a, const FourBitMatmulTile& b) {
  return a.m_tiles == b.m_tiles && a.n_warps == b.n_warps && a.k_warps == b.k_warps && a.n_tiles == b.n_tiles &&
         a.run == b.run;
}

/// The tile as the library compiles it; or, if it does not, as new.
FourBitMatmulTile as_compiled(const FourBitMatmulTile& sizes) {
  const std::span<const plan::Choice> all =
      sizes.run == 64 ? std::span<const plan::Choice>(plan::choices) : plan::choices_of_short_runs;
  for (const plan::Choice& choice : all)
    if (has_sizes_of(choice.tile, sizes)) return choice.tile;
  return sizes;
}

static_assert(std::all_of(plan::choices.begin(), plan::choices.end(), [](const plan::Choice& choice) {
  return std::any_of(tuned_tiles.begin(), tuned_tiles.end(),
                     [&](const FourBitMatmulTile& tile) { return has_sizes_of(tile, choice.tile); });
}));
static_assert(std::all_of(plan::choices_of_short_runs.begin(), plan::choices_of_short_runs.end(),
                          [](const plan::Choice& choice) {
                            return std::any_of(tuned_tiles_of_short_runs.begin(), tuned_tiles_of_short_runs.end(),
                                               [&](const FourBitMatmulTile& tile) {
                                                 return has_sizes_of(with_run(tile, choice.tile.run), choice.tile);
                                               });
                          }));

const char* name_of(XBarrier barrier) { return barrier == XBarrier::block ? "block" : "group"; }

Json json_of(const Variant& variant) {
  const FourBitMatmulTile& tile = variant.tile;
  return {{"m_tiles", tile.m_tiles},
          {"n_warps", tile.n_warps},
          {"k_warps", tile.k_warps},
          {"n_tiles", tile.n_tiles},
          {"run", tile.run},
          {"barrier", name_of(tile.barrier)},
          {"loads_first", tile.loads_first},
          {"prefetched_steps", tile.prefetched_steps},
          {"keeps_x", variant.keeps_x},
          {"splits", variant.splits},
          {"overlaps", variant.overlaps},
          {"is_resident", variant.is_resident}};
}

std::string text_of(const Variant& variant) {
  const FourBitMatmulTile& tile = variant.tile;
  std::string text = "tile" + std::to_string(tile.m_tiles);
  for (const std::uint32_t size : {tile.n_warps, tile.k_warps, tile.n_tiles}) text += "x" + std::to_string(size);
  if (variant.tile.run != 64) text += "/run" + std::to_string(variant.tile.run);
  text += "/splits" + std::to_string(variant.splits) + "/" + name_of(tile.barrier);
  text += tile.loads_first ? "/loads-first" : "/loads-after";
  text += "/ahead" + std::to_string(tile.prefetched_steps);
  if (variant.keeps_x) text += "/keeps-x";
  if (variant.overlaps) text += "/overlaps";
  if (!variant.is_resident) text += "/block-per-tile";
  return text;
}

/// What all cases share.
struct Session {
  TunedKernels kernels;
  Buffer codebook = nested_codebook();
  Json device = device_line();
  Report report;
  double read_gb_s = 0;

  Session() {
    add_group_kernels(kernels);
    add_block_kernels(kernels);
    add_group_late_kernels(kernels);
    add_block_late_kernels(kernels);
    add_kept_x_kernels(kernels);
    add_kernels_of_run32(kernels);
    add_kernels_of_run16(kernels);
    add_kernels_of_run8(kernels);
  }

  /// Null if it is not compiled.
  [[nodiscard]] const TunedKernel* find(const Variant& variant) const {
    FourBitMatmulTile tile = variant.tile;
    if (variant.keeps_x || tile.k_warps == 1) tile.barrier = XBarrier::group;
    if (variant.keeps_x) tile.loads_first = true;
    const auto found = std::find_if(kernels.begin(), kernels.end(), [&](const TunedKernel& kernel) {
      return kernel.tile == tile && kernel.keeps_x == variant.keeps_x;
    });
    return found == kernels.end() ? nullptr : &*found;
  }
};

/// One shape and m.
class Case {
 public:
  Case(Session& session, const Shape& shape, u64 m, const std::vector<FourBit>& weights, std::string name,
       double seconds)
      : session_(session),
        shape_(shape),
        m_(m),
        product_(shape, m, weights),
        name_(std::move(name)),
        seconds_(seconds) {}

  void run() {
    if (seconds_ < 0.2) {
      Report::print({{"name", name_}, {"left_out", "no time left"}});
      return;
    }
    std::vector<Candidate> tiles = measured("tiles", all_tiles(), 0.35);
    std::vector<Candidate> loops, together;
    for (const Candidate& best : best_of_each_tile(tiles)) add_changes(best.variant, loops);
    loops = measured("loops", std::move(loops), 0.45);
    for (const Candidate& base : loops)
      if (base.change == "none") add_together(base, loops, together);
    measured("together", std::move(together), 0.15);
  }

 private:
  [[nodiscard]] Variant default_variant() const {
    const plan::LaunchConfig config = plan::config_for(m_, shape_.n, shape_.k, true, shape_.run());
    return variant_of(config.tile, config.splits);
  }

  // As the library would launch it on this device.
  [[nodiscard]] Variant variant_of(const FourBitMatmulTile& tile, std::uint32_t splits) const {
    const plan::DeviceTuning& own = plan::tuning_of(session_.device["capability"], session_.device["multiprocessors"]);
    Variant variant{.tile = tile, .splits = splits, .is_resident = own.has_resident_grid};
    variant.keeps_x = 2 * m_ * shape_.k <= own.max_kept_x_bytes && can_keep_x(variant);
    return variant;
  }
  [[nodiscard]] bool can_keep_x(Variant variant) const {
    variant.keeps_x = true;
    return is_possible(variant);
  }
  [[nodiscard]] bool is_possible(const Variant& variant) const {
    const TunedKernel* const kernel = session_.find(variant);
    if (kernel == nullptr || (variant.keeps_x && !kernel->fits(m_, shape_.k))) return false;
    return variant.splits <= device::ceil_div<u64>(shape_.k, variant.tile.block_k()) &&
           (variant.splits == 1 || plan::groups_of(variant.tile, m_, shape_.n) <= plan::max_groups);
  }

  // Those for so many rows. Of runs of 64, a tile of m that is mostly empty, or several of them, is never the fastest.
  [[nodiscard]] bool is_for_m(const FourBitMatmulTile& tile) const {
    return m_ <= tile.max_m() && (tile.m_tiles == 1 || 2 * m_ > tile.block_m());
  }

  [[nodiscard]] std::vector<FourBitMatmulTile> tiles_for_m() const {
    std::vector<FourBitMatmulTile> tiles;
    if (shape_.run() == 64) {
      for (const FourBitMatmulTile& sizes : tuned_tiles)
        if (is_for_m(sizes)) tiles.push_back(as_compiled(sizes));
    } else {
      for (const FourBitMatmulTile& sizes : tuned_tiles_of_short_runs)
        if ((m_ <= 8) == (sizes.m_tiles == 1)) tiles.push_back(as_compiled(with_run(sizes, shape_.run())));
    }
    return tiles;
  }

  [[nodiscard]] std::vector<Candidate> all_tiles() const {
    std::vector<Candidate> all{{default_variant()}};
    for (const FourBitMatmulTile& tile : tiles_for_m())
      for (const u64 splits : tuned_splits)
        if (const Variant variant = variant_of(tile, static_cast<std::uint32_t>(splits)); variant != all[0].variant)
          all.push_back({variant});
    return all;
  }

  static std::vector<Candidate> best_of_each_tile(const std::vector<Candidate>& all) {
    std::vector<Candidate> best;
    for (const Candidate& one : all) {
      const auto same = std::find_if(best.begin(), best.end(), [&](const Candidate& other) {
        return has_sizes_of(one.variant.tile, other.variant.tile);
      });
      if (same == best.end())
        best.push_back(one);
      else if (one.time < same->time)
        *same = one;
    }
    return best;
  }

  static void add_changes(const Variant& base, std::vector<Candidate>& to) {
    const auto add = [&](const char* change, auto&& apply) {
      Variant variant = base;
      apply(variant);
      to.push_back({variant, change});
    };
    to.push_back({base});
    if (!base.keeps_x) {
      if (base.tile.k_warps > 1)
        add("barrier",
            [](Variant& v) { v.tile.barrier = v.tile.barrier == XBarrier::block ? XBarrier::group : XBarrier::block; });
      add("loads_first", [](Variant& v) { v.tile.loads_first = !v.tile.loads_first; });
    }
    for (std::uint32_t steps = 0; steps <= 4; ++steps)
      if (steps != base.tile.prefetched_steps)
        add("prefetched_steps", [&](Variant& v) { v.tile.prefetched_steps = steps; });
    add("keeps_x", [](Variant& v) { v.keeps_x = !v.keeps_x; });
    add("overlaps", [](Variant& v) { v.overlaps = !v.overlaps; });
    add("grid", [](Variant& v) { v.is_resident = !v.is_resident; });
  }

  // The base again, and what the fastest change of each kind makes of it.
  static void add_together(const Candidate& base, const std::vector<Candidate>& loops, std::vector<Candidate>& to) {
    std::map<std::string, const Candidate*> best;
    for (const Candidate& one : loops) {
      if (one.time >= base.time || !has_sizes_of(one.variant.tile, base.variant.tile)) continue;
      const Candidate*& own = best[one.change];
      if (own == nullptr || one.time < own->time) own = &one;
    }
    Variant all = base.variant;
    for (const auto& [change, one] : best) {
      const Variant& from = one->variant;
      if (change == "barrier") all.tile.barrier = from.tile.barrier;
      if (change == "loads_first") all.tile.loads_first = from.tile.loads_first;
      if (change == "prefetched_steps") all.tile.prefetched_steps = from.tile.prefetched_steps;
      if (change == "keeps_x") all.keeps_x = from.keeps_x;
      if (change == "overlaps") all.overlaps = from.overlaps;
      if (change == "grid") all.is_resident = from.is_resident;
    }
    to.push_back({base.variant});
    if (all != base.variant) to.push_back({all, "together"});
  }

  // Those of the candidates that are possible and right, with their times. Prints a line for each.
  std::vector<Candidate> measured(const std::string& stage, std::vector<Candidate> candidates, double share) {
    std::erase_if(candidates, [&](const Candidate& one) { return !is_possible(one.variant); });
    const auto name_of = [&](const Candidate& one) { return name_ + "/" + stage + "/" + text_of(one.variant); };
    const auto launch = [&](const Candidate& one, std::size_t copy, cudaStream_t stream) {
      session_.find(one.variant)->launch(product_.call<TunedCall>(copy, session_.codebook), one.variant, stream);
    };
    std::vector<Candidate> right;
    for (Timed<Candidate>& one :
         product_.measured(session_.report, std::move(candidates), share * seconds_, name_of, launch)) {
      print(stage, one);
      one.candidate.time = one.times.median;
      right.push_back(std::move(one.candidate));
    }
    return right;
  }

  void print(const std::string& stage, const Timed<Candidate>& one) const {
    Json line = product_.line_of(one);
    line["stage"] = stage;
    line["change"] = one.candidate.change;
    line["default"] = one.candidate.variant == default_variant();
    line["variant"] = json_of(one.candidate.variant);
    line["gb_s"] = product_.gb_s(one);
    line["share_of_read"] = product_.gb_s(one) / session_.read_gb_s;
    line["share_of_hbm"] = product_.gb_s(one) / nominal_gb_s();
    Report::print(line);
  }

  Session& session_;
  Shape shape_;
  u64 m_;
  TunedProduct<FourBit> product_;
  std::string name_;
  double seconds_;
};

class Tuning {
 public:
  /// Whether all results were right.
  bool run(const std::vector<Shape>& chosen) {
    print_device();
    session_.read_gb_s = measured_bandwidth();
    for (const Shape& shape : chosen) run_shape(shape);
    return session_.report.all_right();
  }

 private:
  // Of the time that is left, each m that is left gets the same.
  void run_shape(const Shape& shape) {
    const auto weights = random_copies<FourBit>(shape);
    const Clock::time_point begin = Clock::now();
    for (std::size_t i = 0; i < tuned_m.size(); ++i) {
      const std::chrono::duration<double> passed = Clock::now() - begin;
      const double seconds = (seconds_of(shape) - passed.count()) / static_cast<double>(tuned_m.size() - i);
      const std::string name = "tune/" + shape.text() + "/m" + std::to_string(tuned_m[i]);
      session_.report.attempt(name, [&] { Case(session_, shape, tuned_m[i], weights, name, seconds).run(); });
    }
  }

  Session session_;
};

int run(int argc, char** argv) {
  bool few_rows = false, many_rows = false, int8 = false;
  std::string text;
  std::vector<Shape> chosen = all_shapes();
  std::vector<std::string> names;
  for (const Shape& shape : chosen) names.push_back(shape.text());
  CLI::App app("Variants of the product of few rows of x, in microseconds");
  CLI::Option* const rows_option = app.add_flag("--many-rows", many_rows, "Kernels for 24 to 256 rows instead");
  CLI::Option* const few_rows_option =
      app.add_flag("--few-rows", few_rows, "The kernel that TMA feeds, for up to 16 rows, instead");
  CLI::Option* const int8_option = app.add_flag("--int8", int8, "Products with int8 weights instead");
  CLI::Option* const shape_option = app.add_option("--shape", text, "This shape alone")->check(CLI::IsMember(names));
  int8_option->excludes(rows_option)->excludes(shape_option);
  few_rows_option->excludes(int8_option)->excludes(rows_option)->excludes(shape_option);
  CLI11_PARSE(app, argc, argv);
  if (!has_gpu()) return no_gpu_code;
  if (!text.empty()) std::erase_if(chosen, [&](const Shape& shape) { return shape.text() != text; });
  if (int8) return tune_int8() ? 0 : 1;
  if (few_rows) return tune_few_rows() ? 0 : 1;
  return (many_rows ? tune_many_rows() : Tuning().run(chosen)) ? 0 : 1;
}

}  // namespace

double measured_bandwidth() {
  constexpr u64 bytes = bandwidth_bytes;
  const Buffer from = Buffer::of(random_bf16(bytes / 2, 1, 1)), sink(4);
  const Times times = measure({{"kernel", 1, [&](std::size_t, cudaStream_t stream) {
                                  read_bytes(from.as<void>(), sink.as<void>(), bytes, stream);
                                }}})[0];
  const double gb_s = static_cast<double>(bytes) / times.median * 1e-3;
  Json line = line_of("read/kernel", times);
  line["bytes"] = bytes;
  line["gb_s"] = gb_s;
  Report::print(line);
  return gb_s;
}

void print_device() {
  const std::time_t now = std::time(nullptr);
  char today[16];
  std::strftime(today, sizeof today, "%Y-%m-%d", std::gmtime(&now));
  Json device = device_line();
  device["date"] = today;
  Report::print(device);
}

}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::result_of(nibble::bench::run, argc, argv); }
