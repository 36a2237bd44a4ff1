// What the sources of the calibration share. The GPU's side and the simulator's have names of their own: types of the
// layer have the same names on both and are not the same.
#pragma once
#include <cstring>
#include <random>
#include <vector>

#include "kernels/device/types.hpp"
#include "tests/kernels/calibration.hpp"

#if defined(__CUDACC__)
#define NIBBLE_CALIBRATION_SIDE gpu
#else
#define NIBBLE_CALIBRATION_SIDE simulated
#endif

namespace nibble::test::NIBBLE_CALIBRATION_SIDE {

inline constexpr device::u32 warps = 4, threads_per_block = 32 * warps, blocks = 64;

/// Random words: four for each thread.
struct Inputs {
  std::vector<device::u32x4> words;
  explicit Inputs(device::u32 seed) : words(threads_per_block * blocks) {
    std::mt19937 random(seed);
    const auto word = [&] { return static_cast<device::u32>(random()); };
    for (device::u32x4& value : words) value = {word(), word(), word(), word()};
  }
};

template <class T> std::vector<device::u32> as_words(const std::vector<T>& values) {
  std::vector<device::u32> words(values.size() * sizeof(T) / sizeof(device::u32));
  std::memcpy(words.data(), values.data(), words.size() * sizeof(device::u32));
  return words;
}

struct Entry {
  const char* name;
  std::vector<device::u32> (*run)(const Inputs&);
  bool (*is_loaded)() = [] { return true; };  // on the current device
};

std::vector<Entry> every_device(), from_sm90();

}  // namespace nibble::test::NIBBLE_CALIBRATION_SIDE

namespace nibble::device::test {

using namespace nibble::test::NIBBLE_CALIBRATION_SIDE;

}  // namespace nibble::device::test
