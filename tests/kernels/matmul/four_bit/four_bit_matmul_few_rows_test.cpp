// The product for few rows of x on sm_90a, fed by TMA: through the library against fp64, and the kernels by
// themselves, which the library would not choose for shapes this small.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"
#include "kernels/matmul/four_bit/four_bit_matmul_few_rows.hpp"
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

TEST(FourBitMatmulFewRows, RandomShapes) {
  test::expect_random_products(32, 4, [](u32 i, auto& below) {
    const bool large = i % 6 == 0;
    return Shape{.m = 1 + below(four_bit_matmul::max_m_of_few_rows),
                 .n = 1 + below(large ? 300 : 140),
                 .k = 64 * (1 + below(large ? 40 : 12)),
                 .blocksize = 64u << below(7),
                 .nested = below(3) != 0,
                 .x_stride = below(2) == 0 ? 8 * below(4) : 0,
                 .packed_offset = 16 * below(3),
                 .y_f32 = below(3) == 0,
                 .accumulate = below(3) == 0,
                 .overlap = below(2) == 0};
  });
}

TEST(FourBitMatmulFewRows, SlicesAndFp32X) {
  expect_product({.m = 7, .n = 20, .k = 128, .first = 128 * 7}, 1);
  expect_product({.m = 1, .n = 20, .k = 128, .x_stride = 1}, 5);
  expect_product({.m = 12, .n = 130, .k = 192, .blocksize = 256, .nested = false, .first = 64, .gap = 320}, 2);
  expect_product({.m = 9, .n = 20, .k = 320, .x_f32 = true, .y_f32 = true}, 3);
  expect_product({.m = 1, .n = 20, .k = 320, .dtype = NIBBLE_F16, .x_f32 = true, .overlap = true}, 4);
}

// The blocks of a cluster divide k between them.
TEST(FourBitMatmulFewRows, SplitK) {
  for (const auto& [m, groups] : {std::pair{2U, 300U}, {14U, 67U}}) {
    const Shape shape{.m = m, .n = 33, .k = 64 * groups, .bias = true, .accumulate = true};
    ASSERT_GT(four_bit_matmul::few_rows_config_for(shape.m, shape.n, shape.k).splits, 1U);
    expect_product(shape, 5);
  }
}

template <bool Nested, FourBitMatmulFewRowsTile Tile>
using Items = test::TmaItems<FourBitMatmulFewRows<bf16, Nested, Tile>, Nested>;

constexpr FourBitMatmulFewRowsTile of_8_rows{.m_tiles = 1, .n_warps = 1, .k_warps = 16};
constexpr FourBitMatmulFewRowsTile of_16_rows{.m_tiles = 2, .n_warps = 2, .k_warps = 8};
constexpr FourBitMatmulFewRowsTile wide_of_16_rows{.m_tiles = 2, .n_warps = 4, .k_warps = 4};

// Two blocks or clusters take several tiles of n each. The ring of stages comes round several times.
NIBBLE_SIMULATED_TEST(FourBitMatmulFewRows, EverySynchronizationIsNeeded) {
  test::expect_all_needed<Items<true, of_8_rows>>({{.m = 5, .n = 140, .k = 64 * 40}, 1},
                                                  {{.m = 8, .n = 70, .k = 64 * 70}, 2});
  test::expect_all_needed<Items<false, of_8_rows>>({{.m = 3, .n = 290, .k = 64 * 30}, 1},
                                                   {{.m = 1, .n = 40, .k = 64 * 130}, 2});
  test::expect_all_needed<Items<true, of_16_rows>>({{.m = 11, .n = 300, .k = 64 * 20}, 1},
                                                   {{.m = 16, .n = 290, .k = 64 * 35}, 2, 48});
  test::expect_all_needed<Items<true, wide_of_16_rows>>({{.m = 14, .n = 520, .k = 64 * 11}, 1},
                                                        {{.m = 16, .n = 300, .k = 64 * 19}, 2, 80});
}

// Tiles of 16 to all of block_n, which leave some warps half of their work or none, in clusters of each size.
NIBBLE_SIMULATED_TEST(FourBitMatmulFewRows, TilesAndClustersOfAnySize) {
  constexpr FourBitMatmulFewRowsTile wide{.m_tiles = 1, .n_warps = 4, .k_warps = 4};
  for (const u32 splits : {1U, 2U, 4U, 8U})
    for (const u32 tile_n : {16U, 48U, 112U}) {
      const Items<true, wide> few({.m = 5, .n = 130, .k = 64 * 33}, splits, tile_n);
      test::expect_values(few.problem(), few.run());
      const Items<false, wide_of_16_rows> more({.m = 13, .n = 130, .k = 64 * 33}, splits, tile_n);
      test::expect_values(more.problem(), more.run());
    }
}

// A step of each length, and fewer steps than there are copiers and stages.
NIBBLE_SIMULATED_TEST(FourBitMatmulFewRows, ShortSteps) {
  for (const std::size_t groups : {1U, 2U, 3U, 15U, 16U, 17U, 33U}) {
    const Items<true, of_8_rows> items({.m = 3, .n = 100, .k = 64 * groups}, 1);
    EXPECT_EQ(items.right_values().size(), 300U);
    const Items<true, wide_of_16_rows> more({.m = 11, .n = 150, .k = 64 * groups}, 1);
    EXPECT_EQ(more.right_values().size(), 11U * 150);
  }
}

// The weights of q, k and v in one launch, with and without splits.
TEST(FourBitMatmulFewRows, WeightsThatShareX) {
  for (const bool splits : {false, true}) {
    const std::size_t k = splits ? 64 * 200 : 192;
    ASSERT_EQ(four_bit_matmul::few_rows_config_for(12, 140 + 12 + 33, k).splits > 1, splits);
    const Problem q({.m = 12, .n = 140, .k = k, .bias = true, .overlap = true}, 20),
        key({.m = 12, .n = 12, .k = k, .overlap = true}, 21),
        value({.m = 12, .n = 33, .k = k, .bias = true, .overlap = true}, 22);
    test::expect_shared_x({&q, &key, &value});
  }
}

// On 9.0, few blocks or many give the same bytes; elsewhere, and where there is code for sm_80 alone, another kernel is
// right, too.
NIBBLE_SIMULATED_TEST(FourBitMatmulFewRows, DevicesOfAnySizeGiveTheSameBytes) {
  for (const Shape& shape : {Shape{.m = 1, .n = 300, .k = 64 * 20}, Shape{.m = 15, .n = 150, .k = 64 * 9}}) {
    const Problem problem(shape, 28);
    test::expect_same_bytes<Product>(problem, {1U, 3U, 108U, 114U, 132U, 144U}, {90U});
    const Product run(problem);
    nibble::test::on_devices({132U}, {80U, 100U}, [&] { test::expect_values(problem, run.product()); });
    const device::simulator::ScopedOptions scope(Options{.capability = 90, .target = 80});
    test::expect_values(problem, run.product());
  }
}

bool is_for_few_rows(const Shape& shape, const Options& options = {}) {
  return test::is_multiplied_in("four_bit_matmul_few_rows", shape, options);
}

NIBBLE_SIMULATED_TEST(FourBitMatmulFewRows, DevicesWithoutRoomForAClusterUseAnotherKernel) {
  const Shape shape{.m = 14, .n = 33, .k = 64 * 67};
  ASSERT_GT(four_bit_matmul::few_rows_config_for(shape.m, shape.n, shape.k).splits, 2U);
  EXPECT_TRUE(is_for_few_rows(shape));
  EXPECT_FALSE(is_for_few_rows(shape, {.max_cluster = 2}));
}

// What it does not fit: more rows, experts, codes that TMA cannot copy, shorter runs.
NIBBLE_SIMULATED_TEST(FourBitMatmulFewRows, OtherwiseTheOtherKernels) {
  constexpr std::size_t m = four_bit_matmul::max_m_of_few_rows;
  EXPECT_TRUE(is_for_few_rows({.m = m, .n = 20, .k = 128}));
  EXPECT_FALSE(is_for_few_rows({.m = m + 1, .n = 20, .k = 128}));
  EXPECT_FALSE(is_for_few_rows({.m = m, .n = 20, .k = 128, .packed_offset = 8}));
  EXPECT_FALSE(is_for_few_rows({.m = m, .n = 20, .k = 96}));
  EXPECT_FALSE(is_for_few_rows({.m = m, .n = 20, .k = 128, .ends = {3, m}}));
}

}  // namespace
}  // namespace nibble::kernels
