#include "tests/simulator/global_races.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>

#include "tests/simulator/simulator.hpp"

namespace nibble::device::simulator {
namespace {

std::atomic<u32> next_block{1};

}  // namespace

BlockOrder::BlockOrder(u32 blocks) : first_block(next_block.fetch_add(blocks)) {}

void Releases::add(u32 block, const std::vector<Clock>& clock) { by_block_[block].push_back({size_++, clock}); }

bool Releases::cover(u32 count, u32 block, u32 thread, Clock step) const {
  const auto found = by_block_.find(block);
  if (found == by_block_.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(),
                     [&](const Release& release) { return release.number < count && release.clock[thread] >= step; });
}

void Block::atomic_operation(Thread& thread, std::uintptr_t address) {
  if (!options_.detect_races) return;
  auto& all = launch_.order->releases;
  const auto found = all.find(address);
  if (found != all.end() && found->second.size() > 0)
    thread.seen.push_back({&found->second, found->second.size(), thread.who, 0});
  if (!thread.fenced_clock.empty()) all[address].add(number, thread.fenced_clock);
}

void Block::fence(Thread& thread, const Site& site) {
  if (skipped(site) || !options_.detect_races) return;
  for (Acquire& acquire : thread.seen) {
    acquire.step = thread.clock[thread.who];
    acquires_.push_back(acquire);
  }
  thread.seen.clear();
  thread.fenced_clock.assign(thread.clock + first_who(), thread.clock + first_who() + threads);
  step(thread, site);  // what the thread writes from now on is not covered
}

bool Block::acquired(const Thread& thread, u32 from_block, u32 from_thread, Clock from_step) const {
  return std::any_of(acquires_.rbegin(), acquires_.rend(), [&](const Acquire& acquire) {
    return thread.clock[acquire.thread] >= acquire.step &&
           acquire.releases->cover(acquire.count, from_block, from_thread, from_step);
  });
}

bool GlobalShadow::ordered(const Touch& before, const Thread& thread) {
  const Block& block = *thread.block;
  if (before.block < block.first_block) return true;  // an earlier launch, or nobody
  // Blocks of a cluster have numbers in a row and clocks in common.
  if (const u32 rank = before.block - (block.number - block.rank()); rank < block.cluster_size()) {
    const u32 who = rank * block.threads + before.thread;
    if (who == thread.who || thread.clock[who] >= before.step) return true;
  }
  return block.acquired(thread, before.block, before.thread, before.step);
}

void GlobalShadow::refine(u32 shift) {
  std::vector<Granule> split;
  split.reserve(granules_.size() << (shift_ - shift));
  for (const Granule& granule : granules_) split.insert(split.end(), std::size_t{1} << (shift_ - shift), granule);
  granules_ = std::move(split);
  shift_ = shift;
}

void GlobalShadow::touch(std::uintptr_t base, std::size_t offset, std::size_t bytes, std::size_t region_bytes, Use use,
                         const std::string& name, const Site& site) {
  const Thread& thread = *current;
  if (!thread.block->options().detect_races) return;
  if (bytes < std::size_t{1} << shift_) refine(static_cast<u32>(std::countr_zero(bytes)));
  const std::size_t skew = base & 15;  // granules are aligned, the array need not be
  if (granules_.empty()) granules_.resize(((skew + region_bytes) >> shift_) + 1);
  const Touch now{thread.block->number, static_cast<u16>(thread.index), thread.clock[thread.who]};
  const auto refuse = [&](const char* verb, const char* other_verb, const Touch& other) {
    fail(Fault::race, site,
         fmt::format("{} byte {} of '{}' is not ordered after the {} by thread {} of {}", verb, offset, name,
                     other_verb, other.thread,
                     other.block == now.block ? "this block"
                                              : fmt::format("block {}", other.block - thread.block->first_block)));
  };
  const char* verb = use == Use::read ? "read of" : use == Use::write ? "write to" : "atomic operation on";
  for (std::size_t i = (skew + offset) >> shift_; i <= (skew + offset + bytes - 1) >> shift_; ++i) {
    Granule& granule = granules_[i];
    if (!ordered(granule.writer, thread) && !(use == Use::atomic && granule.atomic))
      refuse(verb, granule.atomic ? "atomic operation" : "write", granule.writer);
    if (use != Use::read) {
      for (const Touch& reader : granule.reader)
        if (!ordered(reader, thread)) refuse(verb, "read", reader);
      granule = {now, {}, use == Use::atomic};
      continue;
    }
    Touch* slot = nullptr;
    for (Touch& reader : granule.reader)
      if (slot == nullptr && ordered(reader, thread)) slot = &reader;
    if (slot == nullptr) slot = &granule.reader[(random_ = random_ * 1664525u + 1013904223u) >> 16 & 1];
    *slot = now;
  }
}

}  // namespace nibble::device::simulator
