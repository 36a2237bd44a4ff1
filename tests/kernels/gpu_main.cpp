// The tests of kernels on a GPU: nibble_kernel_tests_gpu. Without one, each is skipped, and the exit code is 77.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdio>

namespace {

cudaError_t find_gpu() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  return error == cudaSuccess && devices == 0 ? cudaErrorNoDevice : error;
}

class SkipsWithoutGpu : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*test*/) override {
    if (const cudaError_t error = find_gpu(); error != cudaSuccess)
      GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new SkipsWithoutGpu);  // which takes it
  const int result = RUN_ALL_TESTS();
  if (result != 0 || testing::GTEST_FLAG(list_tests) || find_gpu() == cudaSuccess) return result;
  std::puts("no GPU: every test was skipped");
  return 77;
}
