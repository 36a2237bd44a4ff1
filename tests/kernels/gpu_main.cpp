// The tests of kernels on a GPU: nibble_kernel_tests_gpu. Without one, all are skipped, and the exit code is 77.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>

namespace {

cudaError_t find_gpu() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  return error == cudaSuccess && devices == 0 ? cudaErrorNoDevice : error;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // Not by a test's own GTEST_SKIP: a fixture may need the device before its test begins.
  if (const cudaError_t error = find_gpu(); error != cudaSuccess && !testing::GTEST_FLAG(list_tests)) {
    std::printf("no GPU: %s; every test was skipped\n", cudaGetErrorString(error));
    return 77;
  }
  return RUN_ALL_TESTS();
}
