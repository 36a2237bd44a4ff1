// What is measured on a GPU; and, by tests/bench/kernels/simulated.py, tried without one on sizes that a simulator can
// do.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace nibble::bench {

using u64 = std::uint64_t;

struct Shape {
  u64 n, k;        // output features, input features
  u64 block = 64;  // weights per absmax
  [[nodiscard]] u64 size() const { return n * k; }
  [[nodiscard]] bool has_usual_blocks() const { return block == 64 && k % block == 0; }
  [[nodiscard]] std::string text() const {
    return std::to_string(n) + "x" + std::to_string(k) + (block == 64 ? "" : "b" + std::to_string(block));
  }
};

constexpr std::array<u64, 5> decode_m = {1, 8, 16, 32, 64};
constexpr std::array<u64, 5> tuned_splits = {1, 2, 4, 8, 16};
#if !defined(NIBBLE_BENCH_SIMULATED)
constexpr Shape shapes[] = {{4096, 4096}, {14336, 4096}, {28672, 8192}};
// Of products alone: blocks of 32, and the k of a SigLIP, of which a block of 64 may straddle two rows.
constexpr Shape product_shapes[] = {{14336, 4096, 32}, {16384, 4304}};
constexpr u64 uncached_bytes = 250'000'000;  // more than any cache holds
constexpr u64 bandwidth_bytes = u64{1} << 30;
constexpr std::array<u64, 15> ceiling_m = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
constexpr std::array<u64, 8> scratch_m = {16, 64, 256, 1024, 2048, 4096, 8192, 16384};
constexpr std::array<u64, 6> library_m = {64, 128, 256, 512, 1024, 2048};
constexpr std::size_t empty_launches = 500;
constexpr std::array<u64, 6> tuned_m = {1, 4, 8, 16, 32, 64};
constexpr std::size_t tuned_calls = 20;
constexpr std::array<u64, 7> many_m = {33, 48, 64, 96, 128, 192, 256};
#else
constexpr Shape shapes[] = {{64, 256}, {64, 512}, {192, 256}};
constexpr Shape product_shapes[] = {{64, 256, 32}, {64, 304}};
constexpr u64 uncached_bytes = 20'000;
constexpr u64 bandwidth_bytes = u64{1} << 15;
constexpr std::array<u64, 4> ceiling_m = {1, 8, 48, 272};
constexpr std::array<u64, 2> scratch_m = {16, 272};
constexpr std::array<u64, 2> library_m = {48, 272};
constexpr std::size_t empty_launches = 2;
constexpr std::array<u64, 3> tuned_m = {1, 16, 64};
constexpr std::size_t tuned_calls = 1;
constexpr std::array<u64, 2> many_m = {33, 160};
#endif

/// How many copies of so many bytes have more than uncached_bytes together; at least two.
constexpr std::size_t copies_of(u64 bytes) {
  const std::size_t copies = uncached_bytes / bytes + 1;
  return copies < 2 ? 2 : copies;
}

}  // namespace nibble::bench
