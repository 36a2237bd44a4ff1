#include "bench/kernels/gpu/report.hpp"

#include <cuda_runtime.h>

#include <cstdio>
#include <iostream>

namespace nibble::bench {
namespace {

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, current_device()), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

bool has_gpu() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  std::puts("no GPU: nothing was measured");
  return false;
}

int result_of(int (*run)(int argc, char** argv), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}

double nominal_gb_s() {
  const int khz = attribute(cudaDevAttrMemoryClockRate), bits = attribute(cudaDevAttrGlobalMemoryBusWidth);
  return 2.0 * khz * bits / 8 * 1e-6;  // two transfers a clock
}

Json device_line() {
  int driver = 0, runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, current_device()), "cudaGetDeviceProperties");
  return {{"kind", "device"},
          {"gpu", properties.name},
          {"capability", 10 * properties.major + properties.minor},
          {"multiprocessors", properties.multiProcessorCount},
          {"memory_bytes", properties.totalGlobalMem},
          {"l2_bytes", properties.l2CacheSize},
          {"driver", driver},
          {"runtime", runtime},
          {"sm_khz", attribute(cudaDevAttrClockRate)},
          {"memory_khz", attribute(cudaDevAttrMemoryClockRate)},
          {"memory_bits", attribute(cudaDevAttrGlobalMemoryBusWidth)},
          {"hbm_gb_s", nominal_gb_s()}};
}

Json line_of(const std::string& name, const Times& times) {
  return {{"name", name},        {"unit", "us"},       {"median", times.median},
          {"low", times.low},    {"high", times.high}, {"replays", times.replays},
          {"calls", times.calls}};
}

void Report::print(const Json& line) { std::cout << line.dump() << std::endl; }

}  // namespace nibble::bench
