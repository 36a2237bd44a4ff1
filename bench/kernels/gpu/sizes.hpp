// What is measured on a GPU; and, by tests/bench/kernels/simulated.py, tried without one on sizes that a simulator can
// do.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace nibble::bench {

using u64 = std::uint64_t;

struct Shape {
  u64 n, k;        // output features, input features
  u64 block = 64;  // weights per absmax
  [[nodiscard]] u64 size() const { return n * k; }
  /// The weights of a row that are sure to share an absmax, 64 at most. k is a multiple of 8.
  [[nodiscard]] constexpr std::uint32_t run() const {
    std::uint32_t run = 64;
    while (run > block || k % run != 0) run /= 2;
    return run;
  }
  [[nodiscard]] bool has_usual_blocks() const { return block == 64 && run() == 64; }
  [[nodiscard]] std::string text() const {
    return std::to_string(n) + "x" + std::to_string(k) + (block == 64 ? "" : "b" + std::to_string(block));
  }
};

constexpr std::array<u64, 5> decode_m = {1, 8, 16, 32, 64};
constexpr std::array<u64, 5> tuned_splits = {1, 2, 4, 8, 16};
#if !defined(NIBBLE_BENCH_SIMULATED)
constexpr Shape shapes[] = {{4096, 4096}, {14336, 4096}, {28672, 8192}};
// Of products alone: blocks of 32; the k of a SigLIP, and half of it, of which a block of 64 may straddle two rows.
// Their runs are 32, 16 and 8.
constexpr Shape product_shapes[] = {{14336, 4096, 32}, {16384, 4304}, {16384, 2152}};
// Weights that share x: those of q, k and v, by that of q. Experts: up and gate of a Qwen3-30B-A3B.
constexpr Shape shared_shape{4096, 4096}, expert_shape{1536, 2048};
constexpr u64 experts = 128, experts_of_a_token = 8;
constexpr std::array<u64, 3> expert_tokens = {1, 8, 64};
constexpr std::array<u64, 2> table_many_m = {128, 256};
constexpr u64 uncached_bytes = 250'000'000;  // more than any cache holds
constexpr u64 bandwidth_bytes = u64{1} << 30;
constexpr std::array<u64, 15> ceiling_m = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr std::array<u64, 8> scratch_m = {16, 64, 256, 1024, 2048, 4096, 8192, 16384};
constexpr std::array<u64, 6> library_m = {64, 128, 256, 512, 1024, 2048};
constexpr std::size_t empty_launches = 500;
constexpr std::array<u64, 6> tuned_m = {1, 4, 8, 16, 32, 64};
constexpr std::size_t tuned_calls = 20;
constexpr std::array<u64, 9> many_m = {24, 32, 33, 48, 64, 96, 128, 192, 256};
// Of the kernels that TMA feeds: those of the table, the largest first, and a weight for few multiprocessors.
constexpr Shape tma_shapes[] = {{28672, 8192}, {14336, 4096}, {4096, 4096}, {1024, 4096}};
#else
constexpr Shape shapes[] = {{64, 256}, {64, 512}, {192, 256}};
constexpr Shape product_shapes[] = {{64, 256, 32}, {64, 304}, {64, 152}};
constexpr Shape shared_shape{64, 256}, expert_shape{32, 256};
constexpr u64 experts = 4, experts_of_a_token = 2;
constexpr std::array<u64, 2> expert_tokens = {1, 8};
constexpr std::array<u64, 1> table_many_m = {128};
constexpr u64 uncached_bytes = 20'000;
constexpr u64 bandwidth_bytes = u64{1} << 15;
constexpr std::array<u64, 4> ceiling_m = {1, 8, 48, 272};
constexpr std::array<u64, 2> scratch_m = {16, 272};
constexpr std::array<u64, 2> library_m = {48, 272};
constexpr std::size_t empty_launches = 2;
constexpr std::array<u64, 3> tuned_m = {1, 16, 64};
constexpr std::size_t tuned_calls = 1;
constexpr std::array<u64, 2> many_m = {33, 160};
constexpr Shape tma_shapes[] = {{64, 256}, {64, 512}, {192, 256}};
#endif

/// Those of products: `shapes`, then `product_shapes`.
inline std::vector<Shape> all_shapes() {
  std::vector<Shape> all(std::begin(shapes), std::end(shapes));
  all.insert(all.end(), std::begin(product_shapes), std::end(product_shapes));
  return all;
}

/// The weights of q, k and v for the shape of q's. That of k and of v has a quarter of its rows.
inline std::vector<Shape> shared_shapes(const Shape& q) { return {q, {q.n / 4, q.k}, {q.n / 4, q.k}}; }

/// So many routings of one token exist of which no two use the same expert.
constexpr u64 distinct_routings = experts / experts_of_a_token;

/// Where the rows of x that each expert takes end: tokens are sorted by expert, and each has experts_of_a_token of
/// them.
inline std::vector<std::uint32_t> expert_ends(u64 tokens, u64 seed) {
  std::vector<std::uint32_t> ends(experts);
  for (u64 token = 0; token < tokens; ++token)
    for (u64 i = 0; i < experts_of_a_token; ++i) ++ends[(seed + 5 * token) % distinct_routings + i * distinct_routings];
  for (u64 i = 1; i < experts; ++i) ends[i] += ends[i - 1];
  return ends;
}

/// The experts that have rows.
inline u64 used_experts(const std::vector<std::uint32_t>& ends) {
  u64 used = 0;
  for (u64 i = 0; i < experts; ++i) used += ends[i] > (i == 0 ? 0 : ends[i - 1]);
  return used;
}

/// How many copies of so many bytes have more than uncached_bytes together; at least two.
constexpr std::size_t copies_of(u64 bytes) {
  const std::size_t copies = uncached_bytes / bytes + 1;
  return copies < 2 ? 2 : copies;
}

}  // namespace nibble::bench
