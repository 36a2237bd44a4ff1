// For tests of products that cuBLASLt does: the simulator's own (simulated_cublaslt.cpp), or on a GPU the real one.
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "kernels/device/types.hpp"
#if !defined(NIBBLE_ON_GPU)
#include "tests/kernels/host/library/simulated_cublaslt.hpp"
#include "tests/simulator/global_memory.hpp"
#endif

namespace nibble::kernels::test {

#if defined(NIBBLE_ON_GPU)
class LibraryTest : public testing::Test {
 protected:
  void SetUp() override {
    if (dlopen("libcublasLt.so.13", RTLD_NOW) == nullptr && dlopen("libcublasLt.so.12", RTLD_NOW) == nullptr)
      GTEST_SKIP() << dlerror();
  }
};
#else

/// What the library touches must exist, what it reads be known, and what it writes not be an input. Then it is known.
inline void touch(const void* address, std::size_t bytes, bool writes) {
  using device::simulator::fail;
  using device::simulator::Fault;
  const device::Site here = device::Site::current();
  device::simulator::Region* const region = device::simulator::find_region(address);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (region == nullptr || !region->contains(at, bytes)) fail(Fault::global_bounds, here, "by the library");
  const std::size_t offset = at - reinterpret_cast<std::uintptr_t>(region->base());
  if (writes && region->is_read_only()) fail(Fault::misuse, here, "the library writes to " + region->name());
  if (writes)
    region->set_known(offset, bytes);
  else if (!region->is_read_only())
    region->require_known(offset, bytes, here);
}

/// Each test has the library with its own settings.
class LibraryTest : public testing::Test {
 protected:
  LibraryTest() { library() = {.touch = touch}; }
  ~LibraryTest() override { library() = {}; }

  static SimulatedCublasLt& library() {
    void* const handle = dlopen("libnibble_simulated_cublaslt.so", RTLD_NOW);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    return *reinterpret_cast<decltype(&simulated_cublaslt)>(dlsym(handle, "simulated_cublaslt"))();
  }
};
#endif

}  // namespace nibble::kernels::test
