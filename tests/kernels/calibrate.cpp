// Compares the simulator with a GPU, bit for bit: both rest on one reading of the PTX ISA, and this is what tests it.
//
//   nibble_calibrate [seeds]     0: all is equal; 1: something differs; 77: there is no GPU
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tests/kernels/calibration.hpp"

namespace nibble::test {
namespace {

// Prints a line for each function; returns how many differ.
int compare(std::uint32_t seed) {
  const std::vector<Calibration> simulated = calibrate_simulator(seed), measured = calibrate_gpu(seed);
  int different = 0;
  for (const Calibration& gpu : measured) {
    const auto same =
        std::find_if(simulated.begin(), simulated.end(), [&](const Calibration& one) { return one.name == gpu.name; });
    const auto [ours, theirs] = std::mismatch(same->results.begin(), same->results.end(), gpu.results.begin());
    if (ours == same->results.end()) {
      std::printf("equal      %-24s %zu words, seed %u\n", gpu.name.c_str(), gpu.results.size(), seed);
    } else {
      ++different;
      std::printf("DIFFERENT  %-24s seed %u, word %td: %08x simulated, %08x on the GPU\n", gpu.name.c_str(), seed,
                  ours - same->results.begin(), *ours, *theirs);
    }
  }
  return different;
}

int run(std::uint32_t seeds) {
  const unsigned capability = gpu_capability();
  std::printf("simulated: %zu functions\n", calibrate_simulator(1).size());
  if (capability == 0) {
    std::printf("no GPU: nothing was compared\n");
    return 77;
  }
  int different = 0;
  for (std::uint32_t seed = 1; seed <= seeds; ++seed) different += compare(seed);
  return different == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace nibble::test

int main(int argc, char** argv) {
  try {
    return nibble::test::run(argc > 1 ? static_cast<std::uint32_t>(std::strtoul(argv[1], nullptr, 10)) : 5);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
