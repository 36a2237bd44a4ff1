// Races on global memory: within a block, between blocks, and the protocol that prevents them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/device/device.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::device::test {
namespace {

using nibble::test::in_schedules;
using nibble::test::Outcome;
using nibble::test::outcome;
using nibble::test::survivors;
using simulator::Fault;

enum class Race { none, no_fence_before, no_fence_after, no_barrier_before, no_barrier_after, no_counter };

// Every block leaves 64 partial sums; the last one adds up all of them.
template <Race race = Race::none> struct SumByLastBlock {
  static constexpr u32 threads = 64;
  Global<const float> in;
  Global<float> partial;  // 64 per block
  Global<u32> counter;
  Global<float> out;  // 64

  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(u32, is_last, 1);
    const i64 own = i64{block_x()} * threads + thread_id();
    // A thread writes what another thread releases.
    st(partial + (own ^ 1), add_rn(ld(in + (own ^ 1)), 1.0f));
    if constexpr (race != Race::no_barrier_before) sync_threads();
    if (thread_id() == 0) {
      if constexpr (race != Race::no_fence_before) threadfence();
      const u32 before = atomic_add(counter, 1);
      if constexpr (race != Race::no_fence_after) threadfence();
      sts(is_last, before == grid_x() - 1 || race == Race::no_counter ? 1 : 0);
    }
    if constexpr (race != Race::no_barrier_after) sync_threads();
    if (lds(is_last) == 0) return;
    float sum = 0;
    for (u32 b = 0; b < grid_x(); ++b) sum = add_rn(sum, ld(partial + (i64{b} * threads + thread_id())));
    if (race != Race::no_counter) st(out + thread_id(), sum);
    if (thread_id() == 0 && race != Race::no_counter) st(counter, 0);
  }
};

template <Race race = Race::none> bool sum(u32 blocks) {
  const auto in = DeviceArray<float>::input(std::vector<float>(64 * blocks, 2.0f));
  const DeviceArray<float> partial(64 * blocks);
  const auto counter = DeviceArray<u32>::workspace({0});
  bool right = true;
  for (int i = 0; i < 2; ++i) {  // the second launch finds the workspace as the first left it
    const auto out = DeviceArray<float>::output(64);
    launch({blocks}, 0, nullptr, SumByLastBlock<race>{in.data(), partial.data(), counter.data(), out.data()});
    right &= out.to_host() == std::vector<float>(64, 3.0f * static_cast<float>(blocks));
  }
  return right;
}

TEST(GlobalRaces, TheLastBlockMayAddUp) {
  for (const u32 blocks : {1u, 2u, 9u}) in_schedules([&] { EXPECT_TRUE(sum(blocks)); }, 9);
}

TEST(GlobalRaces, SeveralWorkersAgree) {
  const simulator::ScopedOptions scope({.workers = 4});
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(sum(40));
}

template <Race race> void expect_race() {
  const Outcome seen = outcome([] { return sum<race>(5); });
  EXPECT_EQ(seen.passed, 0) << static_cast<int>(race);
  EXPECT_FALSE(seen.faults.empty()) << static_cast<int>(race);
  for (std::size_t i = 0; i < seen.faults.size(); ++i)
    EXPECT_TRUE(seen.faults[i] == Fault::race || seen.faults[i] == Fault::uninitialized) << seen.reports[i];
}

TEST(GlobalRaces, EachPartOfTheProtocolIsNeeded) {
  expect_race<Race::no_fence_before>();
  expect_race<Race::no_fence_after>();
  expect_race<Race::no_barrier_before>();
  expect_race<Race::no_barrier_after>();
  expect_race<Race::no_counter>();
  EXPECT_THAT(survivors([] { return sum(5); }), testing::IsEmpty());
}

TEST(GlobalRaces, ReportsNameTheOtherBlock) {
  const Outcome seen = outcome([] { return sum<Race::no_fence_before>(5); }, 1);
  ASSERT_EQ(seen.reports.size(), 1u);
  EXPECT_THAT(seen.reports[0], testing::ContainsRegex("race: read of byte [0-9]+ of 'array' is not ordered after the "
                                                      "write by thread [0-9]+ of block [0-4]"));
}

// Neighbours of two bytes each, and of four: nothing is shared.
template <class T> struct Neighbours {
  static constexpr u32 threads = 32;
  Global<T> values;
  i32 distance;
  NIBBLE_DEVICE void operator()() const {
    const i64 own = i64{block_x()} * threads + thread_id();
    st(values + own, T{});
    (void)ld(values + own);
    if (distance != 0) st(values + (own + distance), T{});
  }
};

TEST(GlobalRaces, NeighboursShareNothing) {
  const DeviceArray<bf16> two(129, {.offset_bytes = 2});
  const DeviceArray<u32> four(129, {.offset_bytes = 4});
  const DeviceArray<u8> one(129, {.offset_bytes = 3});
  launch({4}, 0, nullptr, Neighbours<bf16>{two.data(), 0});
  launch({4}, 0, nullptr, Neighbours<u32>{four.data(), 0});
  launch({4}, 0, nullptr, Neighbours<u8>{one.data(), 0});
  const auto race = [](auto&& run) { return outcome([&] { return run(), true; }).faults.size(); };
  EXPECT_EQ(race([&] { launch({4}, 0, nullptr, Neighbours<bf16>{two.data(), 1}); }), 20u);
  EXPECT_EQ(race([&] { launch({4}, 0, nullptr, Neighbours<u32>{four.data(), 32}); }), 20u);
  EXPECT_EQ(race([&] { launch({4}, 0, nullptr, Neighbours<u8>{one.data(), 1}); }), 20u);
}

}  // namespace
}  // namespace nibble::device::test
