// Every registered codec, in cache and far beyond it, beside memcpy in the same run.
//
//   cmake --preset release -DNIBBLE_BENCH=ON && cmake --build --preset release --target bench_codecs
//   build/release/bench/bench_codecs --benchmark_format=json

#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <vector>

#include "nibble/codec.hpp"

namespace {

constexpr std::int64_t in_cache = 1 << 16;   // weights: 256 KiB of fp32
constexpr std::int64_t in_memory = 1 << 28;  // 1 GB: shared caches hold hundreds of megabytes
constexpr std::uint64_t chunk = 1 << 18;     // as the pipeline cuts
constexpr std::uint64_t columns = 1 << 12;

std::vector<float> normal_weights(std::int64_t count) {
  // Drawn once for 64 K weights and repeated: drawing a gigabyte would take longer than all benchmarks.
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> weights(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = i < in_cache ? normal(generator) : weights[i - in_cache];
  return weights;
}

void encode(benchmark::State& state, std::string_view name) {
  const std::vector<float> weights = normal_weights(state.range(0));
  const auto codec = nibble::make_codec(name);
  const nibble::TensorInfo tensor{"w.weight", nibble::DType::f32, {weights.size() / columns, columns}};
  const nibble::Chunking chunking = codec->chunking(tensor, chunk);
  const std::uint64_t stored = codec->parts(tensor).front().bytes();
  std::vector<std::byte> out(stored);
  const auto bytes = std::as_bytes(std::span(weights));
  for (auto _ : state) {
    const auto encoder = codec->encoder(tensor, chunking);
    for (std::uint64_t first = 0; first < weights.size(); first += chunking.weights) {
      const std::uint64_t count = std::min<std::uint64_t>(chunking.weights, weights.size() - first);
      const auto to = std::span(out).subspan(first * stored / weights.size(), count * stored / weights.size());
      benchmark::DoNotOptimize(encoder->encode(first, bytes.subspan(4 * first, 4 * count), to));
    }
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes.size()));
}

void copy(benchmark::State& state) {
  const std::vector<float> from = normal_weights(state.range(0));
  std::vector<float> to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), 4 * from.size());
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(4 * from.size()));
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("memcpy", copy)->Arg(in_cache)->Arg(in_memory);
  for (const std::string_view name : nibble::codec_names())
    benchmark::RegisterBenchmark((std::string(name) + "_encode").c_str(), encode, name)->Arg(in_cache)->Arg(in_memory);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
