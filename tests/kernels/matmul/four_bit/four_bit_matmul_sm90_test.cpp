// The product for many rows of x on sm_90a: through the library against fp64, and the kernels by themselves, which the
// library would not choose for shapes this small.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_sm90.hpp"
#include "tests/kernels/matmul/four_bit/four_bit_matmul_support.hpp"
#include "tests/kernels/matmul/four_bit/four_bit_matmul_tma_support.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::kernels {
namespace {

using namespace device;
using nibble::test::Options;
using test::expect_product;
using test::Problem;
using test::Product;
using test::Shape;

TEST(FourBitMatmulSm90, RandomShapes) {
  test::expect_random_products(24, 4, [](u32 i, auto& below) {
    const bool large = i % 6 == 0;
    return Shape{.m = four_bit_matmul::min_m_of_sm90 + below(large ? 200 : 40),
                 .n = 1 + below(large ? 300 : 140),
                 .k = 64 * (1 + below(large ? 14 : 6)),
                 .blocksize = 64u << below(7),
                 .x_stride = below(2) == 0 ? 8 * below(4) : 0,
                 .packed_offset = 16 * below(3),
                 .y_f32 = below(3) == 0,
                 .accumulate = below(3) == 0,
                 .overlap = below(2) == 0};
  });
}

TEST(FourBitMatmulSm90, SlicesAndFp32X) {
  expect_product({.m = 70, .n = 20, .k = 128, .first = 128 * 7}, 1);
  expect_product({.m = 70, .n = 130, .k = 192, .blocksize = 256, .nested = false, .first = 64, .gap = 320}, 2);
  expect_product({.m = 99, .n = 20, .k = 320, .x_f32 = true, .y_f32 = true}, 3);
  expect_product({.m = 99, .n = 20, .k = 320, .dtype = NIBBLE_F16, .x_f32 = true, .overlap = true}, 4);
}

// Blocks divide k between them; a caller's counters are left as they were.
TEST(FourBitMatmulSm90, SplitK) {
  const Shape shape{.m = 70, .n = 33, .k = 64 * 67, .bias = true, .accumulate = true};
  ASSERT_GT(four_bit_matmul::sm90_config_for(shape.m, shape.n, shape.k).splits, 1U);
  expect_product(shape, 5);
  const Problem problem(shape, 6);
  const Product run(problem);
  const std::vector<float> expected = run.product();
  const auto counters = DeviceArray<u32>::workspace(std::vector<u32>(NIBBLE_COUNTERS), {.name = "counters"});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run.product(counters.data()), expected);
  EXPECT_THAT(counters.to_host(), testing::Each(0U));
}

template <bool Nested, u32 Rows> using Items = test::TmaItems<FourBitMatmulSm90<bf16, Nested, Rows>, Nested>;

// Two blocks take 4 items or more: tiles of n, chunks of m, splits of k. Where all steps are whole, x alone holds the
// copies back with 128 rows: the second problem has short ones.
NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, EverySynchronizationIsNeeded) {
  test::expect_all_needed<Items<true, 64>>({{.m = 70, .n = 140, .k = 64 * 26}, 1},
                                           {{.m = 64, .n = 259, .k = 64 * 9}, 2});
  test::expect_all_needed<Items<false, 96>>({{.m = 97, .n = 130, .k = 64 * 13}, 3}, {{.m = 190, .n = 640, .k = 64}, 1});
  test::expect_all_needed<Items<true, 128>>({{.m = 120, .n = 300, .k = 64 * 23}, 2},
                                            {{.m = 250, .n = 640, .k = 64}, 1});
}

// A step of each length, and fewer steps than codes are copied ahead.
NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, ShortSteps) {
  for (const std::size_t groups : {1U, 2U, 3U, 4U, 5U, 8U}) {
    const Items<true, 64> items({.m = 33, .n = 300, .k = 64 * groups}, 1);
    EXPECT_EQ(items.right_values().size(), 33U * 300);
  }
}

// The weights of q, k and v in one launch, with and without splits.
TEST(FourBitMatmulSm90, WeightsThatShareX) {
  for (const std::size_t k : {192U, 64U * 40}) {
    const Problem q({.m = 80, .n = 140, .k = k, .bias = true}, 20), key({.m = 80, .n = 12, .k = k}, 21),
        value({.m = 80, .n = 33, .k = k, .bias = true}, 22);
    test::expect_shared_x({&q, &key, &value});
  }
}

// The device is one of 9.0 that has code for sm_80: CUDA_FORCE_PTX_JIT is set, or there is no other code.
NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, CodeForSm80IsThatOfTheOtherKernel) {
  const Problem problem({.m = 70, .n = 300, .k = 64 * 20, .overlap = true}, 27);
  const Product run(problem);
  Options options{.capability = 80};
  const auto with_options = [&] {
    const device::simulator::ScopedOptions scope(options);
    return run.product();
  };
  const std::vector<float> expected = with_options();
  options = {.capability = 90, .target = 80};
  EXPECT_EQ(with_options(), expected);
  options.target = 90;
  EXPECT_NE(with_options(), expected) << "the same kernel";
}

// One kernel for 9.0, the other elsewhere: both are right. On 9.0, few blocks or many give the same bytes.
NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, DevicesOfAnySizeGiveTheSameBytes) {
  for (const Shape& shape : {Shape{.m = 70, .n = 300, .k = 64 * 20}, Shape{.m = 160, .n = 150, .k = 64 * 9}}) {
    const Problem problem(shape, 28);
    test::expect_same_bytes<Product>(problem, {1U, 3U, 114U, 144U}, {90U});
    const Product run(problem);
    const std::vector<float> expected = run.product();
    nibble::test::on_devices({132U}, {80U, 100U}, [&] {
      const std::vector<float> elsewhere = run.product();
      test::expect_values(problem, elsewhere);
      EXPECT_NE(elsewhere, expected) << "the same kernel";
    });
  }
}

// What it does not fit: fewer rows, experts, codes that TMA cannot copy, a weight of no rows beside one that has some.
NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, OtherwiseTheOtherKernel) {
  const auto multiplies_by_wgmma = [](const Shape& shape) {
    return test::is_multiplied_in("four_bit_matmul_sm90", shape);
  };
  constexpr std::size_t m = four_bit_matmul::min_m_of_sm90;
  EXPECT_TRUE(multiplies_by_wgmma({.m = m, .n = 20, .k = 128}));
  EXPECT_FALSE(multiplies_by_wgmma({.m = m - 1, .n = 20, .k = 128}));
  EXPECT_FALSE(multiplies_by_wgmma({.m = m, .n = 20, .k = 128, .packed_offset = 8}));
  EXPECT_FALSE(multiplies_by_wgmma({.m = m, .n = 20, .k = 96}));
  EXPECT_FALSE(multiplies_by_wgmma({.m = m, .n = 20, .k = 128, .ends = {3, m + 5}}));
}

// A workspace for either kernel: a plan may be made where there is no device, or another one. Nothing is read, so the
// sizes need not be those of the arrays.
NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, TheWorkspaceIsForAnyDevice) {
  const Problem problem({.m = 65, .n = 4, .k = 64}, 31);
  const Product run(problem);
  const DeviceArray<u8> y_array = run.y();
  const auto expect_splits = [&](u64 n, u64 k, u64 splits) {
    nibble_four_bit weight = run.weight();
    nibble_matrix x = run.x(), y = run.y_of(y_array);
    weight.rows = y.columns = y.stride = n;
    weight.columns = x.columns = x.stride = k;
    const nibble_four_bit_product product{sizeof(nibble_four_bit_product), &weight, nullptr, &y};
    nibble_matmul matmul = run.call();
    matmul.x = &x;
    matmul.products = &product;
    matmul.product_count = 1;
    EXPECT_EQ(cuda::workspace_bytes(matmul), NIBBLE_COUNTERS * 4 + splits * 65 * n * 4);
  };
  using four_bit_matmul::config_for;
  using four_bit_matmul::sm90_config_for;
  const u64 of_sm90 = sm90_config_for(65, 5724, 14336).splits, of_other = config_for(65, 1000, 1024, true).splits;
  ASSERT_GT(of_sm90, config_for(65, 5724, 14336, true).splits);
  ASSERT_GT(of_other, sm90_config_for(65, 1000, 1024).splits);
  expect_splits(5724, 14336, of_sm90);
  expect_splits(1000, 1024, of_other);
}

}  // namespace
}  // namespace nibble::kernels
