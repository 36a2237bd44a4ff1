// Barriers, operations that the lanes of a warp do together, and cp.async.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/simulator/simulator.hpp"

namespace nibble::device::simulator {

// -- Barriers and operations of a warp

void Block::barrier(Thread& thread, u32 id, u32 count, bool wait, const Site& site) {
  if (skipped(site)) return;
  if (id > 15 || count == 0 || count % warp_size != 0 || count > threads)
    fail(Fault::misuse, site, fmt::format("barrier {} of {} threads", id, count));
  Barrier& barrier = barriers_[id];
  const u32 warp = thread.warp();
  if (barrier.arrived == 0) {
    barrier.count = count;
    barrier.clock.assign(clock_size_, 0);
    barrier.proxy_clock.assign(clock_size_, 0);
    std::fill(std::begin(barrier.lanes), std::end(barrier.lanes), 0u);
  }
  if (barrier.count != count)
    fail(Fault::divergence, site,
         fmt::format("barrier {} is for {} threads here and for {} elsewhere", id, count, barrier.count));
  if (barrier.lanes[warp] != 0 && !same_site(barrier.site[warp], site))
    fail(Fault::divergence, site,
         fmt::format("other lanes of warp {} are in barrier {} at {}", warp, id, where(barrier.site[warp])));
  if ((barrier.lanes[warp] >> thread.lane() & 1) != 0)
    fail(Fault::divergence, site, fmt::format("the thread comes twice to barrier {}", id));
  barrier.lanes[warp] |= 1u << thread.lane();
  barrier.site[warp] = site;
  barrier.arrived += 1;
  if (options_.detect_races) {
    join(barrier.clock.data(), thread.clock);
    join(barrier.proxy_clock.data(), thread.proxy_clock);
    step(thread, site);
  }
  if (wait) barrier.waiting.push_back(&thread);
  if (barrier.arrived < barrier.count) {
    if (wait) block_thread(thread, "a barrier", site);
    return;
  }
  for (u32 w = 0; w < warps_; ++w)
    if (barrier.lanes[w] != 0 && ~barrier.lanes[w] != 0)
      fail(Fault::divergence, site,
           fmt::format("barrier {} completes with lanes {:08x} of warp {}", id, barrier.lanes[w], w));
  for (Thread* waiting : barrier.waiting) {
    if (options_.detect_races) {
      join(waiting->clock, barrier.clock.data());
      join(waiting->proxy_clock, barrier.proxy_clock.data());
    }
    wake(*waiting);
  }
  barrier.waiting.clear();
  barrier.arrived = 0;
  if (wait) run_another(thread);
}

namespace {

const char* name(Together operation) {
  switch (operation) {
    case Together::shuffle:
      return "shfl";
    case Together::vote:
      return "vote";
    case Together::load_matrix:
      return "ldmatrix";
    case Together::multiply:
      return "mma";
    case Together::synchronize:
      return "sync_warp";
    case Together::registers:
      return "setmaxnreg";
    case Together::cluster:
      return "cluster_arrive";
  }
  return "?";
}

}  // namespace

void Block::together(Thread& thread, u32 mask, Together operation, bool aligned, void* operands, Complete complete,
                     const Site& site) {
  statistics.collectives += 1;
  const u32 warp = thread.warp(), lane = thread.lane(), bit = 1u << lane;
  auto& meetings = meetings_[warp];
  if ((mask & bit) == 0)
    fail(Fault::divergence, site,
         fmt::format("lane {} is not in the mask {:08x} of its {}", lane, mask, name(operation)));
  std::size_t i = 0;
  while (i < meetings.size() && (meetings[i].mask & mask) == 0) ++i;
  if (i < meetings.size()) {
    const Meeting& there = meetings[i];
    if (there.mask != mask || there.operation != operation || (there.arrived & bit) != 0 ||
        (aligned && !same_site(there.site, site)))
      fail(Fault::divergence, site,
           fmt::format("lane {} comes to {} of lanes {:08x} while lanes {:08x} wait in {} of lanes {:08x} at {}", lane,
                       name(operation), mask, there.arrived, name(there.operation), there.mask, where(there.site)));
  }
  if ((mask & exited_[warp]) != 0)
    fail(Fault::divergence, site,
         fmt::format("{} of lanes {:08x}, of which {:08x} have exited", name(operation), mask, mask & exited_[warp]));
  if (i == meetings.size()) {
    Meeting& fresh = meetings.emplace_back();
    fresh.mask = mask;
    fresh.operation = operation;
    fresh.site = site;
  }
  meetings[i].operands[lane] = operands;
  meetings[i].arrived |= bit;
  if (meetings[i].arrived != mask) return block_thread(thread, name(operation), site);

  complete(*this, mask, meetings[i].operands, site);  // no other lane runs meanwhile
  std::swap(meetings[i], meetings.back());
  meetings.pop_back();
  runnable_[warp] |= mask;
  runnable_warps_ |= 1u << warp;
  // The last to arrive need not be the first to go on.
  if (options_.schedule != Schedule::in_order && (random() & 3) == 0) run_another(thread);
}

void Block::synchronize_warp(Thread& thread, u32 mask, const Site& site) {
  if (skipped(site)) return;
  const Complete complete = [](Block& block, u32 lanes, void** operands, const Site& at) {
    if (!block.options_.detect_races) return;
    std::vector<Clock>& joined = block.joined_;
    const u32 size = block.clock_size_;
    joined.assign(std::size_t{2} * size, 0);
    for (u32 rest = lanes; rest != 0; rest &= rest - 1) {
      const Thread& lane = *static_cast<Thread*>(operands[std::countr_zero(rest)]);
      block.join(joined.data(), lane.clock);
      block.join(joined.data() + size, lane.proxy_clock);
    }
    for (u32 rest = lanes; rest != 0; rest &= rest - 1) {
      Thread& lane = *static_cast<Thread*>(operands[std::countr_zero(rest)]);
      std::copy_n(joined.data(), 2 * size, lane.clock);  // its proxy_clock follows
      block.step(lane, at);
    }
  };
  together(thread, mask, Together::synchronize, false, &thread, complete, site);
}

// -- setmaxnreg

void Block::set_registers(Thread& thread, u32 count, bool grows, const Site& site) {
  if (options_.loaded_target() != 90) fail(Fault::misuse, site, "setmaxnreg needs sm_90a");
  together(
      thread, ~0u, Together::registers, true, &thread, [](Block&, u32, void**, const Site&) {}, site);
  u32& own = registers_[thread.warp()];
  if (own == count) return;  // another lane has been here, or there is nothing to do
  if (grows ? count < own : count > own)
    fail(Fault::misuse, site, fmt::format("setmaxnreg from {} to {} registers", own, count));
  if (!grows) {
    free_registers_ += own - count;
    for (const Thread* waiting : waiting_for_registers_) wake(*waiting);
    waiting_for_registers_.clear();
  }
  while (grows && own != count && free_registers_ < count - own) {
    waiting_for_registers_.push_back(&thread);
    block_thread(thread, "setmaxnreg", site);
  }
  if (grows && own != count) free_registers_ -= count - own;
  own = count;
}

// -- cp.async: nothing arrives before the wait, and then only for the thread that issued it

void Block::copy_to_shared(Thread& thread, const CopyToShared& copy) {
  shared.take_off(thread.who, thread.who, thread.clock, copy.target, copy.size, copy.site);
  thread.open_copies.push_back(copy);
}

void Block::commit_copies(Thread& thread) {
  thread.copy_groups.push_back(std::move(thread.open_copies));
  thread.open_copies.clear();
}

void Block::land_copies(Thread& thread, const std::vector<CopyToShared>& group) {
  for (const CopyToShared& copy : group) {
    char* target = shared.data() + copy.target;
    std::memset(target, 0, copy.size);
    if (copy.bytes > 0) std::memcpy(target, copy.source, copy.bytes);
    shared.land(thread.who, thread.clock[thread.who], copy.target, copy.size);
  }
}

void Block::wait_for_copies(Thread& thread, u32 groups_left, const Site& site) {
  if (skipped(site)) return;
  while (thread.copy_groups.size() > groups_left) {
    land_copies(thread, thread.copy_groups.front());
    thread.copy_groups.pop_front();
  }
}

}  // namespace nibble::device::simulator
