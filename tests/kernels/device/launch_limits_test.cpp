// What the device refuses of a launch, and what the host asks for once per device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/device/device.hpp"
#include "kernels/device/per_device.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::device::test {
namespace {

using simulator::Failure;
using simulator::Fault;
using simulator::Options;
using simulator::ScopedOptions;
using testing::HasSubstr;

template <class Run> std::string error_of(Run&& run) {
  try {
    run();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

struct Nothing {
  static constexpr u32 threads = 32;
  NIBBLE_DEVICE void operator()() const {}
};

TEST(LaunchLimits, OfTheGrid) {
  const ScopedOptions scope({.part = [](Grid) { return simulator::BlockRange{0, 1}; }});
  const auto error = [](Grid grid) { return error_of([&] { launch(grid, 0, nullptr, Nothing{}); }); };
  EXPECT_EQ(error({0x7fffffff, 65535, 65535}), "");
  EXPECT_EQ(error({0x80000000, 1, 1}), "a grid of 2147483648 x 1 x 1 blocks");
  EXPECT_EQ(error({1, 65536, 1}), "a grid of 1 x 65536 x 1 blocks");
  EXPECT_EQ(error({1, 1, 65536}), "a grid of 1 x 1 x 65536 blocks");
  EXPECT_EQ(error({0, 1, 1}), "a grid of 0 x 1 x 1 blocks");
  EXPECT_EQ(error({1, 0, 1}), "a grid of 1 x 0 x 1 blocks");
  EXPECT_EQ(error({1, 1, 0}), "a grid of 1 x 1 x 0 blocks");
}

template <std::size_t Bytes> struct Parameters {
  static constexpr u32 threads = 32;
  u8 bytes[Bytes];
  NIBBLE_DEVICE void operator()() const {}
};

TEST(LaunchLimits, OfParameters) {
  launch({1}, 0, nullptr, Parameters<4096>{});
  EXPECT_THAT(error_of([] { launch({1}, 0, nullptr, Parameters<4097>{}); }), HasSubstr("4097 bytes of parameters"));
}

TEST(LaunchLimits, OfDynamicSharedMemory) {
  const auto error = [](std::size_t bytes) { return error_of([&] { launch({1}, bytes, nullptr, Nothing{}); }); };
  EXPECT_EQ(error(227 << 10), "");
  EXPECT_EQ(error((227 << 10) + 1), "232449 bytes of dynamic shared memory, of 232448");
  const ScopedOptions scope({.capability = 80});
  EXPECT_EQ(error(163 << 10), "");
  EXPECT_EQ(error((163 << 10) + 1), "166913 bytes of dynamic shared memory, of 166912");
}

template <std::size_t Most> struct AsksForShared {
  static constexpr u32 threads = 32;
  static constexpr std::size_t max_block_shared_bytes() { return Most; }
  NIBBLE_DEVICE void operator()() const {}
};

TEST(LaunchLimits, ALaunchHasNoMoreThanTheKernelAsksFor) {
  launch({1}, 60000, nullptr, AsksForShared<60000>{});
  EXPECT_EQ(error_of([] { launch({1}, 60001, nullptr, AsksForShared<60000>{}); }),
            "60001 bytes of dynamic shared memory, but the kernel's max_block_shared_bytes is 60000");
  launch({1}, 48 << 10, nullptr, AsksForShared<100>{});  // which nobody has to ask for
  EXPECT_NE(error_of([] { launch({1}, (48 << 10) + 1, nullptr, AsksForShared<100>{}); }), "");
  EXPECT_NE(error_of([] { launch({1}, 0, nullptr, AsksForShared<(227 << 10) + 1>{}); }), "");  // the request fails
}

// Static arrays of 1000 bytes each, which take 1008.
template <u32 count> struct StaticShared {
  static constexpr u32 threads = 32;
  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(u8, array, 1000);
    sts(array + lane_id(), u8{1});
    if constexpr (count > 1) StaticShared<count - 1>{}();
  }
};

TEST(LaunchLimits, OfStaticSharedMemory) {
  const auto error = [](auto kernel, std::size_t dynamic) {
    return error_of([&] { launch({1}, dynamic, nullptr, kernel); });
  };
  EXPECT_EQ(error(StaticShared<48>{}, 0), "");
  EXPECT_THAT(error(StaticShared<49>{}, 0), HasSubstr("49392 bytes of static shared memory, of 49152"));
  for (u64 seed = 1; seed <= 20; ++seed) {  // wherever it lies
    const ScopedOptions scope({.seed = seed});
    EXPECT_EQ(error(StaticShared<2>{}, (227 << 10) - 2016), "");
  }
  EXPECT_THAT(error(StaticShared<2>{}, (227 << 10) - 2015),
              HasSubstr("230433 bytes of dynamic and 2016 of static shared memory, of 232448"));
  const ScopedOptions scope({.capability = 80});
  EXPECT_EQ(error(StaticShared<2>{}, (163 << 10) - 2016), "");
  EXPECT_NE(error(StaticShared<2>{}, (163 << 10) - 2015), "");
}

struct ForSm90a {
  static constexpr bool needs_sm90a = true;
  static constexpr u32 threads = 64;
  NIBBLE_DEVICE void operator()() const {}
};

// What the simulator has in its place is CUDA's code for other targets: with a launch bound of 32 threads.
TEST(LaunchLimits, CodeForOtherTargetsHasNoKernelsOfSm90a) {
  EXPECT_TRUE(is_loaded<ForSm90a>());
  launch({1}, 0, nullptr, ForSm90a{});
  for (const Options& options :
       {Options{.capability = 90, .target = 80}, Options{.capability = 80}, Options{.capability = 100}}) {
    const ScopedOptions scope(options);
    EXPECT_FALSE(is_loaded<ForSm90a>());
    EXPECT_EQ(error_of([] { launch({1}, 0, nullptr, ForSm90a{}); }),
              "blocks of 64 threads, but the code that is loaded, for sm_80, is for 32");
    EXPECT_TRUE(is_loaded<StaticShared<1>>());
  }
}

TEST(LaunchLimits, WhatCudaSaysOfLoadedCode) {
  EXPECT_TRUE(is_code_of<ForSm90a>({.ptx = 90, .machine = 90, .max_threads = 64}));
  EXPECT_FALSE(is_code_of<ForSm90a>({.ptx = 90, .machine = 90, .max_threads = 32}));  // compiled for sm_90 without a
  EXPECT_FALSE(is_code_of<ForSm90a>({.ptx = 80, .machine = 90, .max_threads = 32}));  // CUDA_FORCE_PTX_JIT
  EXPECT_FALSE(is_code_of<ForSm90a>({}));                                             // not in the binary
  EXPECT_TRUE(waits_for_dependencies({.ptx = 90, .machine = 90}));
  EXPECT_FALSE(waits_for_dependencies({.ptx = 80, .machine = 90}));
  EXPECT_FALSE(waits_for_dependencies({.ptx = 80, .machine = 80}));
}

template <u32 Threads, u32 MinBlocks = 2> struct Resident {
  static constexpr u32 threads = Threads, min_blocks = MinBlocks;
  NIBBLE_DEVICE void operator()() const {}
};

TEST(LaunchLimits, OfAMultiprocessor) {
  const auto error = [](auto kernel, std::size_t shared) {
    return error_of([&] { launch({1}, shared, nullptr, kernel); });
  };
  EXPECT_EQ(error(Resident<1024, 2>{}, 0), "");
  EXPECT_EQ(error(Resident<1024, 3>{}, 0),
            "min_blocks is 3, but a multiprocessor has no room for that many blocks of 1024 threads and 0 bytes of "
            "shared memory");
  EXPECT_EQ(error(Resident<32, 32>{}, 0), "");
  EXPECT_NE(error(Resident<32, 33>{}, 0), "");
  EXPECT_EQ(error(Resident<256, 2>{}, 113 << 10), "");
  EXPECT_NE(error(Resident<256, 2>{}, (113 << 10) + 1), "");
  EXPECT_EQ(error(Resident<256, 1>{}, 227 << 10), "");
}

// Two blocks of 65 KiB fit in the 164 KiB of 8.0 and the 228 KiB of 9.0, but not in the 100 KiB of 8.6, 8.9 and 12.0.
TEST(LaunchLimits, BlocksAtATimeHaveRoomForTheirSharedMemory) {
  const auto blocks = [](unsigned capability, std::size_t shared) {
    const ScopedOptions scope({.multiprocessors = 10, .capability = capability});
    return resident_blocks<Resident<256, 2>>(shared);
  };
  for (const unsigned capability : {80U, 86U, 89U, 90U, 100U, 120U}) {
    SCOPED_TRACE(capability);
    const bool is_small = capability == 86 || capability == 89 || capability == 120;
    EXPECT_EQ(blocks(capability, 0), 20U);
    EXPECT_EQ(blocks(capability, 49 << 10), 20U);  // and 1 KiB each is the system's
    EXPECT_EQ(blocks(capability, (49 << 10) + 1), is_small ? 10U : 20U);
    EXPECT_EQ(blocks(capability, 65 << 10), is_small ? 10U : 20U);
    EXPECT_EQ(blocks(capability, 99 << 10), capability == 90 || capability == 100 ? 20U : 10U);
  }
  const ScopedOptions scope({.multiprocessors = 10, .capability = 120});
  EXPECT_EQ(resident_grid<Resident<256>>(100, 65 << 10).x, 10U);
  EXPECT_EQ(resident_grid<Resident<256>>(7, 65 << 10).x, 7U);
  EXPECT_EQ((resident_blocks<Resident<512, 4>>(0)), 30U) << "1536 threads";
}

TEST(LaunchLimits, BlocksAtATime) {
  constexpr MultiprocessorLimits limits{.threads = 1536, .shared_bytes = 1000, .reserved_shared_bytes = 100};
  EXPECT_EQ((blocks_at_a_time<Resident<256, 2>>(limits, 400)), 2U);
  EXPECT_EQ((blocks_at_a_time<Resident<256, 2>>(limits, 401)), 1U);
  EXPECT_EQ((blocks_at_a_time<Resident<256, 2>>(limits, 5000)), 1U) << "the launch says what is wrong";
  EXPECT_EQ((blocks_at_a_time<Resident<512, 4>>(limits, 0)), 3U);
  EXPECT_EQ(blocks_at_a_time<Nothing>(limits, 0), 1U);
}

TEST(LaunchLimits, RegistersAreWhatTheLaunchBoundsLeave) {
  EXPECT_EQ(max_registers(128, 1), 255u);
  EXPECT_EQ(max_registers(256, 1), 255u);
  EXPECT_EQ(max_registers(384, 1), 168u);
  EXPECT_EQ(max_registers(256, 2), 128u);
  EXPECT_EQ(max_registers(256, 5), 48u);
  EXPECT_EQ(max_registers(1024, 2), 32u);
}

TEST(NumberPerDevice, IsSetOnceUnlessMoreIsNeeded) {
  NumberPerDevice numbers;
  int calls = 0;
  const auto get = [&](int device, u32 needed) {
    return numbers.at_least(device, needed, [&] { return ++calls, needed; });
  };
  EXPECT_EQ(get(0, 50), 50u);
  EXPECT_EQ(get(0, 50), 50u);
  EXPECT_EQ(get(0, 20), 50u);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(get(1, 20), 20u);
  EXPECT_EQ(get(0, 60), 60u);
  EXPECT_EQ(calls, 3);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(get(1000, 7), 7u);  // too many devices: it asks each time
  EXPECT_EQ(calls, 5);
}

TEST(NumberPerDevice, AFailureIsNotKept) {
  NumberPerDevice numbers;
  EXPECT_THROW(numbers.at_least(0, 5, []() -> u32 { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(numbers.at_least(0, 5, [] { return 5u; }), 5u);
}

// The last request must be the largest one, whichever thread comes last.
TEST(NumberPerDevice, ThreadsNeverLowerIt) {
  for (int round = 0; round < 20; ++round) {
    NumberPerDevice numbers;
    std::atomic<u32> asked{0}, at_a_time{0};
    std::atomic<int> faults{0};
    std::vector<std::jthread> threads;
    for (u32 t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (u32 i = 1; i <= 50; ++i)
          numbers.at_least(0, i * 4 + t, [&] {
            if (at_a_time++ != 0 || asked > i * 4 + t) ++faults;
            asked = i * 4 + t;
            std::this_thread::yield();
            --at_a_time;
            return asked.load();
          });
      });
    threads.clear();
    EXPECT_EQ(faults, 0);
    EXPECT_EQ(asked, 203u);
  }
}

}  // namespace
}  // namespace nibble::device::test
