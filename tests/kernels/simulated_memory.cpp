// Lets programs that load the simulated libnibble_cuda call kernels with memory of their own.
#include <cstdint>
#include <map>
#include <memory>

#include "nibble/kernels.h"
#include "tests/simulator/global_memory.hpp"

namespace {

using nibble::device::simulator::Region;

std::map<std::uintptr_t, std::unique_ptr<Region>>& regions() {
  static std::map<std::uintptr_t, std::unique_ptr<Region>> all;
  return all;
}

}  // namespace

// Counts these bytes as device memory, and no longer what overlapped them, which must have been freed.
extern "C" NIBBLE_API void nibble_simulate_memory(void* memory, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  std::erase_if(regions(), [&](const auto& other) {
    return other.first < begin + bytes && begin < other.first + other.second->bytes();
  });
  regions()[begin] = std::make_unique<Region>("memory of the caller", memory, bytes);
}
