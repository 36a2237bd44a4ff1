// Prints how the library's plan does each product of the speed table, as JSON lines, for predictions.py. No GPU.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "bench/kernels/gpu/sizes.hpp"
#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"
#include "kernels/host/matmul/int8/int8_matmul_config.hpp"

namespace nibble::bench {
namespace {

namespace four_bit = nibble::kernels::four_bit_matmul;
namespace int8 = nibble::kernels::int8_matmul;
using Json = nlohmann::ordered_json;
using device::ceil_div;

Json line_of(const std::string& operation, const std::string& shape, u64 n, u64 k, u64 m) {
  return {{"operation", operation}, {"shape", shape}, {"n", n}, {"k", k}, {"m", m}};
}

/// A launch over weights of so many n each, of which weight w has blocks_of[w] blocks. Items are tiles times splits;
/// `turns` are the most that a block takes.
template <class Tile>
Json launch_of(const Tile& tile, u64 splits, u64 cost, const std::vector<u64>& all_n, u64 k,
               const std::vector<std::uint32_t>& blocks_of) {
  u64 tiles = 0, blocks = 0, turns = 0;
  for (std::size_t i = 0; i < all_n.size(); ++i) {
    const u64 own = ceil_div<u64>(all_n[i], tile.block_n());
    tiles += own;
    blocks += blocks_of[i];
    turns = std::max(turns, ceil_div<u64>(own * splits, blocks_of[i]));
  }
  const u64 k_of_item = ceil_div(ceil_div<u64>(k, tile.block_k()), splits) * tile.block_k();
  return {{"m_tiles", tile.m_tiles},
          {"n_warps", tile.n_warps},
          {"k_warps", tile.k_warps},
          {"n_tiles", tile.n_tiles},
          {"block_n", tile.block_n()},
          {"block_k", tile.block_k()},
          {"max_m", tile.max_m()},
          {"min_blocks", tile.min_blocks()},
          {"tiles", tiles},
          {"splits", splits},
          {"k_of_item", k_of_item},
          {"blocks", blocks},
          {"turns", turns},
          {"cost", cost}};
}

template <class Tile>
std::vector<std::uint32_t> shares_of_blocks(const Tile& tile, u64 splits, const std::vector<u64>& all_n) {
  std::vector<u64> items;
  for (const u64 n : all_n) items.push_back(ceil_div<u64>(n, tile.block_n()) * splits);
  return kernels::shares_of_blocks(items, kernels::multiprocessors_to_fill * tile.min_blocks());
}

/// The members of a tile by which its kernel is named in the record of the machine code.
Json members_of(const kernels::FourBitMatmulFewRowsTile& tile) {
  return {tile.m_tiles, tile.n_warps, tile.k_warps, tile.n_tiles};
}
Json members_of(const kernels::FourBitMatmulSm90Tile& tile) {
  return {tile.rows, tile.n_warpgroups, tile.k_warpgroups};
}

/// A kernel that TMA feeds, by its tile.
template <class Tile> Json tma_kernel_of(const Tile& tile) {
  const bool has_wgmma = std::is_same_v<Tile, kernels::FourBitMatmulSm90Tile>;
  return {{"kernel", has_wgmma ? "FourBitMatmulSm90" : "FourBitMatmulFewRows"},
          {"tile", members_of(tile)},
          {"block_n", tile.block_n()},
          {"block_k", tile.block_k()},
          {"max_m", tile.max_m()},
          {"stages", Tile::code_stages}};
}

/// A launch of it over weights of so many n each. An item is a tile of n and max_m rows of x; a cluster of `splits`
/// blocks does it, and divides k. `turns` is the largest number of items that a cluster does.
template <class Config> Json tma_launch_of(const Config& config, const std::vector<u64>& all_n, u64 k, u64 m) {
  std::vector<u64> items;
  u64 sum = 0, blocks = 0, turns = 0;
  for (const u64 n : all_n) {
    items.push_back(ceil_div<u64>(n, config.tile_n) * ceil_div<u64>(m, config.tile.max_m()));
    sum += items.back();
  }
  const u64 clusters = four_bit::clusters_of(config.splits);
  const std::vector<std::uint32_t> shares = kernels::shares_of_blocks(items, clusters);
  for (std::size_t i = 0; i < items.size(); ++i) {
    blocks += u64{shares[i]} * config.splits;
    turns = std::max(turns, ceil_div<u64>(items[i], shares[i]));
  }
  Json launch = tma_kernel_of(config.tile);
  launch.update(
      {{"tile_n", config.tile_n},
       {"splits", config.splits},
       {"k_of_item", ceil_div(ceil_div<u64>(k, config.tile.block_k()), u64{config.splits}) * config.tile.block_k()},
       {"items", sum},
       {"clusters", clusters},
       {"blocks", blocks},
       {"turns", turns},
       {"seconds", 1e-9 * static_cast<double>(config.cost)}});
  return launch;
}

/// What a device of 9.0 launches if runs are 64 and there are no experts: for m up to 16 FourBitMatmulFewRows, and
/// then FourBitMatmulSm90, which it uses from min_m_of_sm90 on.
Json with_tma(Json line, const std::vector<u64>& all_n, u64 k, u64 m) {
  u64 n = 0;
  for (const u64 one : all_n) n += one;
  const bool is_few = m <= four_bit::max_m_of_few_rows;
  line["tma"] = is_few ? tma_launch_of(four_bit::few_rows_config_for(m, n, k), all_n, k, m)
                       : tma_launch_of(four_bit::sm90_config_for(m, n, k), all_n, k, m);
  line["by_tma"] = is_few || m >= four_bit::min_m_of_sm90;
  return line;
}

/// FourBitMatmul: weights that share x.
Json with_four_bit(Json line, const std::vector<u64>& all_n, u64 k, u64 m, std::uint32_t run) {
  u64 n = 0;
  for (const u64 one : all_n) n += one;
  const four_bit::LaunchConfig config = four_bit::config_for(m, n, k, true, run);
  line.update(launch_of(config.tile, config.splits, config.cost, all_n, k,
                        shares_of_blocks(config.tile, config.splits, all_n)));
  line["run"] = run;
  // What the plan takes a block to keep.
  const u64 rows = std::min<u64>(m, config.tile.max_m());
  line["keeps_x"] = config.tile.m_tiles == 1 && run == 64 && rows * k * 2 <= four_bit::bytes_of_kept_x;
  return line;
}

void print(const Json& line) { std::printf("%s\n", line.dump().c_str()); }

void print_four_bit(const Shape& shape) {
  std::set<u64> all_m(decode_m.begin(), decode_m.end());
  if (shape.has_usual_blocks()) {
    all_m.insert(many_m.begin(), many_m.end());
    all_m.insert(table_many_m.begin(), table_many_m.end());
    all_m.insert(library_m.begin(), library_m.end());
  }
  for (const u64 m : all_m) {
    Json line = with_four_bit(line_of("matmul", shape.text(), shape.n, shape.k, m), {shape.n}, shape.k, m, shape.run());
    if (shape.run() == 64) line = with_tma(line, {shape.n}, shape.k, m);
    line["by_library"] = m >= four_bit::min_library_m;
    print(line);
  }
}

void print_shared() {
  std::vector<u64> all_n;
  std::string name;
  u64 n = 0;
  for (const Shape& shape : shared_shapes(shared_shape)) {
    all_n.push_back(shape.n);
    name += (n == 0 ? "" : "+") + std::to_string(shape.n);
    n += shape.n;
  }
  name += "x" + std::to_string(shared_shape.k);
  for (const u64 m : decode_m)
    print(with_tma(with_four_bit(line_of("shared-matmul", name, n, shared_shape.k, m), all_n, shared_shape.k, m, 64),
                   all_n, shared_shape.k, m));
}

/// Of the experts that tokens use, of which all have equally many rows of x, and a block for each tile.
void print_experts() {
  for (const u64 tokens : expert_tokens) {
    const auto ends = expert_ends(tokens, 0);
    const u64 n = expert_shape.n, k = expert_shape.k, used = used_experts(ends);
    const u64 m = ceil_div(tokens * experts_of_a_token, experts);
    const four_bit::LaunchConfig config = four_bit::config_for(m, experts * n, k, false);
    Json line = line_of("expert-matmul", std::to_string(experts) + "x" + expert_shape.text(), used * n, k,
                        ends[0]);  // expert 0 is used
    line["tokens"] = tokens;
    line["used_experts"] = used;
    const auto tiles = static_cast<std::uint32_t>(ceil_div<u64>(n, config.tile.block_n()));
    line.update(
        launch_of(config.tile, 1, config.cost, std::vector<u64>(used, n), k, std::vector<std::uint32_t>(used, tiles)));
    line["run"] = 64;
    line["keeps_x"] = false;
    print(line);
  }
}

void print_int8(const Shape& shape) {
  for (const u64 m : decode_m) {
    Json line = line_of("int8-matmul", shape.text(), shape.n, shape.k, m);
    const int8::LaunchConfig config = int8::config_for(m, shape.n, shape.k);
    line.update(launch_of(config.tile, config.splits, config.cost, {shape.n}, shape.k,
                          shares_of_blocks(config.tile, config.splits, {shape.n})));
    line["load_bytes"] = shape.k % 16 == 0 ? 16 : 8;
    print(line);
  }
}

/// What the plan launches for shapes of all sizes: tests compare it with the mirror of the plan in tune_sm90.py.
void print_launches() {
  for (const u64 n : {16, 200, 1000, 1536, 2560, 5120, 11008, 17408, 53248})
    for (const u64 k : {64, 256, 960, 2048, 5120, 8192, 28672})
      for (const u64 m : {1, 2, 5, 8, 9, 13, 16, 17, 32, 40, 64, 90, 128, 200, 500})
        print(with_tma(line_of("launch", std::to_string(n) + "x" + std::to_string(k), n, k, m), {n}, k, m));
}

/// The kernels that are compiled, for the tables of their machine code.
void print_kernels() {
  const auto print_lanes = [](const char* kernel, const auto& choices) {
    for (const auto& choice : choices) {
      const auto& tile = choice.tile;
      Json line = {{"operation", "kernel"}, {"kernel", kernel}, {"min_m", choice.min_m}, {"max_m", choice.max_m}};
      line.update({{"m_tiles", tile.m_tiles},
                   {"n_warps", tile.n_warps},
                   {"k_warps", tile.k_warps},
                   {"n_tiles", tile.n_tiles},
                   {"block_n", tile.block_n()},
                   {"block_k", tile.block_k()}});
      if constexpr (requires { tile.run; }) line["run"] = tile.run;
      print(line);
    }
  };
  print_lanes("FourBitMatmul", four_bit::choices);
  print_lanes("FourBitMatmul", four_bit::choices_of_short_runs);
  print_lanes("Int8Matmul", int8::choices);
  const auto print_tma = [](const auto& choice, u64 min_m, u64 max_m) {
    Json line = {{"operation", "kernel"}};
    line.update(tma_kernel_of(choice.tile));
    line.update({{"min_m", min_m}, {"max_m", max_m}});
    if constexpr (requires { choice.tile.consumer_registers(); }) line["registers"] = choice.tile.consumer_registers();
    print(line);
  };
  for (const auto& choice : four_bit::few_rows_choices) print_tma(choice, choice.min_m, choice.max_m);
  for (const auto& choice : four_bit::sm90_choices) print_tma(choice, four_bit::min_m_of_sm90, choice.tile.max_m());
}

}  // namespace
}  // namespace nibble::bench

int main() {
  using namespace nibble::bench;
  for (const Shape& shape : all_shapes()) print_four_bit(shape);
  print_shared();
  print_experts();
  for (const Shape& shape : all_shapes())
    if (shape.block == 64) print_int8(shape);
  print_kernels();
  print_launches();
}
