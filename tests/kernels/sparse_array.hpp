// Memory of which little is there, for tests of sizes beyond 32 bits in the simulator.
#pragma once
#include <sys/mman.h>

#include <new>

#include "tests/simulator/global_memory.hpp"

namespace nibble::test {

/// An array of the simulated device that may be larger than the memory of the machine: zeros, of which only what is
/// touched takes space.
template <class T> class SparseArray {
 public:
  explicit SparseArray(device::u64 n) : bytes_(n * sizeof(T)), region_("sparse", map(bytes_), bytes_) {}
  ~SparseArray() { munmap(region_.base(), bytes_); }
  SparseArray(const SparseArray&) = delete;
  SparseArray& operator=(const SparseArray&) = delete;
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(region_.base()); }

 private:
  static void* map(device::u64 bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return memory;
  }
  device::u64 bytes_;
  device::simulator::Region region_;
};

}  // namespace nibble::test
