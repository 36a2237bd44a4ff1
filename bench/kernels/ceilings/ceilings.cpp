// What the kernels are measured against: one part a process.
//
//   bench_ceilings bf16-nt|bf16-nn|fp8-nt|s8-nt|scratch|library|errors|launches [--cublaslt LIBRARY]
//
// 0: all was right; 1: a result was wrong, or CUDA failed; 77: there is no GPU; 78: there is no cuBLASLt.
#include "bench/kernels/ceilings/ceilings.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include "bench/kernels/gpu/bandwidth.hpp"

namespace nibble::bench {
namespace {

constexpr int no_peer_code = 78;

// Kernels that do nothing: in a graph, and launched one by one.
void measure_launches(Report& report) {
  int device = 0, multiprocessors = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  for (const unsigned blocks : {1u, static_cast<unsigned>(multiprocessors), 8 * static_cast<unsigned>(multiprocessors)})
    for (const bool in_graph : {true, false}) {
      const std::string name =
          std::string("launches/") + (in_graph ? "graph" : "stream") + "/blocks" + std::to_string(blocks);
      report.attempt(name, [&] {
        const Contender empty{"empty", 1, [&](std::size_t, cudaStream_t stream) { launch_empty(blocks, stream); },
                              in_graph};
        Report::print(line_of(name, measure({empty}, {.seconds = 0.3, .min_calls = empty_launches})[0]));
      });
    }
}

int run(int argc, char** argv) {
  std::string part, cublaslt;
  CLI::App app("What the kernels are measured against");
  app.add_option("part", part)
      ->required()
      ->check(CLI::IsMember({"bf16-nt", "bf16-nn", "fp8-nt", "s8-nt", "scratch", "library", "errors", "launches"}));
  app.add_option("--cublaslt", cublaslt, "The library, if it is not where libraries are")->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  if (!has_gpu()) return no_gpu_code;
  Report report;
  if (part == "launches") {
    Report::print(device_line());
    measure_launches(report);
    return report.all_right() ? 0 : 1;
  }
  const std::unique_ptr<Cublas> cublas = Cublas::open(cublaslt);
  if (!cublas) {
    std::puts("there is no cuBLASLt");
    return no_peer_code;
  }
  Json device = device_line();
  device["cublaslt"] = cublas->version();
  Report::print(device);
  if (part == "scratch")
    measure_scratch(*cublas, report);
  else if (part == "library")
    measure_library(*cublas, report);
  else if (part == "errors")
    measure_errors(*cublas, report);
  else
    measure_cublas(*cublas,
                   part == "fp8-nt"  ? Cublas::Type::fp8
                   : part == "s8-nt" ? Cublas::Type::s8
                                     : Cublas::Type::bf16,
                   part == "bf16-nn", report);
  return report.all_right() ? 0 : 1;
}

}  // namespace
}  // namespace nibble::bench

int main(int argc, char** argv) { return nibble::bench::result_of(nibble::bench::run, argc, argv); }
