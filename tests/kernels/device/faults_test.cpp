// Faults that are planted in two kernels: the simulator or a wrong result shows each of them, under every schedule.
// And the kernels without faults: nothing is reported, and their results are exact.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/kernels/device/tile_multiply.hpp"
#include "tests/kernels/device/tma_multiply.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::device::test {
namespace {

using nibble::test::in_schedules;
using nibble::test::Outcome;
using nibble::test::outcome;
using nibble::test::survivors;
using simulator::Fault;

std::vector<bf16> small_integers(i32 rows, i32 columns, u32 seed) {
  std::mt19937 random(seed);
  std::vector<bf16> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
  for (bf16& value : values) value = to_bf16(static_cast<float>(static_cast<int>(random() % 17) - 8));
  return values;
}

// a[n][k] * transposed(b[m][k]), exact: the sums stay far below 2^24.
std::vector<float> product(const std::vector<bf16>& a, const std::vector<bf16>& b, i32 n, i32 m, i32 k) {
  std::vector<float> sums;
  for (i32 row = 0; row < n; ++row)
    for (i32 column = 0; column < m; ++column) {
      float sum = 0;
      for (i32 i = 0; i < k; ++i)
        sum +=
            to_float(a[static_cast<std::size_t>(row * k + i)]) * to_float(b[static_cast<std::size_t>(column * k + i)]);
      sums.push_back(sum);
    }
  return sums;
}

struct Problem {
  i32 n, m, k;
  std::vector<bf16> a = small_integers(n, k, 1), b = small_integers(m, k, 2);
  std::vector<float> expected = product(a, b, n, m, k);
};

template <Planted fault = Planted::nothing> bool multiply(const Problem& problem) {
  const auto w = DeviceArray<bf16>::input(problem.a), x = DeviceArray<bf16>::input(problem.b);
  const auto y = DeviceArray<float>::output(problem.expected.size());
  using Kernel = TileMultiply<fault>;
  const Grid grid{static_cast<u32>(ceil_div(problem.n, 16)), static_cast<u32>(ceil_div(problem.m, 16))};
  launch(grid, Kernel::shared_bytes, nullptr, Kernel{w.data(), x.data(), y.data(), problem.n, problem.m, problem.k});
  return y.to_host() == problem.expected;
}

template <PlantedAsync fault = PlantedAsync::nothing, bool by_stores = false>
bool multiply_async(const Problem& problem) {
  const auto a = DeviceArray<bf16>::input(problem.a), b = DeviceArray<bf16>::input(problem.b);
  const auto d = DeviceArray<float>::output(problem.expected.size());
  const auto k = static_cast<u64>(problem.k);
  using Kernel = TmaMultiply<fault, by_stores>;
  launch({static_cast<u32>(ceil_div(problem.n, 64))}, Kernel::shared_bytes, nullptr,
         Kernel{make_tensor_map(a.data(), 2, k, static_cast<u64>(problem.n), 2 * k, 64, 64, Swizzle::bytes128),
                make_tensor_map(b.data(), 2, k, static_cast<u64>(problem.m), 2 * k, 64, 16, Swizzle::bytes128),
                a.data(), d.data(), problem.n, problem.m, problem.k});
  return d.to_host() == problem.expected;
}

TEST(Faults, CorrectTileMultiplyIsExact) {
  for (const i32 n : {1, 16, 37})
    for (const i32 m : {1, 16, 20})
      for (const i32 k : {8, 32, 200, 512}) {
        const Problem problem{n, m, k};
        in_schedules([&] { EXPECT_TRUE(multiply(problem)) << n << " x " << m << " x " << k; });
      }
}

TEST(Faults, CorrectTmaMultiplyIsExact) {
  for (const i32 n : {1, 64, 100})
    for (const i32 m : {1, 13, 16})
      for (const i32 k : {8, 64, 200, 520}) {
        const Problem problem{n, m, k};
        in_schedules([&] { EXPECT_TRUE(multiply_async(problem)) << n << " x " << m << " x " << k; });
        in_schedules([&] { EXPECT_TRUE((multiply_async<PlantedAsync::nothing, true>(problem))); });
      }
}

// What TMA copies may be memory that an earlier kernel has written, and must have been written.
TEST(Faults, TmaReadsWorkspaces) {
  const Problem problem{64, 16, 64};
  const auto a = DeviceArray<bf16>::workspace(problem.a), b = DeviceArray<bf16>::input(problem.b);
  const DeviceArray<bf16> unwritten(problem.a.size());
  const auto run = [&](const DeviceArray<bf16>& from) {
    const auto d = DeviceArray<float>::output(problem.expected.size());
    using Kernel = TmaMultiply<PlantedAsync::nothing>;
    launch(
        {1}, Kernel::shared_bytes, nullptr,
        Kernel{make_tensor_map(from.data(), 2, 64, 64, 128, 64, 64, Swizzle::bytes128),
               make_tensor_map(b.data(), 2, 64, 16, 128, 64, 16, Swizzle::bytes128), a.data(), d.data(), 64, 16, 64});
    return d.to_host() == problem.expected;
  };
  EXPECT_TRUE(run(a));
  const Outcome seen = outcome([&] { return run(unwritten); });
  EXPECT_EQ(seen.passed + seen.wrong, 0);
  EXPECT_THAT(seen.faults, testing::Each(Fault::uninitialized));
}

// Every schedule shows the fault; `kinds` are the ways in which the simulator may call it, none if the result is wrong.
template <class Run> void expect_caught(const char* what, Run&& run, const std::vector<Fault>& kinds) {
  const Outcome seen = outcome(run);
  EXPECT_EQ(seen.passed, 0) << what;
  for (std::size_t i = 0; i < seen.faults.size(); ++i)
    EXPECT_THAT(kinds, testing::Contains(seen.faults[i])) << what << ": " << seen.reports[i];
  EXPECT_EQ(seen.reports.empty(), kinds.empty()) << what;
}

TEST(Faults, PlantedInTileMultiplyAreCaught) {
  const Problem problem{20, 5, 1024};
  const auto caught = [&]<Planted fault>(std::integral_constant<Planted, fault>, const char* what,
                                         const std::vector<Fault>& kinds) {
    expect_caught(
        what, [&] { return multiply<fault>(problem); }, kinds);
  };
  using enum Planted;
#define NIBBLE_CAUGHT(planted, ...) caught(std::integral_constant<Planted, planted>{}, #planted, {__VA_ARGS__})
  NIBBLE_CAUGHT(no_tail_guard, Fault::global_bounds);
  NIBBLE_CAUGHT(past_shared_array, Fault::shared_bounds);
  NIBBLE_CAUGHT(no_reuse_barrier, Fault::race, Fault::in_flight);
  NIBBLE_CAUGHT(no_reduce_barrier, Fault::race, Fault::uninitialized);
  NIBBLE_CAUGHT(no_sync_warp, Fault::race, Fault::in_flight);
  NIBBLE_CAUGHT(short_wait, Fault::in_flight, Fault::race);
  NIBBLE_CAUGHT(shuffle_in_branch, Fault::divergence, Fault::deadlock);
  NIBBLE_CAUGHT(lane_not_in_mask, Fault::divergence);
  NIBBLE_CAUGHT(early_exit, Fault::divergence, Fault::deadlock);
  NIBBLE_CAUGHT(row_stride, Fault::misaligned);
#undef NIBBLE_CAUGHT
}

template <PlantedAsync fault, bool by_stores>
void expect_caught_async(const char* what, const std::vector<Fault>& kinds) {
  static const Problem problem{100, 13, 520};
  expect_caught(
      what, [&] { return multiply_async<fault, by_stores>(problem); }, kinds);
}

TEST(Faults, PlantedInTmaMultiplyAreCaught) {
  using enum PlantedAsync;
#define NIBBLE_CAUGHT(planted, by_stores, ...) expect_caught_async<planted, by_stores>(#planted, {__VA_ARGS__})
  NIBBLE_CAUGHT(no_empty_wait, false, Fault::race, Fault::in_flight, Fault::misuse);
  NIBBLE_CAUGHT(no_full_wait, false, Fault::race, Fault::in_flight, Fault::uninitialized);
  NIBBLE_CAUGHT(too_few_bytes, false, Fault::race, Fault::in_flight, Fault::deadlock);
  NIBBLE_CAUGHT(too_many_bytes, false, Fault::deadlock);
  NIBBLE_CAUGHT(no_proxy_fence, true, Fault::proxy);
  NIBBLE_CAUGHT(no_named_barrier, true, Fault::race, Fault::uninitialized, Fault::proxy);
  NIBBLE_CAUGHT(no_last_wait, false, Fault::wgmma);
  NIBBLE_CAUGHT(no_wgmma_fence, false, Fault::wgmma);
  NIBBLE_CAUGHT(wrong_descriptor, false);
  NIBBLE_CAUGHT(early_release, false, Fault::race);
  NIBBLE_CAUGHT(wrong_parity, false, Fault::race, Fault::in_flight, Fault::deadlock, Fault::uninitialized);
  NIBBLE_CAUGHT(no_barrier_after_init, false, Fault::uninitialized, Fault::race, Fault::proxy);
  NIBBLE_CAUGHT(not_swizzled, true);
#undef NIBBLE_CAUGHT
}

// The wait after the loop is for nothing: all groups that are not empty have been waited for. The kernel keeps it,
// since the barrier that follows would not be enough for a copy in flight.
TEST(Faults, EverySynchronizationIsNeeded) {
  const Problem problem{20, 5, 1024};
  const std::vector<std::string> left = survivors([&] { return multiply(problem); });
  EXPECT_THAT(left, testing::ElementsAre(testing::StartsWith("tile_multiply.hpp:")));
  const Problem async{100, 13, 520};
  EXPECT_THAT(survivors([&] { return multiply_async(async); }), testing::IsEmpty());
  EXPECT_THAT(survivors([&] { return multiply_async<PlantedAsync::nothing, true>(async); }), testing::IsEmpty());
}

TEST(Faults, DeadlockReportSaysWhoWaitsWhere) {
  const Outcome seen = outcome([] { return multiply_async<PlantedAsync::too_many_bytes>({64, 16, 64}); }, 1);
  ASSERT_EQ(seen.reports.size(), 1u);
  EXPECT_THAT(seen.reports[0], testing::HasSubstr("warp 0 lanes ffffffff wait in mbar_wait at tma_multiply.hpp:"));
  EXPECT_THAT(seen.reports[0], testing::HasSubstr("warp 4 lanes ffffffff have exited"));
}

}  // namespace
}  // namespace nibble::device::test
