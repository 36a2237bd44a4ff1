// Blocks of a cluster read each other's shared memory, write it, and arrive at each other's mbarriers, with faults to
// plant. The tests of the layer and the calibration run it.
#pragma once
#include "kernels/device/device.hpp"

namespace nibble::device::test {

enum class PlantedCluster {
  nothing,
  no_first_sync,
  no_last_sync,
  no_init_fence,
  no_wait,
  wait_of_a_block,
  past_the_array,
  past_the_cluster,
};

template <u32 Cluster, PlantedCluster fault = PlantedCluster::nothing> struct ClusterExchange {
  static constexpr u32 threads = 64, cluster = Cluster, shared_bytes = 16 * threads;

  Global<const u32> in;  // threads of each block
  Global<u32> out;       // the same

  /// What a thread writes for its input and those of the next block and the one before.
  NIBBLE_DEVICE_AND_HOST static u32 result(u32 next, u32 before) { return next * 3 + (before ^ 0x5a5a5a5a); }

  NIBBLE_DEVICE void operator()() const {
    NIBBLE_SHARED(u32, own, threads);
    NIBBLE_SHARED(u64, mbarrier, 1);
    const Shared<u32x4> received = dynamic_shared().as<u32x4>();
    const i64 at = i64{block_x()} * threads + thread_id();
    const u32 value = ldg(in + at),
              next = fault == PlantedCluster::past_the_cluster ? Cluster : (cluster_rank() + 1) % Cluster;
    sts(own + thread_id(), value);
    if (thread_id() == 0) {
      mbar_init(mbarrier, threads);
      if constexpr (fault != PlantedCluster::no_init_fence) mbar_init_fence();
    }
    if constexpr (fault != PlantedCluster::no_first_sync)
      cluster_sync();
    else
      sync_threads();

    st_cluster(mapa(received, next) + thread_id(), {value, 1, 2, 3});
    mbar_arrive_cluster(mapa(mbarrier, next));
    if constexpr (fault == PlantedCluster::wait_of_a_block)
      mbar_wait(mbarrier, 0);
    else if constexpr (fault != PlantedCluster::no_wait)
      mbar_wait_cluster(mbarrier, 0);
    const u32 beyond = fault == PlantedCluster::past_the_array ? 1 : 0;
    const u32 read = ld_cluster(mapa(own, next) + (threads - 1 - thread_id() + beyond));
    const u32x4 written = lds(received + (thread_id() ^ 3));
    st(out + at, result(read, written.x + written.w - 3));
    if constexpr (fault != PlantedCluster::no_last_sync) {
      cluster_arrive();
      cluster_wait();
    }
  }
};

}  // namespace nibble::device::test
