#include "kernels/host/matmul/int8/int8_matmul_config.hpp"

#include <gtest/gtest.h>

#include <string>

#include "kernels/device/types.hpp"
#include "nibble/kernels.h"

namespace nibble::kernels::int8_matmul {
namespace {

using device::ceil_div;

TEST(Int8MatmulConfig, EveryMHasAKernelThatTakesIt) {
  for (const u64 n : {u64{0}, u64{1}, u64{4096}, u64{28672}, (u64{1} << 31) - 1})
    for (const u64 k : {u64{0}, u64{16}, u64{8192}, (u64{1} << 31) - 16})
      for (u64 m = 1; m <= 66; ++m) {
        const LaunchConfig config = config_for(m, n, k);
        ASSERT_GE(config.tile.block_m(), m < max_m ? m : max_m) << m;
        ASSERT_GE(config.splits, 1U);
        ASSERT_LE(config.splits, 16U);
        ASSERT_LE(config.splits, ceil_div<u64>(k, config.tile.block_k()) + 1);
      }
}

// Without splits: 2 turns of 264 blocks, each of 64 x 1024 codes and half the bytes of x, by the costs of the table.
TEST(Int8MatmulConfig, CostsAreThoseOfTheTable) {
  const LaunchConfig config = config_for(8, 64 * 2 * 264, 1024);
  EXPECT_EQ(config.tile, (Tile{.m_tiles = 1, .n_warps = 2, .k_warps = 4, .n_tiles = 2, .groups = 2}));
  EXPECT_EQ(config.splits, 1U);
  EXPECT_EQ(config.cost, 264 * (2 * (64 * 1024 + 8 * 1024 + costs.bytes_of_an_end) + costs.bytes_of_a_start));
}

// Configurations that are known to be chosen by these estimates: they decide the order of additions.
TEST(Int8MatmulConfig, KnownOnes) {
  const auto text = [](u64 m, u64 n, u64 k) {
    const LaunchConfig config = config_for(m, n, k);
    return std::to_string(config.tile.block_n()) + "x" + std::to_string(config.splits);
  };
  EXPECT_EQ(text(1, 28672, 8192), "64x4");
  EXPECT_EQ(text(64, 28672, 8192), "128x1");
  EXPECT_EQ(text(1, 4096, 4096), "16x1");
  EXPECT_EQ(text(8, 4096, 4096), "64x4");
  EXPECT_EQ(text(32, 4096, 4096), "128x4");
}

// Blocks divide k where n has fewer tiles than multiprocessors have room for, and only as far as there are counters.
TEST(Int8MatmulConfig, SplitsHaveCounters) {
  EXPECT_GT(config_for(1, 1024, 16384).splits, 1U);
  EXPECT_EQ(config_for(8, 64 * 2 * 132, 8192).splits, 1U);  // two blocks on each of 132 multiprocessors
  for (u64 m = 64; m < u64{1} << 31; m *= 4) {
    const LaunchConfig config = config_for(m, 64, 65536);
    if (config.splits == 1) continue;
    EXPECT_LE(ceil_div<u64>(64, config.tile.block_n()) * ceil_div<u64>(m, config.tile.block_m()), u64{NIBBLE_COUNTERS})
        << m;
  }
}

}  // namespace
}  // namespace nibble::kernels::int8_matmul
