#include "tests/simulator/simulator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

namespace nibble::device::simulator {

u64 Block::random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return random_ * 0x2545F4914F6CDD1Dull;
}

bool Block::skipped(const Site& site) {
  if (options_.record_sites &&
      std::none_of(sites.begin(), sites.end(), [&](const Site& known) { return same_site(known, site); }))
    sites.push_back(site);
  return options_.skipped && same_site(*options_.skipped, site);
}

void Block::begin(const Launch& launch, Grid block_index, const Options& options, u64 seed, Cluster& cluster,
                  u32 rank) {
  options_ = options;
  launch_ = launch;
  cluster_ = &cluster;
  rank_ = rank;
  index = block_index;
  first_block = launch.order->first_block;
  const u64 in_grid = (u64{block_index.z} * launch.grid.y + block_index.y) * launch.grid.x + block_index.x;
  number = first_block + static_cast<u32>(in_grid - launch.first);
  grid = launch.grid;
  threads = launch.threads;
  warps_ = threads / warp_size;
  random_ = seed * 0x9E3779B97F4A7C15ull + 0x1234567;
  for (int i = 0; i < 2; ++i) random();
  failure_ = nullptr;

  // The dynamic part is aligned to 16 bytes and no more, whatever a kernel hopes for. It begins at the same address in
  // all blocks of a cluster.
  shared.start(launch.cluster * threads, threads, options.detect_races);
  dynamic_shared_bytes_ = launch.dynamic_shared_bytes;
  shared.allocate(static_cast<u32>((seed - rank) * 0x9E3779B97F4A7C15ull >> 58) * 16, Site::current());
  dynamic_shared_offset_ = shared.allocate(dynamic_shared_bytes_, Site::current());
  statics_.clear();
  static_shared_bytes_ = 0;

  clock_size_ = (launch.cluster * (threads + agents) + 15) & ~15u;
  clocks_.assign(std::size_t{2} * threads * clock_size_, 0);
  if (threads_.size() < threads) threads_ = std::vector<Thread>(threads);
  stacks_.reserve(threads);
  for (u32 i = 0; i < threads; ++i) {
    Thread& thread = threads_[i];
    thread.index = i;
    thread.who = first_who() + i;
    thread.block = this;
    thread.exited = false;
    thread.fiber.start(stacks_[i], i * 5 % 64 * 64, &Block::thread_main);
    thread.clock = &clocks_[std::size_t{2} * i * clock_size_];
    thread.proxy_clock = thread.clock + clock_size_;
    thread.clock[thread.who] = 1;
    thread.open_copies.clear();
    thread.copy_groups.clear();
    thread.warpgroup.open.clear();
    thread.warpgroup.groups.clear();
    thread.warpgroup.accumulators.clear();
    thread.warpgroup.fenced_registers.clear();
    thread.fenced_clock.clear();
    thread.seen.clear();
    thread.after_dependency = false;
    thread.arrived_at_cluster = false;
  }
  std::fill(std::begin(registers_), std::end(registers_), max_registers(threads, launch.min_blocks));
  free_registers_ = 0;
  waiting_for_registers_.clear();
  dependency_waits_.clear();
  launched_dependents_ = false;
  mbarriers_.clear();
  bulk_copies_.clear();
  acquires_.clear();
  for (Barrier& barrier : barriers_) {
    barrier.arrived = 0;
    barrier.waiting.clear();
  }
  for (auto& meetings : meetings_) meetings.clear();

  live_ = threads;
  runnable_warps_ = warps_ == 32 ? ~0u : (1u << warps_) - 1;
  for (u32 w = 0; w < warps_; ++w) {
    runnable_[w] = ~0u;
    exited_[w] = 0;
    priority_[w] = static_cast<u8>(w);
  }
  for (u32 w = warps_; w > 1; --w) std::swap(priority_[w - 1], priority_[random() % w]);
  since_priorities_changed_ = 0;
  visits_.assign(launch.cluster > 1 ? launch.cluster * threads : 0, {});
  statistics.blocks += 1;
  statistics.threads += threads;
}

void Block::advance() {
  current = pick();
  if (current == nullptr) return;
  Fiber::change(outside_, current->fiber);
  current = nullptr;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Block::end() {
  if (!bulk_copies_.empty())
    fail(Fault::in_flight, bulk_copies_.front().site, "the block exits before this copy landed");
  // Its shared memory was there as long as one of its threads was.
  for (u32 who = 0; who < visits_.size(); ++who) {
    const Visit& visit = visits_[who];
    if (visit.step == 0) continue;
    if (std::none_of(threads_.begin(), threads_.begin() + threads,
                     [&](const Thread& thread) { return thread.clock[who] >= visit.step; }))
      fail(Fault::race, visit.site,
           fmt::format("block {} of the cluster does not wait for this access to its shared memory and may end before",
                       rank_));
  }
  if (launched_dependents_) statistics.launched_dependents += 1;
  if (!dependency_waits_.empty()) statistics.waiting_blocks += 1;
}

u32 Block::static_shared(const void* declaration, u32 bytes, const Site& site) {
  for (const StaticArray& known : statics_)
    if (known.declaration == declaration) return known.offset;
  static_shared_bytes_ += (bytes + 15) & ~15u;
  if (static_shared_bytes_ > default_shared_bytes)
    fail(Fault::misuse, site, fmt::format("{} bytes of static shared memory, of 49152", static_shared_bytes_));
  // The request for dynamic memory is for the largest launch, whatever this one has.
  const u64 asked = launch_.max_shared_bytes + static_shared_bytes_;
  const DeviceLimits limits = device_limits(options_.capability);
  if (asked > limits.block_shared_bytes)
    fail(Fault::misuse, site,
         fmt::format("{} bytes of dynamic and {} of static shared memory, of {}", launch_.max_shared_bytes,
                     static_shared_bytes_, limits.block_shared_bytes));
  const u32 offset = shared.allocate(bytes, site);
  statics_.push_back({declaration, offset, bytes});
  return offset;
}

void Block::thread_main() {
  Fiber::entered();
  Thread& thread = *current;
  Block& block = *thread.block;
  try {
    block.launch_.body(block.launch_.kernel);
    block.check_exit(thread);
  } catch (...) {
    block.failure_ = std::current_exception();  // the switch comes after the handler: see Fiber
  }
  block.finish(thread);
}

void Block::check_exit(Thread& thread) {
  if (!thread.open_copies.empty())
    fail(Fault::in_flight, thread.open_copies.front().site, "the thread exits before it commits this cp.async");
  for (const auto& group : thread.copy_groups)
    if (!group.empty())
      fail(Fault::in_flight, group.front().site, "the thread exits before it waits for this cp.async");
  const Warpgroup& warpgroup = thread.warpgroup;
  if (!warpgroup.open.empty())
    fail(Fault::wgmma, warpgroup.open.front().site, "the thread exits before it commits this");
  for (const auto& group : warpgroup.groups)
    if (!group.empty()) fail(Fault::wgmma, group.front().site, "the thread exits before it waits for this");
}

void Block::finish(Thread& thread) {
  thread.exited = true;
  exited_[thread.warp()] |= 1u << thread.lane();
  sleep(thread);
  Thread* next = nullptr;
  if (--live_ > 0 && !failure_) {
    next = pick();
    if (next == nullptr && launch_.cluster == 1)
      failure_ = std::make_exception_ptr(
          Failure(Fault::deadlock, Site::current(), "deadlock: no thread can run; " + report_waiting()));
  }
  current = next;
  Fiber::change(thread.fiber, next != nullptr ? next->fiber : outside_, true);
}

// -- Scheduling

void Block::wake(const Thread& thread) {
  runnable_[thread.warp()] |= 1u << thread.lane();
  runnable_warps_ |= 1u << thread.warp();
}

void Block::sleep(const Thread& thread) {
  u32& lanes = runnable_[thread.warp()];
  lanes &= ~(1u << thread.lane());
  if (lanes == 0) runnable_warps_ &= ~(1u << thread.warp());
}

namespace {

// The first set bit at or after bit `start`, around the end.
u32 bit_from(u32 bits, u32 start) {
  return (static_cast<u32>(std::countr_zero(std::rotr(bits, static_cast<int>(start)))) + start) & 31;
}

}  // namespace

u32 Block::pick_warp(u32& random_bits) {
  if (options_.schedule == Schedule::in_order) return static_cast<u32>(std::countr_zero(runnable_warps_));
  random_bits = static_cast<u32>(random() >> 32);
  if (options_.schedule == Schedule::random) return bit_from(runnable_warps_, random_bits >> 5 & 31);
  if (++since_priorities_changed_ > 200) {
    since_priorities_changed_ = 0;
    const u64 bits = random();
    std::swap(priority_[bits % warps_], priority_[(bits >> 32) % warps_]);
  }
  u32 best = static_cast<u32>(std::countr_zero(runnable_warps_));
  for (u32 rest = runnable_warps_; rest != 0; rest &= rest - 1) {
    const u32 candidate = static_cast<u32>(std::countr_zero(rest));
    if (priority_[candidate] > priority_[best]) best = candidate;
  }
  return best;
}

Thread* Block::pick() {
  if (!options_.late_copies && !bulk_copies_.empty() && (random() & 7) == 0) land_bulk_copy();
  while (runnable_warps_ == 0)
    if (!land_bulk_copy()) return nullptr;
  u32 random_bits = 0;
  const u32 warp = pick_warp(random_bits);
  return &threads_[warp * warp_size + bit_from(runnable_[warp], random_bits & 31)];
}

void Block::run_another(Thread& thread) {
  Thread* next = pick();
  if (next == &thread) return;
  if (next == nullptr && launch_.cluster > 1) return Fiber::change(thread.fiber, outside_);  // until others wake it
  if (next == nullptr) {
    failure_ = std::make_exception_ptr(
        Failure(Fault::deadlock, thread.site, "deadlock: no thread can run; " + report_waiting()));
    Fiber::change(thread.fiber, outside_, true);
  }
  statistics.switches += 1;
  current = next;
  Fiber::change(thread.fiber, next->fiber);
}

void Block::block_thread(Thread& thread, const char* waits_in, const Site& site) {
  thread.waits_in = waits_in;
  thread.site = site;
  sleep(thread);
  run_another(thread);
}

std::string Block::report_waiting() const {
  std::string text;
  for (u32 w = 0; w < warps_; ++w) {
    std::vector<std::pair<std::string, u32>> groups;
    for (u32 lane = 0; lane < warp_size; ++lane) {
      const Thread& thread = threads_[w * warp_size + lane];
      const std::string state =
          thread.exited ? "have exited" : fmt::format("wait in {} at {}", thread.waits_in, where(thread.site));
      auto same = std::find_if(groups.begin(), groups.end(), [&](const auto& group) { return group.first == state; });
      if (same == groups.end()) same = groups.insert(groups.end(), {state, 0});
      same->second |= 1u << lane;
    }
    for (const auto& [state, lanes] : groups) text += fmt::format("warp {} lanes {:08x} {}; ", w, lanes, state);
  }
  return text;
}

// -- Clocks

void Block::join(Clock* __restrict clock, const Clock* __restrict other) const {
  for (u32 i = 0; i < clock_size_; ++i) clock[i] = std::max(clock[i], other[i]);
}

void Block::step(Thread& thread, const Site& site) {
  if (++thread.clock[thread.who] == 0xfff0) fail(Fault::misuse, site, "more than 65,000 synchronizations of a thread");
}

// -- Launch

void run_grid(Launch launch) {
  if (current != nullptr) throw Failure(Fault::misuse, Site::current(), "a kernel cannot launch a kernel");
  const Options options = current_options();
  check_limits(launch, options.capability);
  const u64 in_grid = u64{launch.grid.x} * launch.grid.y * launch.grid.z;

  const BlockRange part = options.part != nullptr ? options.part(launch.grid) : BlockRange{0, in_grid};
  launch.first = std::min(part.first, in_grid) / launch.cluster * launch.cluster;
  const u64 blocks = std::max(std::min(part.end, in_grid), launch.first) - launch.first;
  const u64 clusters = (blocks + launch.cluster - 1) / launch.cluster;
  std::vector<u32> order(clusters);
  std::iota(order.begin(), order.end(), 0u);
  u64 random = options.seed * 6364136223846793005ull + 1442695040888963407ull;
  if (options.schedule != Schedule::in_order)
    for (std::size_t i = clusters; i > 1; --i) {
      random = random * 6364136223846793005ull + 1;
      std::swap(order[i - 1], order[(random >> 33) % i]);
    }

  BlockOrder block_order(static_cast<u32>(clusters) * launch.cluster);
  launch.order = &block_order;
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  Statistics total;
  total.launches = 1;
  total.overlapping_launches = launch.overlaps ? 1 : 0;
  std::vector<Site> sites;
  const auto work = [&] {
    static thread_local Cluster cluster;
    for (const auto& block : cluster.blocks) {
      block->statistics = {};
      block->sites.clear();
    }
    try {
      for (std::size_t i = next++; i < clusters; i = next++)
        cluster.run(launch, launch.first + u64{order[i]} * launch.cluster, options);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = clusters;
    }
    const std::lock_guard lock(mutex);
    for (const auto& block : cluster.blocks) {
      total.add(block->statistics);
      sites.insert(sites.end(), block->sites.begin(), block->sites.end());
    }
  };
  if (options.workers <= 1) {
    work();
  } else {
    std::vector<std::jthread> workers;
    for (int i = 0; i < options.workers; ++i) workers.emplace_back(work);
  }
  if (current_scope() != nullptr) current_scope()->add(total, sites);
  if (failure) std::rethrow_exception(failure);
  // The next kernel's wait is for this one alone: if all of this one ends early, so may that one.
  if (launch.overlaps && blocks == in_grid && total.waiting_blocks == 0)
    throw Failure(Fault::dependency, Site::current(), "a launch that overlaps the one before has no dependency_wait");
}

}  // namespace nibble::device::simulator
