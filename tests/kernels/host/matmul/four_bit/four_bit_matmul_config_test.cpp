// Which kernel and how many splits a product gets: shapes whose configuration is known, and what holds for every shape.
#include "kernels/host/matmul/four_bit/four_bit_matmul_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <random>
#include <string>
#include <vector>

#include "kernels/device/kernel.hpp"

namespace nibble::kernels::four_bit_matmul {
namespace {

// Without splits: turns of 264 or 132 blocks, each with its codes and half the bytes of x, by the costs of the table.
// Short runs never keep x, and take 32 of more rows at a time.
TEST(FourBitMatmulConfig, CostsAreThoseOfTheTable) {
  const auto cost = [](u64 blocks, u64 turns, u64 bytes_of_a_tile) {
    return blocks * (turns * (bytes_of_a_tile + costs.bytes_of_an_end) + costs.bytes_of_a_start);
  };
  EXPECT_EQ(config_for(16, 128 * 264, 1024, false).cost, cost(264, 1, 128 * 1024 * 33 / 64 + 16 * 1024));
  EXPECT_EQ(config_for(1, 64 * 2 * 264, 1024, false, 32).cost, cost(264, 2, 64 * 1024 * 33 / 64 + 1024));
  EXPECT_EQ(config_for(64, 128 * 132, 1024, false, 16).cost, cost(132, 1, 128 * 1024 * 33 / 64 + 32 * 1024));
}

// Products whose turns and steps are known; `added` counts 32 rows of sums.
TEST(FourBitMatmulConfig, CostsOfKernelsThatTmaFeedsAreThoseOfTheTable) {
  const auto few = [](u64 m, u64 n, u64 k, u64 turns, u64 steps) {
    const FewRowsConfig config = few_rows_config_for(m, n, k);
    const auto choice = std::find_if(few_rows_choices.begin(), few_rows_choices.end(),
                                     [&](const FewRowsChoice& one) { return one.tile == config.tile; });
    const u64 of_a_step = choice->of_a_step + m * choice->of_a_row + config.tile_n / 16 * choice->of_16_n;
    const u64 of_adding = config.splits > 1 ? choice->of_adding : 0;
    EXPECT_EQ(config.cost, turns * (steps * of_a_step + (m + 7) / 8 * choice->of_8_rows + of_adding))
        << m << " x " << n << " x " << k;
  };
  few(1, 28672, 8192, 7, 8);
  few(8, 28672, 8192, 2, 32);
  few(16, 14336, 4096, 1, 16);
  few(16, 4096, 4096, 1, 4);
  const auto many = [](u64 m, u64 n, u64 k, u64 turns, u64 steps, u64 added) {
    const Sm90Config config = sm90_config_for(m, n, k);
    const auto choice = std::find_if(sm90_choices.begin(), sm90_choices.end(),
                                     [&](const Sm90Choice& one) { return one.tile == config.tile; });
    const u64 of_a_step = choice->of_a_step + config.tile_n / 64 * choice->of_64_n;
    EXPECT_EQ(config.cost, choice->of_a_start + turns * (steps * of_a_step + added * choice->of_32_rows))
        << m << " x " << n << " x " << k;
  };
  many(256, 28672, 8192, 4, 32, 0);
  many(64, 14336, 4096, 1, 16, 0);
  many(128, 4096, 4096, 1, 8, 2);
}

// The order of additions in a product follows from its configuration, so another one changes results.
TEST(FourBitMatmulConfig, OfKnownShapes) {
  const auto text = [](u64 m, u64 n, u64 k, u32 run = 64) {
    const LaunchConfig config = config_for(m, n, k, true, run);
    return std::to_string(config.tile.block_n()) + "x" + std::to_string(config.tile.block_k()) + ", " +
           std::to_string(config.splits);
  };
  EXPECT_EQ(text(1, 28672, 8192), "64x512, 1");
  EXPECT_EQ(text(1, 14336, 4096), "64x512, 1");
  EXPECT_EQ(text(1, 4096, 4096), "16x2048, 1");
  EXPECT_EQ(text(4, 4096, 4096), "16x2048, 1");
  EXPECT_EQ(text(8, 4096, 4096), "64x512, 4");
  EXPECT_EQ(text(1, 8192, 8192), "32x1024, 1");
  EXPECT_EQ(text(1, 33, 2560), "16x2048, 1");
  EXPECT_EQ(text(8, 28672, 8192), "64x512, 1");
  EXPECT_EQ(text(9, 8192, 8192), "128x256, 4");
  EXPECT_EQ(text(16, 14336, 4096), "64x512, 1");
  EXPECT_EQ(text(17, 4096, 14336), "128x256, 4");
  EXPECT_EQ(text(32, 28672, 8192), "128x256, 1");
  EXPECT_EQ(text(33, 8192, 8192), "256x128, 4");
  EXPECT_EQ(text(64, 1024, 4096), "128x256, 16");
  EXPECT_EQ(text(1000, 28672, 8192), "256x128, 1");
  EXPECT_EQ(text(1, 1152, 4304, 16), "64x512, 9");
  EXPECT_EQ(text(1, 4096, 4096, 32), "64x512, 4");
  EXPECT_EQ(text(64, 4096, 4096, 32), "128x256, 4");
  EXPECT_EQ(text(64, 2368, 3328, 16), "128x256, 5");
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
}

// Nothing depends on a device: the workspace is for this kernel, too.
TEST(FourBitMatmulConfig, ManyRowsHaveAKernelAndWholeSteps) {
  for (const u64 m : {17U, 33U, 64U, 65U, 96U, 97U, 128U, 129U, 1000U, 100'000U})
    for (const u64 n : {1U, 128U, 129U, 4096U, 28672U, 1'000'000U})
      for (const u64 k : {64U, 256U, 320U, 8192U}) {
        const Sm90Config config = sm90_config_for(m, n, k);
        ASSERT_TRUE(std::any_of(sm90_choices.begin(), sm90_choices.end(),
                                [&](const Sm90Choice& choice) { return choice.tile == config.tile; }));
        ASSERT_TRUE(std::has_single_bit(config.splits) && config.splits <= device::max_cluster) << config.splits;
        ASSERT_LE(config.splits, (k + 255) / 256) << "a split that has no step";
        ASSERT_TRUE(config.tile_n % 64 == 0 && config.tile_n >= 64 && config.tile_n <= config.tile.block_n());
      }
  // tests/bench/kernels/tune_table_test.py reads these lines: tune_sm90.py chooses the same.
  const auto plan = [](u64 m, u64 n, u64 k) {
    const Sm90Config config = sm90_config_for(m, n, k);
    return std::array<u32, 3>{config.tile.rows, config.tile_n, config.splits};
  };
  using Plan = std::array<u32, 3>;
  EXPECT_EQ(plan(32, 28672, 8192), (Plan{32, 256, 1}));
  EXPECT_EQ(plan(32, 14336, 4096), (Plan{32, 128, 1}));
  EXPECT_EQ(plan(32, 4096, 4096), (Plan{32, 64, 2}));
  EXPECT_EQ(plan(32, 1024, 4096), (Plan{32, 128, 8}));
  EXPECT_EQ(plan(64, 28672, 8192), (Plan{64, 256, 1}));
  EXPECT_EQ(plan(64, 14336, 4096), (Plan{64, 128, 1}));
  EXPECT_EQ(plan(64, 4096, 4096), (Plan{32, 128, 2}));
  EXPECT_EQ(plan(96, 14336, 4096), (Plan{96, 128, 1}));
  EXPECT_EQ(plan(128, 28672, 8192), (Plan{128, 128, 1}));
  EXPECT_EQ(plan(192, 28672, 8192), (Plan{64, 256, 1}));
  EXPECT_EQ(plan(256, 28672, 8192), (Plan{128, 128, 1}));
  EXPECT_EQ(plan(128, 4096, 4096), (Plan{64, 128, 2}));
  EXPECT_EQ(sm90_config_for(128, 4096, 4096).tile.k_warpgroups, 2U);
  EXPECT_EQ(plan(256, 4096, 4096), (Plan{64, 128, 1}));
  EXPECT_EQ(plan(64, 1024, 4096), (Plan{32, 192, 8}));
  EXPECT_EQ(plan(96, 1536, 2048), (Plan{32, 192, 4}));
  EXPECT_EQ(plan(200, 9728, 11776), (Plan{64, 192, 1}));
}

TEST(FourBitMatmulConfig, FewRowsHaveAKernelThatTmaFeedsAndWholeSteps) {
  std::mt19937_64 random(3);
  for (u64 m = 1; m <= max_m_of_few_rows; ++m)
    for (int i = 0; i < 200; ++i) {
      const u64 n = i == 0 ? ~u64{0} >> 32 : 1 + random() % (u64{1} << (1 + random() % 18));
      const u64 k = 64 * (1 + random() % (u64{1} << (1 + random() % 12)));
      const FewRowsConfig config = few_rows_config_for(m, n, k);
      ASSERT_TRUE(std::any_of(few_rows_choices.begin(), few_rows_choices.end(),
                              [&](const auto& choice) { return choice.tile == config.tile; }));
      ASSERT_EQ(config.tile.max_m(), m <= 8 ? 8 : 16);
      ASSERT_TRUE(std::has_single_bit(config.splits) && config.splits <= device::max_cluster) << config.splits;
      ASSERT_LE(config.splits, (k + config.tile.block_k() - 1) / config.tile.block_k()) << "a split that has no step";
      ASSERT_TRUE(config.tile_n % 16 == 0 && config.tile_n >= 16 && config.tile_n <= config.tile.block_n());
    }
  // tests/bench/kernels/tune_table_test.py reads these lines, too.
  const auto plan = [](u64 m, u64 n, u64 k) {
    const FewRowsConfig config = few_rows_config_for(m, n, k);
    return std::array<u32, 3>{config.tile.n_warps, config.tile_n, config.splits};
  };
  using Plan = std::array<u32, 3>;
  EXPECT_EQ(plan(1, 28672, 8192), (Plan{1, 32, 1}));
  EXPECT_EQ(plan(8, 28672, 8192), (Plan{4, 112, 1}));
  EXPECT_EQ(plan(16, 28672, 8192), (Plan{4, 112, 1}));
  EXPECT_EQ(plan(1, 14336, 4096), (Plan{1, 32, 1}));
  EXPECT_EQ(plan(8, 14336, 4096), (Plan{4, 112, 1}));
  EXPECT_EQ(plan(16, 14336, 4096), (Plan{4, 112, 1}));
  EXPECT_EQ(plan(1, 4096, 4096), (Plan{1, 32, 1}));
  EXPECT_EQ(plan(8, 4096, 4096), (Plan{1, 32, 1}));
  EXPECT_EQ(plan(16, 4096, 4096), (Plan{2, 64, 2}));
  EXPECT_EQ(plan(8, 1024, 4096), (Plan{1, 16, 1}));
  EXPECT_EQ(plan(16, 1024, 4096), (Plan{2, 64, 4}));
  EXPECT_EQ(plan(16, 1024, 8192), (Plan{4, 128, 8}));
  EXPECT_EQ(plan(8, 512, 7168), (Plan{1, 32, 4}));
}

// All stages together, in each multiprocessor that has a block. A weight with fewer codes for each multiprocessor is
// asked for whole. The shapes are those of the speed table, and smaller ones (docs/four-bit-matmul.md).
TEST(FourBitMatmulConfig, StagesHave24KiBOfCodesOrAllThereAre) {
  const auto in_flight = [](const auto& config) {
    return u64{config.tile.code_stages} * config.tile_n * config.tile.block_k() / 2;
  };
  constexpr std::array<std::array<u64, 2>, 6> shapes{
      {{28672, 8192}, {14336, 4096}, {4096, 4096}, {4096 + 1024 + 1024, 4096}, {2048, 2048}, {1024, 4096}}};
  for (const auto& [n, k] : shapes)
    for (u64 m = 1; m <= 64; ++m) {
      const u64 bytes =
          m <= max_m_of_few_rows ? in_flight(few_rows_config_for(m, n, k)) : in_flight(sm90_config_for(m, n, k));
      EXPECT_GE(bytes, std::min<u64>(24 << 10, n * k / 2 / multiprocessors_to_fill))
          << n << " x " << k << ", " << m << " rows";
    }
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
