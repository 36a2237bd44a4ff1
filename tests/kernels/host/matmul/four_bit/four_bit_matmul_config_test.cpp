// Which kernel and how many splits a product gets: shapes whose configuration is known, and what holds for every shape.
#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace nibble::kernels::four_bit_matmul {
namespace {

struct Known {
  u64 m, n, k;
  u32 block_n, block_k, splits;
};

// The order of additions in a product follows from its configuration, so another one changes results.
TEST(FourBitMatmulConfig, OfKnownShapes) {
  const std::vector<Known> all{
      {1, 28672, 8192, 16, 2048, 1},  {1, 14336, 4096, 64, 512, 1},   {1, 4096, 4096, 16, 2048, 1},
      {4, 4096, 4096, 64, 512, 4},    {8, 4096, 4096, 64, 512, 4},    {1, 8192, 8192, 32, 1024, 1},
      {1, 33, 2560, 16, 2048, 2},     {8, 28672, 8192, 64, 512, 1},   {9, 8192, 8192, 128, 256, 4},
      {16, 14336, 4096, 128, 256, 2}, {17, 4096, 14336, 128, 256, 4}, {32, 28672, 8192, 128, 256, 1},
      {33, 8192, 8192, 256, 128, 4},  {64, 1024, 4096, 128, 256, 16}, {1000, 28672, 8192, 256, 128, 1}};
  for (const Known& known : all) {
    const LaunchConfig config = config_for(known.m, known.n, known.k, true);
    EXPECT_EQ(config.tile.block_n(), known.block_n) << known.m << " x " << known.n << " x " << known.k;
    EXPECT_EQ(config.tile.block_k(), known.block_k) << known.m << " x " << known.n << " x " << known.k;
    EXPECT_EQ(config.splits, known.splits) << known.m << " x " << known.n << " x " << known.k;
  }
}

TEST(FourBitMatmulConfig, OfAnyShapeHasOneOfTheKernelsWithRoomForIt) {
  std::mt19937_64 random(1);
  for (u64 m = 0; m <= 2 * max_m; ++m)
    for (int i = 0; i < 200; ++i) {
      const u64 n = i == 0 ? ~u64{0} >> 32 : random() % (u64{1} << (1 + random() % 18));
      const u64 k = random() % (u64{1} << (1 + random() % 18));
      const LaunchConfig config = config_for(m, n, k, true);
      ASSERT_TRUE(
          std::any_of(choices.begin(), choices.end(), [&](const Choice& choice) { return choice.tile == config.tile; }))
          << m << " x " << n << " x " << k;
      ASSERT_LE(std::min(m, max_m), config.tile.max_m());
      ASSERT_GE(config.splits, 1U);
      ASSERT_LE(config.splits, 16U);
      ASSERT_LE((config.splits - 1) * config.tile.block_k(), k) << "a split that has no step";
      ASSERT_TRUE(config.splits == 1 || groups_of(config.tile, m, n) <= max_groups);
      ASSERT_EQ(config_for(m, n, k, false).splits, 1U);
    }
}

TEST(FourBitMatmulConfig, OfShortRunsHasAKernelForThem) {
  std::mt19937_64 random(2);
  for (const u32 run : short_runs)
    for (u64 m = 0; m <= 2 * max_m; ++m)
      for (int i = 0; i < 50; ++i) {
        const u64 n = random() % (u64{1} << (1 + random() % 18)), k = random() % (u64{1} << (1 + random() % 18));
        const LaunchConfig config = config_for(m, n, k, true, run);
        ASSERT_EQ(config.tile.run, run);
        ASSERT_TRUE(std::any_of(choices_of_short_runs.begin(), choices_of_short_runs.end(),
                                [&](const Choice& choice) { return choice.tile == config.tile; }));
        ASSERT_EQ(config.tile.max_m(), m <= 8 ? 8 : 32);
        ASSERT_GE(config.splits, 1U);
        ASSERT_LE((config.splits - 1) * config.tile.block_k(), k) << "a split that has no step";
        ASSERT_TRUE(config.splits == 1 || groups_of(config.tile, m, n) <= max_groups);
      }
  // Splits of known shapes. The fourth would be 2 if the x of short runs were kept, the fifth 5 if a kernel took all 64
  // rows of x at a time.
  EXPECT_EQ(config_for(1, 1152, 4304, true, 16).splits, 9U);
  EXPECT_EQ(config_for(1, 4096, 4096, true, 32).splits, 4U);
  EXPECT_EQ(config_for(64, 4096, 4096, true, 32).splits, 4U);
  EXPECT_EQ(config_for(1, 6784, 4352, true, 32).splits, 9U);
  EXPECT_EQ(config_for(64, 2368, 3328, true, 16).splits, 13U);
}

// Nothing depends on a device: the workspace is for this kernel, too.
TEST(FourBitMatmulConfig, ManyRowsHaveAKernelAndWholeSteps) {
  for (const u64 m : {65U, 96U, 97U, 128U, 129U, 1000U, 100'000U})
    for (const u64 n : {1U, 128U, 129U, 4096U, 28672U, 1'000'000U})
      for (const u64 k : {64U, 256U, 320U, 8192U}) {
        const Sm90Config config = sm90_config_for(m, n, k);
        ASSERT_TRUE(config.rows == 64 || config.rows == 96 || config.rows == 128);
        ASSERT_GE(config.splits, 1U);
        ASSERT_LE(config.splits, std::min<u64>(16, (k + 255) / 256)) << "a split that has no step";
        const u64 groups = (n + 127) / 128 * ((m + config.rows - 1) / config.rows);
        ASSERT_TRUE(config.splits == 1 || groups <= max_groups) << m << " x " << n << " x " << k;
      }
  // docs/four-bit-matmul.md
  EXPECT_EQ(sm90_config_for(96, 14336, 4096).rows, 96U);
  EXPECT_EQ(sm90_config_for(128, 28672, 8192).rows, 128U);
  EXPECT_EQ(sm90_config_for(128, 4096, 4096).splits, 4U);
  EXPECT_EQ(sm90_config_for(128, 14336, 4096).splits, 1U);
}

// Blocks of 256 threads, whose shared memory and registers the kernel counts on.
TEST(FourBitMatmulConfig, EveryKernelHas256Threads) {
  for (const Choice& choice : choices) EXPECT_EQ(choice.tile.threads(), 256U);
  for (const Choice& choice : choices_of_short_runs) EXPECT_EQ(choice.tile.threads(), 256U);
}

TEST(FourBitMatmulConfig, ADeviceHasARowOfItsOwnOrThatOfItsCapability) {
  const std::vector<DeviceTuning> rows{{90, 132, 1, true}, {80, 108, 2, true}, {90, 0, 3, true}, {80, 0, 4, true}};
  const auto row_of = [&](u32 capability, u32 multiprocessors) {
    return tuning_of(capability, multiprocessors, rows).max_kept_x_bytes;
  };
  EXPECT_EQ(row_of(90, 132), 1U);
  EXPECT_EQ(row_of(80, 108), 2U);
  EXPECT_EQ(row_of(90, 114), 3U);
  EXPECT_EQ(row_of(100, 132), 3U);
  EXPECT_EQ(row_of(86, 108), 4U);
  EXPECT_EQ(row_of(75, 108), 4U);  // the last one, whatever it is
}

TEST(FourBitMatmulConfig, WithoutMeasurementsOnlyDevicesFrom90OnKeepX) {
  constexpr u32 of_no_device = 1;
  EXPECT_EQ(tuning_of(80, of_no_device).max_kept_x_bytes, 0U);
  EXPECT_EQ(tuning_of(89, of_no_device).max_kept_x_bytes, 0U);
  EXPECT_GT(tuning_of(90, of_no_device).max_kept_x_bytes, 0U);
  EXPECT_EQ(devices.back().capability, 0U);
  EXPECT_EQ(devices.back().multiprocessors, 0U);
}

TEST(FourBitMatmulConfig, BlocksAreResidentOrHaveAnItemEach) {
  constexpr DeviceTuning resident{90, 132, 0, true}, one_each{90, 132, 0, false};
  const auto blocks = [](const DeviceTuning& tuning, std::vector<u64> items) { return blocks_for(tuning, items, 264); };
  using Blocks = std::vector<u32>;
  EXPECT_EQ(blocks(resident, {1000}), Blocks{264});
  EXPECT_EQ(blocks(resident, {512, 128, 128}), (Blocks{178, 43, 43}));
  EXPECT_EQ(blocks(one_each, {1000}), Blocks{1000});
  EXPECT_EQ(blocks(one_each, {100, 200}), (Blocks{100, 200}));
  EXPECT_EQ(blocks(one_each, {0x7fffffff}), Blocks{0x7fffffff});
  EXPECT_EQ(blocks(one_each, {u64{1} << 33}), Blocks{0x7fffffff});  // they take the rest in turn
}

}  // namespace
}  // namespace nibble::kernels::four_bit_matmul
