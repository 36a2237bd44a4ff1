// The tests of kernels on a GPU: nibble_kernel_tests_gpu. Without one, each is skipped.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

namespace {

class SkipsWithoutGpu : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& /*test*/) override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new SkipsWithoutGpu);  // which takes it
  return RUN_ALL_TESTS();
}
