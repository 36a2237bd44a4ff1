// Launches, indices, memory, and what the simulator refuses of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/device/device.hpp"
#include "kernels/device/stream.hpp"
#include "kernels/host/interface.hpp"
#include "tests/kernels/sparse_array.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::device {
namespace {

using simulator::Failure;
using simulator::Fault;
using simulator::Options;
using simulator::Schedule;
using simulator::ScopedOptions;

struct Add {
  static constexpr u32 threads = 64;
  Global<const float> a, b;
  Global<float> sum;
  i64 n;
  i64 beyond = 0;  // a planted fault: how many elements too many

  NIBBLE_DEVICE void operator()() const {
    const i64 i = i64{block_x()} * threads + thread_id();
    if (i < n + beyond) st(sum + i, add_rn(ld(a + i), ldg(b + i)));
  }
};

void add(const float* a, const float* b, float* sum, i64 n, i64 beyond = 0) {
  launch({static_cast<u32>(ceil_div<i64>(n, Add::threads))}, 0, nullptr, Add{a, b, sum, n, beyond});
}

template <class Run> Fault fault_of(Run&& run) {
  try {
    run();
  } catch (const Failure& failure) {
    return failure.fault();
  }
  ADD_FAILURE() << "nothing was found";
  return Fault::misuse;
}

TEST(Launch, EveryThreadOfEveryBlockRunsOnce) {
  const auto a = DeviceArray<float>::input(std::vector<float>(1000, 1.5f));
  const auto b = DeviceArray<float>::input(std::vector<float>(1000, 2.0f));
  for (const Schedule schedule : {Schedule::in_order, Schedule::random, Schedule::priority}) {
    ScopedOptions scope({.schedule = schedule});
    const auto sum = DeviceArray<float>::output(1000);
    add(a.data(), b.data(), sum.data(), 1000);
    EXPECT_EQ(sum.to_host(), std::vector<float>(1000, 3.5f));
    EXPECT_EQ(scope.statistics().threads, 1024u);
  }
}

struct BlockNumber {
  static constexpr u32 threads = 32;
  Global<u64> numbers;
  u64 first;

  NIBBLE_DEVICE void operator()() const {
    const u64 number = (u64{block_z()} * grid_y() + block_y()) * grid_x() + block_x();
    if (lane_id() == 0) st(numbers + static_cast<i64>(number - first), number);
  }
};

TEST(Launch, APartOfTheBlocksRuns) {
  for (const Schedule schedule : {Schedule::in_order, Schedule::random}) {
    const auto numbers = DeviceArray<u64>::output(3);
    ScopedOptions scope({.schedule = schedule, .part = [](Grid grid) {
                           const u64 middle = u64{grid.x} * grid.y * (grid.z / 2);
                           return simulator::BlockRange{middle - 1, middle + 2};
                         }});
    const u64 middle = u64{0x7fffffff} * 65535 * 2;
    launch({0x7fffffff, 65535, 4}, 0, nullptr, BlockNumber{numbers.data(), middle - 1});
    EXPECT_EQ(numbers.to_host(), (std::vector<u64>{middle - 1, middle, middle + 1}));
    EXPECT_EQ(scope.statistics().blocks, 3u);
  }
  for (const auto part : {+[](Grid) {
                            return simulator::BlockRange{4, 9};
                          },
                          +[](Grid) {
                            return simulator::BlockRange{9, 20};
                          },
                          +[](Grid) {
                            return simulator::BlockRange{3, 2};
                          }}) {
    ScopedOptions scope({.part = part});
    const auto number = DeviceArray<u64>::output(1);
    launch({5}, 0, nullptr, BlockNumber{number.data(), 4});
    EXPECT_EQ(scope.statistics().blocks, part({}).first == 4 ? 1u : 0u);
  }
}

TEST(Launch, GlobalMemoryHasBounds) {
  const auto a = DeviceArray<float>::input(std::vector<float>(100, 1.0f), {.name = "a"});
  const auto sum = DeviceArray<float>::output(100);
  try {
    add(a.data(), a.data(), sum.data(), 100, 1);
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.fault(), Fault::global_bounds);
    EXPECT_THAT(failure.what(), testing::HasSubstr("read of 4 bytes at byte 400 of 'a', which has 400"));
    EXPECT_THAT(failure.file(), testing::EndsWith("launch_test.cpp"));
  }
  float elsewhere[100] = {};
  EXPECT_EQ(fault_of([&] { add(elsewhere, a.data(), sum.data(), 100); }), Fault::global_bounds);
  EXPECT_EQ(fault_of([&] { add(nullptr, a.data(), sum.data(), 100); }), Fault::global_bounds);
}

TEST(Launch, AccessesAreAligned) {
  const auto a = DeviceArray<float>::input(std::vector<float>(100, 1.0f), {.offset_bytes = 2});
  const auto sum = DeviceArray<float>::output(100);
  EXPECT_EQ(fault_of([&] { add(a.data(), a.data(), sum.data(), 100); }), Fault::misaligned);
}

TEST(Launch, OutputsAreWrittenOnceAndWhole) {
  const auto a = DeviceArray<float>::input(std::vector<float>(100, 1.0f));
  const auto sum = DeviceArray<float>::output(100);
  add(a.data(), a.data(), sum.data(), 99);
  EXPECT_EQ(fault_of([&] { (void)sum.to_host(); }), Fault::not_written);
  EXPECT_EQ(fault_of([&] { add(a.data(), a.data(), sum.data(), 99); }), Fault::written_twice);
}

TEST(Launch, UnknownMemoryIsNotRead) {
  const DeviceArray<float> a(100), sum(100);
  const auto b = DeviceArray<float>::input(std::vector<float>(100, 1.0f));
  EXPECT_EQ(fault_of([&] { add(a.data(), b.data(), sum.data(), 100); }), Fault::uninitialized);
}

TEST(Launch, ConstantLoadsNeedReadOnlyMemory) {
  const auto a = DeviceArray<float>::workspace(std::vector<float>(100, 1.0f));
  const auto sum = DeviceArray<float>::output(100);
  EXPECT_EQ(fault_of([&] { add(a.data(), a.data(), sum.data(), 100); }), Fault::misuse);
}

TEST(Launch, RefusedLaunchesHaveAStatusAndAText) {
  EXPECT_EQ(kernels::result_of([] { launch({0}, 0, nullptr, Add{}); }), NIBBLE_INTERNAL);
  EXPECT_STREQ(nibble_last_error(), "a grid of 0 x 1 x 1 blocks");
  EXPECT_EQ(kernels::result_of([] { launch({1}, 300 << 10, nullptr, Add{}); }), NIBBLE_INTERNAL);
  EXPECT_EQ(kernels::result_of([] { kernels::refuse("n is 3, not even"); }), NIBBLE_USAGE);
  EXPECT_STREQ(nibble_last_error(), "n is 3, not even");
}

// Sums 256 values through shared memory and shuffles.
template <bool Barrier> struct BlockSum {
  static constexpr u32 threads = 256;
  Global<const float> in;
  Global<float> out;

  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(float, sums, threads / 32);
    float sum = ld(in + (i64{block_x()} * threads + thread_id()));
    NIBBLE_UNROLL for (u32 bits = 16; bits > 0; bits /= 2) sum = add_rn(sum, shfl_xor(~0u, sum, bits));
    if (lane_id() == 0) sts(sums + warp_id(), sum);
    if constexpr (Barrier) sync_threads();
    if (thread_id() == 0) {
      float total = 0;
      for (u32 i = 0; i < threads / 32; ++i) total = add_rn(total, lds(sums + i));
      st(out + block_x(), total);
    }
  }
};

TEST(Launch, BarriersOrderSharedMemory) {
  const auto in = DeviceArray<float>::input(std::vector<float>(1024, 1.0f));
  for (u64 seed = 1; seed <= 20; ++seed) {
    const ScopedOptions scope({.seed = seed, .schedule = seed % 2 == 0 ? Schedule::random : Schedule::priority});
    const auto out = DeviceArray<float>::output(4);
    launch({4}, 0, nullptr, BlockSum<true>{in.data(), out.data()});
    EXPECT_EQ(out.to_host(), std::vector<float>(4, 256.0f));
    const auto bad = DeviceArray<float>::output(4);
    const Fault fault = fault_of([&] { launch({4}, 0, nullptr, BlockSum<false>{in.data(), bad.data()}); });
    EXPECT_TRUE(fault == Fault::race || fault == Fault::uninitialized) << name(fault);
  }
}

// The simulator does not record what is in such memory, so there is nothing to mark as known.
TEST(Launch, MemoryOfWhichOnlyTheBoundsAreKnownIsCleared) {
  const nibble::test::SparseArray<u8> array(64);
  std::fill_n(array.data(), 64, u8{7});
  clear_memory(array.data() + 16, 32, nullptr);
  EXPECT_EQ(std::count(array.data(), array.data() + 64, u8{0}), 32);
  EXPECT_EQ(array.data()[15], 7);
  EXPECT_EQ(array.data()[48], 7);
}

}  // namespace
}  // namespace nibble::device
