// What calibrate.cpp compares: the results of each function of the device layer, or of a few that belong together, on
// the same random inputs. What a function leaves open is kept out of the results: the bits of a NaN, the order of the
// sums in mma (its inputs are small integers), and of atomic operations.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace nibble::test {

/// The names of all functions.
__attribute__((visibility("default"))) std::vector<std::string> calibrations();

/// By the simulator, and by the GPU. calibration.cu and calibration_sm90.cu define both, compiled twice; the
/// simulator's are in a shared library of their own. Throws std::out_of_range if there is no such name.
__attribute__((visibility("default"))) std::vector<std::uint32_t> calibrate_simulator(const std::string& name,
                                                                                      std::uint32_t seed);
std::vector<std::uint32_t> calibrate_gpu(const std::string& name, std::uint32_t seed);

/// Whether the current device has loaded code with that function.
bool is_on_gpu(const std::string& name);

/// Of the current device, as 90 for sm_90; 0 if there is none.
unsigned gpu_capability();

}  // namespace nibble::test
