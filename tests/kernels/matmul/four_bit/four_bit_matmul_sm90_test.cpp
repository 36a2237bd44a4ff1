// The product for many rows of x on sm_90a: through the library against fp64, and the kernels by themselves, which the
// library would not choose for shapes this small.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
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

// The blocks of a cluster divide k between them.
TEST(FourBitMatmulSm90, SplitK) {
  const Shape shape{.m = 70, .n = 33, .k = 64 * 67, .bias = true, .accumulate = true};
  ASSERT_GT(four_bit_matmul::sm90_config_for(shape.m, shape.n, shape.k).splits, 1U);
  expect_product(shape, 5);
}

template <bool Nested, FourBitMatmulSm90Tile Tile>
using Items = test::TmaItems<FourBitMatmulSm90<bf16, Nested, Tile>, Nested>;

constexpr FourBitMatmulSm90Tile of_64_rows{.rows = 64, .n_warpgroups = 4, .k_warpgroups = 1},
    narrow_of_64_rows{.rows = 64, .n_warpgroups = 3, .k_warpgroups = 1},
    halves_of_64_rows{.rows = 64, .n_warpgroups = 2, .k_warpgroups = 2},
    of_32_rows{.rows = 32, .n_warpgroups = 2, .k_warpgroups = 2},
    wide_of_32_rows{.rows = 32, .n_warpgroups = 4, .k_warpgroups = 1},
    of_96_rows{.rows = 96, .n_warpgroups = 3, .k_warpgroups = 1},
    of_128_rows{.rows = 128, .n_warpgroups = 2, .k_warpgroups = 1};

// Every kernel of the plan, with each type of x and each form of absmax. Its blocks have several items, and the last
// step of k is short.
template <class Half, bool Nested, FourBitMatmulSm90Tile Tile> void expect_right_values() {
  const test::TmaItems<FourBitMatmulSm90<Half, Nested, Tile>, Nested, Half> items(
      {.m = Tile.rows + 5, .n = 2 * Tile.block_n() + 70, .k = 64 * 18 + 64 * (Tile.rows / 32)}, 2);
  test::expect_values(items.problem(), items.run());
}

NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, EveryKernelOfThePlan) {
  constexpr auto& choices = four_bit_matmul::sm90_choices;
  const auto expect = []<std::size_t... i>(std::index_sequence<i...>) {
    (expect_right_values<bf16, true, choices[i].tile>(), ...);
    (expect_right_values<bf16, false, choices[i].tile>(), ...);
    (expect_right_values<f16, true, choices[i].tile>(), ...);
    (expect_right_values<f16, false, choices[i].tile>(), ...);
  };
  expect(std::make_index_sequence<choices.size()>());
}

// Two blocks or clusters take several items each: tiles of n, chunks of m. The second problem has short steps.
NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, EverySynchronizationIsNeeded) {
  test::expect_all_needed<Items<true, of_64_rows>>({{.m = 70, .n = 270, .k = 64 * 26}, 1},
                                                   {{.m = 64, .n = 600, .k = 64 * 9}, 2});
  test::expect_all_needed<Items<true, of_32_rows>>({{.m = 70, .n = 140, .k = 64 * 11}, 1},
                                                   {{.m = 64, .n = 300, .k = 64 * 9}, 2});
  test::expect_all_needed<Items<false, wide_of_32_rows>>({{.m = 40, .n = 270, .k = 64 * 26}, 1},
                                                         {{.m = 64, .n = 600, .k = 64 * 9}, 2});
  test::expect_all_needed<Items<true, halves_of_64_rows>>({{.m = 70, .n = 140, .k = 64 * 11}, 1},
                                                          {{.m = 64, .n = 300, .k = 64 * 9}, 2});
  test::expect_all_needed<Items<false, narrow_of_64_rows>>({{.m = 70, .n = 270, .k = 64 * 26}, 1},
                                                           {{.m = 64, .n = 600, .k = 64 * 9}, 2});
  test::expect_all_needed<Items<false, of_96_rows>>({{.m = 97, .n = 200, .k = 64 * 13}, 2},
                                                    {{.m = 190, .n = 900, .k = 64}, 1});
  test::expect_all_needed<Items<true, of_128_rows>>({{.m = 120, .n = 300, .k = 64 * 23}, 2},
                                                    {{.m = 250, .n = 640, .k = 64}, 1});
}

// Tiles that leave warpgroups without work, in clusters of each size.
NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, TilesAndClustersOfAnySize) {
  for (const u32 splits : {1U, 2U, 4U, 8U})
    for (const u32 tile_n : {64U, 192U}) {
      const Items<true, of_64_rows> some({.m = 37, .n = 210, .k = 64 * 33}, splits, tile_n);
      test::expect_values(some.problem(), some.run());
      const Items<false, of_32_rows> halves({.m = 67, .n = 150, .k = 64 * 33}, splits, tile_n == 64 ? 64 : 128);
      test::expect_values(halves.problem(), halves.run());
      const Items<true, wide_of_32_rows> wide({.m = 37, .n = 210, .k = 64 * 33}, splits, tile_n);
      test::expect_values(wide.problem(), wide.run());
      const Items<false, halves_of_64_rows> halves_of_64({.m = 67, .n = 150, .k = 64 * 33}, splits,
                                                         tile_n == 64 ? 64 : 128);
      test::expect_values(halves_of_64.problem(), halves_of_64.run());
      const Items<true, narrow_of_64_rows> narrow({.m = 67, .n = 210, .k = 64 * 33}, splits, tile_n);
      test::expect_values(narrow.problem(), narrow.run());
      const Items<false, of_96_rows> more({.m = 103, .n = 210, .k = 64 * 33}, splits, tile_n);
      test::expect_values(more.problem(), more.run());
      const Items<true, of_128_rows> many({.m = 131, .n = 130, .k = 64 * 33}, splits, 64);
      test::expect_values(many.problem(), many.run());
    }
}

// A step of each length, and fewer steps than codes are copied ahead.
NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, ShortSteps) {
  for (const std::size_t groups : {1U, 2U, 3U, 4U, 5U, 8U}) {
    const Items<true, of_64_rows> items({.m = 33, .n = 300, .k = 64 * groups}, 1);
    EXPECT_EQ(items.right_values().size(), 33U * 300);
    const Items<false, of_128_rows> more({.m = 33, .n = 300, .k = 64 * groups}, 1);
    EXPECT_EQ(more.right_values().size(), 33U * 300);
    const Items<false, halves_of_64_rows> halves({.m = 33, .n = 300, .k = 64 * groups}, 1);
    EXPECT_EQ(halves.right_values().size(), 33U * 300);
    const Items<true, of_32_rows> few({.m = 17, .n = 300, .k = 64 * groups}, 1);
    EXPECT_EQ(few.right_values().size(), 17U * 300);
  }
}

// A group past the end of k would add 0 * absmax of the last group: NaN where that is infinite.
TEST(FourBitMatmulSm90, NothingIsMultipliedPastTheEndOfK) {
  constexpr std::size_t groups = 5;
  for (const std::size_t m : {20U, 70U, 130U}) {
    Problem problem({.m = m, .n = 20, .k = 64 * groups, .nested = false, .y_f32 = true}, 34);
    for (std::size_t last = groups - 1; last < problem.absmax.size(); last += groups)
      problem.absmax[last] = std::numeric_limits<float>::infinity();
    for (const float value : Product(problem).product()) ASSERT_TRUE(std::isinf(value)) << value;
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
  const Problem problem({.m = 70, .n = 300, .k = 64 * 20, .y_f32 = true, .overlap = true}, 27);
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
    test::expect_same_bytes<Product>(problem, {1U, 3U, 108U, 114U, 132U, 144U}, {90U});
    const Product run(problem);
    const std::vector<float> expected = run.product();
    nibble::test::on_devices({132U}, {80U, 100U}, [&] {
      const std::vector<float> elsewhere = run.product();
      test::expect_values(problem, elsewhere);
      EXPECT_NE(elsewhere, expected) << "the same kernel";
    });
  }
}

bool is_multiplied_by_wgmma(const Shape& shape, const Options& options = {}) {
  return test::is_multiplied_in("four_bit_matmul_sm90", shape, options);
}

NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, DevicesWithoutRoomForAClusterUseAnotherKernel) {
  const Shape shape{.m = 70, .n = 33, .k = 64 * 67};
  ASSERT_GT(four_bit_matmul::sm90_config_for(shape.m, shape.n, shape.k).splits, 2U);
  EXPECT_TRUE(is_multiplied_by_wgmma(shape));
  EXPECT_FALSE(is_multiplied_by_wgmma(shape, {.max_cluster = 2}));
}

// What it does not fit: fewer rows, experts, codes that TMA cannot copy, a weight of no rows beside one that has some.
NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, OtherwiseTheOtherKernel) {
  constexpr std::size_t m = four_bit_matmul::min_m_of_sm90;
  EXPECT_TRUE(is_multiplied_by_wgmma({.m = m, .n = 20, .k = 128}));
  EXPECT_FALSE(is_multiplied_by_wgmma({.m = m - 1, .n = 20, .k = 128}));
  EXPECT_FALSE(is_multiplied_by_wgmma({.m = m, .n = 20, .k = 128, .packed_offset = 8}));
  EXPECT_FALSE(is_multiplied_by_wgmma({.m = m, .n = 20, .k = 96}));
  EXPECT_FALSE(is_multiplied_by_wgmma({.m = m, .n = 20, .k = 128, .ends = {3, m + 5}}));
}

// A workspace for the other kernel, too: a plan may be made where there is no device. Nothing is read, so the sizes
// need not be those of the arrays.
NIBBLE_SIMULATED_TEST(FourBitMatmulSm90, TheWorkspaceIsForAnyDevice) {
  const Problem problem({.m = 65, .n = 4, .k = 64}, 31);
  const Product run(problem);
  const DeviceArray<u8> y_array = run.y();
  constexpr u64 n = 1000, k = 1024;
  nibble_four_bit weight = run.weight();
  nibble_matrix x = run.x(), y = run.y_of(y_array);
  weight.rows = y.columns = y.stride = n;
  weight.columns = x.columns = x.stride = k;
  const nibble_four_bit_product product{sizeof(nibble_four_bit_product), &weight, nullptr, &y};
  nibble_matmul matmul = run.call();
  matmul.x = &x;
  matmul.products = &product;
  matmul.product_count = 1;
  const u64 splits = four_bit_matmul::config_for(65, n, k, true).splits;
  ASSERT_GT(splits, 1U);
  EXPECT_EQ(cuda::workspace_bytes(matmul), NIBBLE_COUNTERS * 4 + splits * 65 * n * 4);
}

}  // namespace
}  // namespace nibble::kernels
