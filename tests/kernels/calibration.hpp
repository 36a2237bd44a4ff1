// What calibrate.cpp compares: the results of each function of the device layer on the same random inputs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace nibble::test {

struct Calibration {
  std::string name;
  std::vector<std::uint32_t> results;
};

/// By the simulator, and by the GPU. calibration.cu defines both, compiled twice; the simulator's lies in a shared
/// library of its own, since the layer's types have the same names on both sides and are not the same.
__attribute__((visibility("default"))) std::vector<Calibration> calibrate_simulator(std::uint32_t seed);
std::vector<Calibration> calibrate_gpu(std::uint32_t seed);

/// Of the current device, as 90 for sm_90; 0 if there is none.
unsigned gpu_capability();

}  // namespace nibble::test
