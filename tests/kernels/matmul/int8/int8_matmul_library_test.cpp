// Products with int8 weights that cuBLASLt does.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/host/matmul/int8/int8_matmul_config.hpp"
#include "tests/kernels/matmul/int8/int8_matmul_support.hpp"
#include "tests/kernels/matmul/library_support.hpp"

namespace nibble::kernels {
namespace {

using namespace device;
using test::Int8Problem;
using test::Int8Run;
using test::Int8Shape;

class Int8MatmulLibrary : public test::LibraryTest {
 protected:
  static void expect_product(Int8Shape shape, u32 seed) {
    shape.by_library = true;
    SCOPED_TRACE(testing::PrintToString(shape));
    const Int8Problem problem(shape, seed);
#if !defined(NIBBLE_ON_GPU)
    const auto before = library().products;
#endif
    test::expect_values(problem, Int8Run(problem).product());
#if !defined(NIBBLE_ON_GPU)
    EXPECT_GT(library().products, before);
#endif
  }
};

TEST_F(Int8MatmulLibrary, Values) {
  u32 seed = 1;
  for (const nibble_dtype dtype : {NIBBLE_BF16, NIBBLE_F16})
    for (const bool y_f32 : {false, true}) {
      expect_product({.m = 5, .n = 20, .k = 70, .dtype = dtype, .y_f32 = y_f32}, seed++);
      expect_product({.m = 5,
                      .n = 20,
                      .k = 64,
                      .bias = true,
                      .dtype = dtype,
                      .x_stride = 3,
                      .y_stride = 5,
                      .x_f32 = true,
                      .y_f32 = y_f32,
                      .accumulate = true},
                     seed++);
      expect_product({.m = 5,
                      .n = 20,
                      .k = 70,
                      .bias = true,
                      .dtype = dtype,
                      .codes_offset = 1,
                      .y_f32 = y_f32,
                      .panel_bytes = 3 * 140},
                     seed++);
    }
}

TEST_F(Int8MatmulLibrary, FromSoManyRowsOn) {
  constexpr u64 least = int8_matmul::min_library_m;
  const Int8Problem problem({.m = least, .n = 4, .k = 64}, 20);
  const Int8Run run(problem);
  const nibble_int8 weight = run.weight();
  nibble_matrix x = run.x();
  const DeviceArray<u8> y_array = run.y();
  nibble_matrix y = run.y_of(y_array);
  const nibble_int8_product product{sizeof(nibble_int8_product), &weight, nullptr, &y};
  nibble_matmul call = run.call();
  call.x = &x;
  constexpr std::size_t library_bytes = std::size_t{32} << 20;
  EXPECT_LT(cuda::workspace_bytes(call, product), library_bytes);  // which says NIBBLE_NO_LIBRARY
  call.min_library_m = 0;
  const std::size_t bytes = cuda::workspace_bytes(call, product);
  EXPECT_EQ(bytes, 240 + 4 * 128 + library_bytes);
  EXPECT_EQ(nibble_matmul_int8(&call, &product, nullptr, bytes - 1, nullptr), NIBBLE_USAGE);
  EXPECT_EQ(std::string(nibble_last_error()),
            "workspace_bytes is " + std::to_string(bytes - 1) + ", at least " + std::to_string(bytes) + " are needed");
  x.rows = y.rows = least - 1;
  EXPECT_LT(cuda::workspace_bytes(call, product), library_bytes);
}

#if !defined(NIBBLE_ON_GPU)
TEST_F(Int8MatmulLibrary, ItProposesNothing) {
  library().proposes_nothing = true;
  Int8Problem problem({.m = 66, .n = 20, .k = 128, .bias = true}, 21);
  const std::vector<float> fused = Int8Run(problem).product();
  problem.shape.by_library = true;
  EXPECT_EQ(Int8Run(problem).product(), fused);
  EXPECT_EQ(library().products, 0U);
}
#endif

}  // namespace
}  // namespace nibble::kernels
