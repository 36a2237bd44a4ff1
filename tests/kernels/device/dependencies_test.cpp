// Launches that overlap the one before (programmatic dependent launch), and prefetches.
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
using simulator::Options;
using simulator::ScopedOptions;

enum class Early {
  nothing,
  read,       // of what the kernel before may write
  write,      // of what it may read
  atomic,     //
  copy,       // by cp.async
  bulk_copy,  //
  ldg,        // after the wait, but not of a constant
  ldcs,       //
  no_barrier,
  no_wait,
  second_block,  // only the first waits
};

// out = factor * in. The factor is a constant and comes before the wait, which one thread does for its block.
template <Early early> struct Scale {
  static constexpr u32 threads = 64;
  Global<const float> factor, in;
  Global<float> out;
  Global<u32> counter;

  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(float, scale, 1);
    NIBBLE_SHARED(u64, mbarrier, 1);
    const i64 own = i64{block_x()} * threads + thread_id();
    prefetch_l2(in + own);  // reads nothing
    if (thread_id() == 0) {
      sts(scale, ldg(factor));
      if constexpr (early == Early::read) (void)ld(in + own);
      if constexpr (early == Early::write) st(out + own, 1.0f);
      if constexpr (early == Early::atomic) atomic_add(counter, 1u);
      if constexpr (early == Early::copy) cp_async16(dynamic_shared(), in.template as<const u8>());
      if constexpr (early == Early::bulk_copy) {
        mbar_init(mbarrier, 1);
        mbar_init_fence();
        mbar_expect_tx_arrive(mbarrier, 16);
        bulk_g2s(dynamic_shared(), in.template as<const u8>(), 16, mbarrier);
      }
      if (early != Early::no_wait && (early != Early::second_block || block_x() == 0)) dependency_wait();
    }
    if constexpr (early == Early::no_barrier) {
      if (thread_id() == 1) (void)ld(in + own);
    }
    sync_threads();
    dependency_launch();
    const float value = early == Early::ldg ? ldg(in + own) : early == Early::ldcs ? ldcs(in + own) : ld(in + own);
    st(out + own, mul_rn(lds(scale), value));
    atomic_add(counter, 1u);
  }
};

template <Early early = Early::nothing> bool scale(Overlap overlap) {
  const auto factor = DeviceArray<float>::constant({3.0f}, {.name = "factor"});
  const auto in = DeviceArray<float>::input(std::vector<float>(128, 2.0f), {.name = "in"});
  const auto counter = DeviceArray<u32>::workspace({0});
  const auto out = DeviceArray<float>::output(128, {.name = "out"});
  launch({2}, 16, nullptr, Scale<early>{factor.data(), in.data(), out.data(), counter.data()}, overlap);
  return out.to_host() == std::vector<float>(128, 6.0f) && counter.to_host()[0] == 128;
}

TEST(Dependencies, APrologueOfConstantsMayComeBeforeTheWait) {
  for (const Overlap overlap : {Overlap::no, Overlap::yes}) {
    in_schedules([&] { EXPECT_TRUE(scale(overlap)); }, 9);
    const ScopedOptions scope({.detect_races = false});
    EXPECT_TRUE(scale(overlap));
  }
}

template <Early early> void expect_early(const char* text) {
  const Outcome seen = outcome([] { return scale<early>(Overlap::yes); });
  EXPECT_EQ(seen.passed, 0) << text;
  EXPECT_EQ(seen.wrong, 0) << text;
  EXPECT_THAT(seen.faults, testing::Each(Fault::dependency)) << text;
  EXPECT_THAT(seen.reports, testing::Each(testing::HasSubstr(text)));
}

TEST(Dependencies, NothingElseMayComeBeforeTheWait) {
  expect_early<Early::read>("dependencies_test.cpp:");
  expect_early<Early::read>("read of 'in' before dependency_wait: the kernel before this one may still write it");
  expect_early<Early::write>("write to 'out' before dependency_wait: the kernel before this one may still use it");
  expect_early<Early::atomic>("atomic operation on 'array' before dependency_wait");
  expect_early<Early::copy>("read of 'in' before dependency_wait");
  expect_early<Early::bulk_copy>("read of 'in' before dependency_wait");
  expect_early<Early::no_barrier>("read of 'in' before dependency_wait");
  expect_early<Early::no_wait>("read of 'in' before dependency_wait");
  expect_early<Early::second_block>("read of 'in' before dependency_wait");
  expect_early<Early::ldg>("ldg of 'in', which is no constant");
  expect_early<Early::ldcs>("ldcs of 'in', which is no constant");
}

TEST(Dependencies, LaunchesThatDoNotOverlapNeedNoWait) {
  EXPECT_TRUE(scale<Early::no_wait>(Overlap::no));
  EXPECT_TRUE(scale<Early::ldg>(Overlap::no));
  EXPECT_TRUE(scale<Early::ldcs>(Overlap::no));
  // These have no such launches: an older device, and a newer one with code for the older one.
  for (const Options& options : {Options{.capability = 80}, Options{.capability = 90, .target = 80}}) {
    const ScopedOptions scope(options);
    EXPECT_TRUE(scale<Early::no_wait>(Overlap::yes));
  }
}

TEST(Dependencies, ARemovedWaitIsSeenWhereLaunchesOverlap) {
  const auto waits = [](Overlap overlap) {
    const ScopedOptions scope({.record_sites = true});
    EXPECT_TRUE(scale(overlap));
    return scope.sites().size();
  };
  EXPECT_EQ(waits(Overlap::no), 1u);  // the barrier
  EXPECT_EQ(waits(Overlap::yes), 2u);
  EXPECT_THAT(survivors([] { return scale(Overlap::yes); }), testing::IsEmpty());
  EXPECT_THAT(survivors([] { return scale(Overlap::no); }), testing::IsEmpty());
  EXPECT_THAT(survivors([] { return scale(Overlap::no) && scale(Overlap::yes); }), testing::IsEmpty());
}

// A kernel that ends at once would let the one after it overtake the one before.
struct Empty {
  static constexpr u32 threads = 32;
  bool waits;
  NIBBLE_DEVICE void operator()() const {
    if (waits && block_x() > 0 && lane_id() == 7) dependency_wait();
  }
};

TEST(Dependencies, ABlockOfEachLaunchWaits) {
  const auto run = [] { return launch({3}, 0, nullptr, Empty{false}, Overlap::yes), true; };
  const Outcome seen = outcome(run);
  EXPECT_EQ(seen.passed, 0);
  EXPECT_THAT(seen.reports,
              testing::Each(testing::HasSubstr("a launch that overlaps the one before has no dependency_wait")));
  launch({3}, 0, nullptr, Empty{true}, Overlap::yes);
  launch({3}, 0, nullptr, Empty{false}, Overlap::no);
}

TEST(Dependencies, BlocksThatLaunchDependentsAreCounted) {
  const ScopedOptions scope({});
  scale(Overlap::no);
  EXPECT_EQ(scope.statistics().launched_dependents, 2u);
  launch({3}, 0, nullptr, Empty{});
  EXPECT_EQ(scope.statistics().launched_dependents, 2u);
}

TEST(Dependencies, ConstantsAreNotWritten) {
  const auto factor = DeviceArray<float>::constant(std::vector<float>(128, 3.0f), {.name = "factor"});
  const auto counter = DeviceArray<u32>::workspace({0});
  const Outcome seen = outcome([&] {
    return launch({1}, 16, nullptr, Scale<Early::nothing>{factor.data(), factor.data(), factor.data(), counter.data()}),
           true;
  });
  EXPECT_THAT(seen.reports, testing::Each(testing::HasSubstr("write to 'factor', which is read-only")));
  EXPECT_EQ(seen.passed, 0);
}

// A tile by TMA, before the wait or after it.
struct LoadTile {
  static constexpr u32 threads = 32, tile_bytes = 1024, shared_bytes = tile_bytes + 8 + 1024;
  TensorMap map;
  Global<u32> out;
  bool waits_before;
  NIBBLE_DEVICE void operator()() const {
    const Shared<u8> all = dynamic_shared_aligned(1024);
    const Shared<u64> mbarrier = all.part(tile_bytes, 8).as<u64>();
    if (thread_id() == 0) {
      mbar_init(mbarrier, 1);
      mbar_init_fence();
      mbar_expect_tx_arrive(mbarrier, tile_bytes);
      if (waits_before) dependency_wait();
      tma_load_2d(all.part(0, tile_bytes), map, 0, 0, mbarrier);
      if (!waits_before) dependency_wait();
    }
    sync_warp();
    mbar_wait(mbarrier, 0);
    st(out + thread_id(), lds(all.as<u32>() + thread_id()));
  }
};

TEST(Dependencies, TilesOfConstantsMayComeBeforeTheWait) {
  const std::vector<u16> values(512, 7);
  const auto constant = DeviceArray<u16>::constant(values, {.name = "weight"});
  const auto input = DeviceArray<u16>::input(values, {.name = "in"});
  const auto faults = [](const DeviceArray<u16>& from, bool waits_before) {
    return outcome([&] {
             const auto map = make_tensor_map(from.data(), 2, 64, 8, 128, 64, 8, Swizzle::bytes128);
             const auto out = DeviceArray<u32>::output(32);
             launch({1}, LoadTile::shared_bytes, nullptr, LoadTile{map, out.data(), waits_before}, Overlap::yes);
             return out.to_host() == std::vector<u32>(32, 0x70007);
           })
        .faults;
  };
  EXPECT_THAT(faults(constant, false), testing::IsEmpty());
  EXPECT_THAT(faults(constant, true), testing::IsEmpty());
  EXPECT_THAT(faults(input, true), testing::IsEmpty());
  EXPECT_THAT(faults(input, false), testing::ElementsAreArray(std::vector<Fault>(20, Fault::dependency)));
}

struct Prefetch {
  static constexpr u32 threads = 32;
  Global<const float> in;
  i64 first;
  u32 bytes;  // or 0 for single elements
  NIBBLE_DEVICE void operator()() const {
    if (bytes == 0)
      prefetch_l2(in + (first + thread_id()));
    else if (thread_id() == 0)
      prefetch_l2(in + first, bytes);
  }
};

TEST(Dependencies, PrefetchesStayInTheirArray) {
  const DeviceArray<float> in(64, {.name = "in"});  // nobody wrote it, which does not matter
  const auto prefetch = [&](i64 first, u32 bytes) -> std::string {
    try {
      launch({1}, 0, nullptr, Prefetch{in.data(), first, bytes});
    } catch (const simulator::Failure& failure) {
      return failure.what();
    }
    return "";
  };
  EXPECT_EQ(prefetch(0, 0), "");
  EXPECT_EQ(prefetch(32, 0), "");
  EXPECT_EQ(prefetch(0, 256), "");
  EXPECT_EQ(prefetch(60, 16), "");
  EXPECT_THAT(prefetch(33, 0), testing::HasSubstr("prefetch of 4 bytes at byte 256 of 'in', which has 256"));
  EXPECT_THAT(prefetch(-1, 0), testing::HasSubstr("prefetch of 4 bytes at byte -4 of 'in', which has 256"));
  EXPECT_THAT(prefetch(4, 256), testing::HasSubstr("prefetch of 256 bytes at byte 16 of 'in', which has 256"));
  EXPECT_THAT(prefetch(0, 24), testing::HasSubstr("a bulk prefetch has 16, 32, ... bytes"));
  EXPECT_THAT(prefetch(1, 16), testing::HasSubstr("misaligned access"));
}

}  // namespace
}  // namespace nibble::device::test
