// Blocks that run by turns, their barrier, and what they may do with each other's shared memory.
#include "tests/simulator/cluster.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tests/simulator/simulator.hpp"

namespace nibble::device::simulator {

void Cluster::run(const Launch& launch, u64 first, const Options& options) {
  while (blocks.size() < launch.cluster) blocks.push_back(std::make_unique<Block>());
  arrived = phase = 0;
  waiting.clear();
  for (u32 rank = 0; rank < launch.cluster; ++rank) {
    const u64 at = first + rank, row = at / launch.grid.x;
    const Grid index{static_cast<u32>(at % launch.grid.x), static_cast<u32>(row % launch.grid.y),
                     static_cast<u32>(row / launch.grid.y)};
    blocks[rank]->begin(launch, index, options, options.seed * 1000003 + at, *this, rank);
  }
  clock.assign(blocks[0]->clock_size(), 0);
  proxy_clock.assign(blocks[0]->clock_size(), 0);

  for (;;) {
    u32 ready[max_cluster], count = 0;
    bool ended = true;
    for (u32 rank = 0; rank < launch.cluster; ++rank) {
      ended &= blocks[rank]->has_ended();
      if (blocks[rank]->can_advance()) ready[count++] = rank;
    }
    if (ended) break;
    if (count == 0) {
      std::string text;
      for (u32 rank = 0; rank < launch.cluster; ++rank)
        text += fmt::format("block {}: {}", rank, blocks[rank]->report_waiting());
      throw Failure(Fault::deadlock, Site::current(), "deadlock: no thread of the cluster can run; " + text);
    }
    const bool in_order = options.schedule == Schedule::in_order || count == 1;
    blocks[ready[in_order ? 0 : blocks[0]->random() % count]]->advance();
  }
  for (u32 rank = 0; rank < launch.cluster; ++rank) blocks[rank]->end();
}

// -- The barrier

void Block::synchronize_cluster(Thread& thread, const Site& site) {
  arrive_at_cluster(thread, site);
  wait_for_cluster(thread, site);
}

void Block::arrive_at_cluster(Thread& thread, const Site& site) {
  if (options_.loaded_target() < 90) fail(Fault::misuse, site, "clusters need sm_90");
  together(
      thread, ~0u, Together::cluster, true, &thread, [](Block&, u32, void**, const Site&) {}, site);
  if (thread.arrived_at_cluster)
    fail(Fault::misuse, site, "the thread arrives at the cluster's barrier a second time before it waits");
  thread.arrived_at_cluster = true;
  thread.cluster_phase = cluster_->phase;
  if (options_.detect_races) {
    join(cluster_->clock.data(), thread.clock);
    join(cluster_->proxy_clock.data(), thread.proxy_clock);
    step(thread, site);
  }
  if (++cluster_->arrived < launch_.cluster * threads) return;
  cluster_->arrived = 0;
  cluster_->phase += 1;
  for (Thread* waiting : cluster_->waiting) waiting->block->wake(*waiting);
  cluster_->waiting.clear();
}

void Block::wait_for_cluster(Thread& thread, const Site& site) {
  if (!thread.arrived_at_cluster)
    fail(Fault::misuse, site, "the thread waits at the cluster's barrier, but has not arrived");
  thread.arrived_at_cluster = false;
  if (skipped(site)) return;
  while (cluster_->phase == thread.cluster_phase) {
    cluster_->waiting.push_back(&thread);
    block_thread(thread, "cluster_wait", site);
  }
  // All threads must wait before the next phase can complete: what has arrived until then is of this phase.
  if (options_.detect_races) {
    join(thread.clock, cluster_->clock.data());
    join(thread.proxy_clock, cluster_->proxy_clock.data());
  }
}

// -- Shared memory of other blocks

Block& Block::block_of_cluster(u32 rank, const Site& site) {
  if (rank >= launch_.cluster)
    fail(Fault::misuse, site, fmt::format("block {} of a cluster of {}", rank, launch_.cluster));
  return *cluster_->blocks[rank];
}

u32 Block::same_array(u32 offset, Block& other, const Site& site) const {
  if (offset >= dynamic_shared_offset_ && offset <= dynamic_shared_offset_ + dynamic_shared_bytes_)
    return offset - dynamic_shared_offset_ + other.dynamic_shared_offset_;
  for (const StaticArray& own : statics_)
    if (offset >= own.offset && offset <= own.offset + own.bytes)
      return offset - own.offset + other.static_shared(own.declaration, own.bytes, site);
  fail(Fault::misuse, site, "this is in no array of the block");
}

void Block::visit(const Thread& thread, const Site& site) {
  if (has_ended()) fail(Fault::race, site, fmt::format("block {} of the cluster has ended", rank_));
  if (!options_.detect_races || thread.block == this) return;
  const Clock* const own = thread.clock + first_who();
  if (std::all_of(own, own + threads, [](Clock step) { return step == 0; }))
    fail(Fault::race, site, fmt::format("block {} of the cluster may not have begun: no cluster_sync before", rank_));
  visits_[thread.who] = {thread.clock[thread.who], site};
}

}  // namespace nibble::device::simulator
