// Clusters: blocks that run at the same time and use each other's shared memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/device/device.hpp"
#include "tests/kernels/device/cluster_exchange.hpp"
#include "tests/kernels/schedules.hpp"
#include "tests/simulator/array.hpp"

namespace nibble::device::test {
namespace {

using nibble::test::in_schedules;
using nibble::test::Outcome;
using nibble::test::outcome;
using nibble::test::survivors;
using simulator::Fault;
using simulator::ScopedOptions;
using testing::HasSubstr;

template <u32 Cluster, PlantedCluster fault = PlantedCluster::nothing> bool exchange(u32 clusters) {
  using Kernel = ClusterExchange<Cluster, fault>;
  constexpr u32 threads = Kernel::threads;
  std::vector<u32> values(clusters * Cluster * threads), expected;
  std::iota(values.begin(), values.end(), 1000u);
  for (u32 block = 0; block < clusters * Cluster; ++block) {
    const u32 first = block / Cluster * Cluster, rank = block % Cluster;
    const auto of = [&](u32 other, u32 thread) { return values[(first + other % Cluster) * threads + thread]; };
    for (u32 t = 0; t < threads; ++t)
      expected.push_back(Kernel::result(of(rank + 1, threads - 1 - t), of(rank + Cluster - 1, t ^ 3)));
  }
  const auto in = DeviceArray<u32>::input(values);
  const auto out = DeviceArray<u32>::output(values.size());
  launch({clusters * Cluster}, Kernel::shared_bytes, nullptr, Kernel{in.data(), out.data()});
  return out.to_host() == expected;
}

TEST(Cluster, BlocksUseEachOthersSharedMemory) {
  in_schedules(
      [] {
        EXPECT_TRUE(exchange<2>(1));
        EXPECT_TRUE(exchange<2>(3));
        EXPECT_TRUE(exchange<4>(2));
        EXPECT_TRUE(exchange<8>(1));
        EXPECT_TRUE(exchange<1>(2));
      },
      9);
  const ScopedOptions scope({.detect_races = false});
  EXPECT_TRUE(exchange<4>(2));
}

TEST(Cluster, SeveralWorkersAgree) {
  const ScopedOptions scope({.workers = 4});
  EXPECT_TRUE(exchange<2>(20));
}

template <PlantedCluster fault> void expect_fault(const char* text) {
  const Outcome seen = outcome([] { return exchange<2, fault>(2); });
  EXPECT_EQ(seen.passed + seen.wrong, 0) << text;
  EXPECT_THAT(seen.reports, testing::Each(testing::ContainsRegex(text)));
}

TEST(Cluster, FaultsAreCaught) {
  using enum PlantedCluster;
  expect_fault<no_first_sync>("block [01] of the cluster may not have begun: no cluster_sync before");
  expect_fault<no_last_sync>(
      "race: block [01] of the cluster (does not wait for this access to its shared memory|has ended)");
  expect_fault<no_init_fence>("no fence makes its init visible to other blocks");
  expect_fault<no_wait>("race: read of shared byte|uninitialized read: read of shared byte|race: block");
  expect_fault<wait_of_a_block>("mbar_wait, but other blocks of the cluster arrive: mbar_wait_cluster");
  expect_fault<past_the_array>("4 bytes at byte 256 of an array of 256");
  expect_fault<past_the_cluster>("block 2 of a cluster of 2");
}

TEST(Cluster, EverySynchronizationIsNeeded) {
  const ScopedOptions scope({.record_sites = true});
  EXPECT_TRUE(exchange<2>(1));
  EXPECT_EQ(scope.sites().size(), 4u);  // cluster_sync, the fence of the init, the wait of the mbarrier, cluster_wait
  EXPECT_THAT(survivors([] { return exchange<2>(2); }), testing::IsEmpty());
  EXPECT_THAT(survivors([] { return exchange<4>(1); }), testing::IsEmpty());
}

// One block ends while another one may still read its shared memory. Whether it does depends on the schedule.
struct ReadsAtTheEnd {
  static constexpr u32 threads = 32, cluster = 2;
  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(u32, value, threads);
    sts(value + thread_id(), 1);
    cluster_sync();
    if (cluster_rank() == 1) (void)ld_cluster(mapa(value, 0) + thread_id());
  }
};

TEST(Cluster, BlocksStayUntilOthersHaveRead) {
  const Outcome seen = outcome([] { return launch({2}, 0, nullptr, ReadsAtTheEnd{}), true; });
  EXPECT_EQ(seen.passed, 0);
  EXPECT_THAT(seen.faults, testing::Each(Fault::race));
  EXPECT_THAT(seen.reports, testing::Contains(HasSubstr("block 0 of the cluster has ended")));
  EXPECT_THAT(seen.reports, testing::Contains(HasSubstr("block 0 of the cluster does not wait for this access")));
}

// What a thread does between its arrival and its wait is not ordered before what others do after their wait.
struct StoresAfterArrival {
  static constexpr u32 threads = 64, cluster = 2;
  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(u32, value, threads);
    sts(value + thread_id(), 1);
    cluster_sync();
    cluster_arrive();
    st_cluster(mapa(value, cluster_rank() ^ 1) + thread_id(), 2u);
    cluster_wait();
    (void)lds(value + thread_id());
    cluster_sync();
  }
};

TEST(Cluster, RacesNameTheOtherBlock) {
  const Outcome seen = outcome([] { return launch({2}, 0, nullptr, StoresAfterArrival{}), true; });
  EXPECT_EQ(seen.passed, 0);
  EXPECT_THAT(seen.faults, testing::Each(Fault::race));
  EXPECT_THAT(seen.reports, testing::Contains(testing::ContainsRegex(
                                "is not ordered after the write by thread [0-9]+ of block [01] of the cluster")));
}

// Through global memory: each block reads what the next one of its cluster wrote.
template <bool Syncs> struct ThroughGlobalMemory {
  static constexpr u32 threads = 32, cluster = 2;
  Global<u32> values, out;
  NIBBLE_DEVICE void operator()() const {
    st(values + (block_x() * threads + thread_id()), block_x() * 100 + thread_id());
    if constexpr (Syncs) cluster_sync();
    st(out + (block_x() * threads + thread_id()), ld(values + ((block_x() ^ 1) * threads + (thread_id() ^ 1))));
  }
};

template <bool Syncs> bool through_global_memory() {
  const DeviceArray<u32> values(128);
  const auto out = DeviceArray<u32>::output(128);
  launch({4}, 0, nullptr, ThroughGlobalMemory<Syncs>{values.data(), out.data()});
  return out.to_host()[33] == 0 * 100 + 0 && out.to_host()[64] == 301;
}

TEST(Cluster, ItsBarrierOrdersGlobalMemory) {
  in_schedules([] { EXPECT_TRUE(through_global_memory<true>()); }, 6);
  const Outcome seen = outcome([] { return through_global_memory<false>(); });
  EXPECT_EQ(seen.passed + seen.wrong, 0);
  for (const Fault fault : seen.faults) EXPECT_TRUE(fault == Fault::race || fault == Fault::uninitialized);
}

// The last block of the grid adds up what all blocks wrote, across clusters and inside of one.
struct SumOfClusters {
  static constexpr u32 threads = 64, cluster = 2;
  Global<u32> values, counter, out;
  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(u32, is_last, 1);
    st(values + (block_x() * threads + thread_id()), block_x() + 1);
    sync_threads();
    if (thread_id() == 0) {
      threadfence();
      sts(is_last, atomic_add(counter, 1) == grid_x() - 1 ? 1u : 0u);
      threadfence();
    }
    sync_threads();
    if (lds(is_last) == 0) return;
    u32 sum = 0;
    for (u32 block = 0; block < grid_x(); ++block) sum += ld(values + (block * threads + (thread_id() ^ 1)));
    st(out + thread_id(), sum);
  }
};

TEST(Cluster, TheLastBlockMayAddUp) {
  in_schedules(
      [] {
        const DeviceArray<u32> values(6 * 64);
        const auto counter = DeviceArray<u32>::workspace({0});
        const auto out = DeviceArray<u32>::output(64);
        launch({6}, 0, nullptr, SumOfClusters{values.data(), counter.data(), out.data()});
        EXPECT_EQ(out.to_host(), std::vector<u32>(64, 21));
      },
      9);
}

enum class Halves { arrive_twice, wait_first, one_block_less };

template <Halves halves> struct Wrong {
  static constexpr u32 threads = 32, cluster = 2;
  NIBBLE_DEVICE void operator()() const {
    if constexpr (halves == Halves::arrive_twice) {
      cluster_arrive();
      cluster_arrive();
    }
    if (halves == Halves::one_block_less && cluster_rank() == 1) return;
    if constexpr (halves == Halves::one_block_less) cluster_arrive();
    cluster_wait();
  }
};

template <Halves halves> std::vector<std::string> reports_of() {
  const Outcome seen = outcome([] { return launch({2}, 0, nullptr, Wrong<halves>{}), true; });
  EXPECT_EQ(seen.passed, 0);
  return seen.reports;
}

TEST(Cluster, EachThreadArrivesAndWaitsByTurns) {
  EXPECT_THAT(reports_of<Halves::arrive_twice>(), testing::Each(HasSubstr("a second time before it waits")));
  EXPECT_THAT(reports_of<Halves::wait_first>(), testing::Each(HasSubstr("but has not arrived")));
  EXPECT_THAT(
      reports_of<Halves::one_block_less>(),
      testing::Each(testing::AllOf(HasSubstr("deadlock: no thread of the cluster can run; block 0: warp 0 lanes "
                                             "ffffffff wait in cluster_wait"),
                                   HasSubstr("block 1: warp 0 lanes ffffffff have exited"))));
}

template <u32 Cluster> struct Nothing {
  static constexpr u32 threads = 32, cluster = Cluster;
  NIBBLE_DEVICE void operator()() const {}
};

struct SyncsAlone {
  static constexpr u32 threads = 32;
  NIBBLE_DEVICE void operator()() const { cluster_sync(); }
};

TEST(Cluster, ABlockAloneIsAClusterOnSm90) {
  launch({2}, 0, nullptr, SyncsAlone{});
  const Outcome seen = outcome([] { return launch({2}, 0, nullptr, SyncsAlone{}), true; }, 1, {.capability = 80});
  EXPECT_THAT(seen.faults, testing::ElementsAre(Fault::misuse));
}

TEST(Cluster, LaunchesAreOfWholeClusters) {
  const ScopedOptions scope({.part = [](Grid) { return simulator::BlockRange{7, 9}; }});
  launch({16, 2}, 0, nullptr, Nothing<4>{});
  EXPECT_EQ(scope.statistics().blocks, 8u);  // from 4 to 11
  EXPECT_THROW(launch({6}, 0, nullptr, Nothing<4>{}), LaunchError);
  EXPECT_THROW(launch({9}, 0, nullptr, Nothing<9>{}), LaunchError);  // 8 at most
  const ScopedOptions older({.capability = 80});
  EXPECT_THROW(launch({8}, 0, nullptr, Nothing<4>{}), LaunchError);
  launch({8}, 0, nullptr, Nothing<1>{});
}

}  // namespace
}  // namespace nibble::device::test
