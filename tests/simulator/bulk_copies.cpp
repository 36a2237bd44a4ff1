#include "tests/simulator/bulk_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/simulator/simulator.hpp"

namespace nibble::device {

TensorMap make_tensor_map(const void* base, u32 element_bytes, u64 inner, u64 outer, u64 row_bytes, u32 box_inner,
                          u32 box_outer, Swizzle swizzle) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw LaunchError(1, std::string("tensor map: ") + what);
  };
  require(reinterpret_cast<std::uintptr_t>(base) % 16 == 0, "the address is not a multiple of 16");
  require(row_bytes % 16 == 0 && row_bytes < u64{1} << 40, "the row's bytes are not a multiple of 16 below 2^40");
  require(inner > 0 && outer > 0 && inner <= u64{1} << 32 && outer <= u64{1} << 32, "sizes from 1 to 2^32");
  require(box_inner > 0 && box_inner <= 256 && box_outer > 0 && box_outer <= 256, "a box has 1 to 256 elements a side");
  require(u64{box_inner} * element_bytes % 16 == 0, "the box's row is not a multiple of 16 bytes");
  require(swizzle == Swizzle::none || box_inner * element_bytes <= 128, "the box's row is longer than the swizzle");
  simulator::Region* region = simulator::find_region(base);
  if (region == nullptr ||
      !region->contains(reinterpret_cast<std::uintptr_t>(base), (outer - 1) * row_bytes + inner * element_bytes))
    throw simulator::Failure(simulator::Fault::global_bounds, simulator::Site::current(),
                             "tensor map: the matrix is not in one allocation");
  return {region, static_cast<const char*>(base), element_bytes, inner, outer, row_bytes, box_inner, box_outer,
          swizzle};
}

namespace simulator {

void check_box(const TensorMap& map, i32 x, i32 y, const Site& site) {
  const i64 first = std::max<i64>(x, 0), end = std::min<i64>(i64{x} + map.box_inner, static_cast<i64>(map.inner));
  const i64 last_row = std::min<i64>(i64{y} + map.box_outer, static_cast<i64>(map.outer));
  for (i64 row = std::max<i64>(y, 0); row < last_row && first < end; ++row)
    check_global(map.base + row * static_cast<i64>(map.row_bytes) + first * map.element_bytes,
                 static_cast<std::size_t>(end - first) * map.element_bytes, map.element_bytes, map.region, Use::read,
                 site);
}

Mbarrier& Block::mbarrier(Thread& thread, u32 offset, const Site& site) {
  for (Mbarrier& mbarrier : mbarriers_)
    if (mbarrier.offset == offset) {
      if (options_.detect_races) {
        const SharedMemory::Writer writer = shared.writer(offset);
        if (writer.who != thread.who && thread.clock[writer.who] < writer.step)
          fail(Fault::race, site, fmt::format("mbarrier at shared byte {}: its init is not ordered before", offset));
      }
      return mbarrier;
    }
  fail(Fault::uninitialized, site, fmt::format("mbarrier at shared byte {} is not initialized", offset));
}

void Block::init_mbarrier(Thread& thread, u32 offset, u32 count, const Site& site) {
  if (count == 0) fail(Fault::misuse, site, "mbarrier for no arrivals");
  if (mbarriers_.size() == mbarrier_agents) fail(Fault::misuse, site, "more than 32 mbarriers");
  for (const Mbarrier& mbarrier : mbarriers_)
    if (mbarrier.offset == offset) fail(Fault::misuse, site, "the mbarrier is initialized a second time");
  shared.write(thread.who, thread.clock, offset, 8, site);
  Mbarrier& mbarrier = mbarriers_.emplace_back();
  mbarrier.offset = offset;
  mbarrier.count = count;
  mbarrier.pending = static_cast<i32>(count);
  mbarrier.agent = first_agent() + static_cast<u32>(mbarriers_.size() - 1);
  mbarrier.initializer = thread.who;
  for (auto* clock : {&mbarrier.arriving, &mbarrier.released, &mbarrier.proxy_arriving, &mbarrier.proxy_released})
    clock->assign(clock_size_, 0);
}

void Block::fence_mbarrier_init(Thread& thread, const Site& site) {
  if (skipped(site)) return;
  for (Mbarrier& mbarrier : mbarriers_)
    if (mbarrier.initializer == thread.who) mbarrier.fenced = true;
}

// Counts for what this thread itself wrote: PTX has no rule for a fence further down the path of synchronizations.
void Block::fence_proxy(Thread& thread, const Site& site) {
  if (skipped(site)) return;
  thread.proxy_clock[thread.who] = thread.clock[thread.who];
  for (Mbarrier& mbarrier : mbarriers_)
    if (mbarrier.initializer == thread.who) mbarrier.fenced = true;
}

void Block::complete_phase(Mbarrier& mbarrier) {
  if (mbarrier.pending > 0 || mbarrier.bytes != 0) return;
  mbarrier.phase += 1;
  mbarrier.pending = static_cast<i32>(mbarrier.count);
  join(mbarrier.released.data(), mbarrier.arriving.data());
  join(mbarrier.proxy_released.data(), mbarrier.proxy_arriving.data());
  for (const Thread* waiting : mbarrier.waiting) wake(*waiting);
  mbarrier.waiting.clear();
}

void Block::arrive(Thread& thread, u32 offset, u32 expected_bytes, const Site& site) {
  Mbarrier& there = mbarrier(thread, offset, site);
  if (thread.block != this && !there.fenced)
    fail(Fault::proxy, site,
         fmt::format("mbarrier at shared byte {}: no fence makes its init visible to other blocks", offset));
  there.of_cluster |= thread.block != this;
  there.bytes += expected_bytes;
  join(there.arriving.data(), thread.clock);
  join(there.proxy_arriving.data(), thread.proxy_clock);
  step(thread, site);
  if (--there.pending < 0)
    fail(Fault::misuse, site, fmt::format("mbarrier at shared byte {}: more arrivals than its count", offset));
  complete_phase(there);
}

void Block::wait_for_phase(Thread& thread, u32 offset, u32 parity, bool of_cluster, const Site& site) {
  if (skipped(site)) return;
  Mbarrier& there = mbarrier(thread, offset, site);
  while ((there.phase & 1) == parity) {
    there.waiting.push_back(&thread);
    block_thread(thread, "mbar_wait", site);
  }
  if (there.of_cluster && !of_cluster)
    fail(Fault::misuse, site, "mbar_wait, but other blocks of the cluster arrive: mbar_wait_cluster");
  join(thread.clock, there.released.data());
  join(thread.proxy_clock, there.proxy_released.data());
}

// The target is unknown from now on. The copy itself comes later, at a time of the scheduler's choice.
void Block::issue_bulk_copy(Thread& thread, BulkCopy copy) {
  const Mbarrier& there = mbarrier(thread, copy.mbarrier, copy.site);
  if (!there.fenced)
    fail(Fault::proxy, copy.site,
         fmt::format("mbarrier at shared byte {}: no fence makes its init visible to the copy", there.offset));
  shared.take_off(there.agent, thread.who, thread.clock, copy.target, copy.bytes, copy.site);
  copy.clock.assign(thread.clock, thread.clock + clock_size_);
  bulk_copies_.push_back(std::move(copy));
}

namespace {

// Elements outside of the matrix are zero. The swizzle looks at the bits of the address in shared memory.
void copy_box(const BulkCopy& copy, char* shared) {
  const TensorMap& map = *copy.map;
  const u32 row_bytes = map.box_inner * map.element_bytes;
  for (u32 row = 0; row < map.box_outer; ++row)
    for (u32 column = 0; column < map.box_inner; ++column) {
      u32 target = copy.target + row * row_bytes + column * map.element_bytes;
      if (map.swizzle == Swizzle::bytes128) target ^= target >> 3 & 0x70;
      const i64 x = i64{copy.x} + column, y = i64{copy.y} + row;
      if (x < 0 || y < 0 || static_cast<u64>(x) >= map.inner || static_cast<u64>(y) >= map.outer)
        std::memset(shared + target, 0, map.element_bytes);
      else
        std::memcpy(shared + target,
                    map.base + static_cast<u64>(y) * map.row_bytes + static_cast<u64>(x) * map.element_bytes,
                    map.element_bytes);
    }
}

}  // namespace

bool Block::land_bulk_copy() {
  if (bulk_copies_.empty()) return false;
  const auto chosen = bulk_copies_.begin() + static_cast<std::ptrdiff_t>(random() % bulk_copies_.size());
  const BulkCopy copy = std::move(*chosen);
  bulk_copies_.erase(chosen);
  if (copy.map != nullptr)
    copy_box(copy, shared.data());
  else
    std::memcpy(shared.data() + copy.target, copy.source, copy.bytes);
  for (Mbarrier& mbarrier : mbarriers_)
    if (mbarrier.offset == copy.mbarrier) {
      mbarrier.agent_step += 1;
      shared.land(mbarrier.agent, mbarrier.agent_step, copy.target, copy.bytes);
      join(mbarrier.arriving.data(), copy.clock.data());
      mbarrier.arriving[mbarrier.agent] = mbarrier.agent_step;
      mbarrier.bytes -= copy.bytes;
      complete_phase(mbarrier);
    }
  return true;
}

}  // namespace simulator
}  // namespace nibble::device
