#include "tests/simulator/shared_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace nibble::device::simulator {
namespace {

constexpr u32 alignment = 1024;  // of offset 0: what the 128-byte swizzle looks at

}  // namespace

SharedMemory::SharedMemory() : memory_(max_shared_bytes + 2 * alignment) {
  const auto first =
      (reinterpret_cast<std::uintptr_t>(memory_.data()) + alignment - 1) & ~std::uintptr_t{alignment - 1};
  data_ = reinterpret_cast<char*>(first);
}

void SharedMemory::start(u32 threads, u32 block_threads, bool detect_races) {
  threads_ = threads;
  block_threads_ = block_threads;
  detect_races_ = detect_races;
  used_ = 0;
}

u32 SharedMemory::allocate(u32 bytes, const Site& site) {
  const u32 begin = used_;
  if (bytes > max_shared_bytes - begin)
    fail(Fault::misuse, site, fmt::format("{} bytes of shared memory after {}, of {}", bytes, begin, max_shared_bytes));
  used_ = std::min((begin + bytes + 15) & ~15u, max_shared_bytes);
  std::memset(data_ + begin, 0xff, used_ - begin);
  if (detect_races_) {
    const std::size_t first = begin >> shift_, last = (used_ + granule() - 1) >> shift_;
    if (granules_.size() < last) granules_.resize(last);
    std::fill(granules_.begin() + static_cast<std::ptrdiff_t>(first),
              granules_.begin() + static_cast<std::ptrdiff_t>(last), written(nobody, 0));
  }
  return begin;
}

void SharedMemory::take_off(u32 who, u32 issuer, const Clock* clock, u32 offset, u32 bytes, const Site& site) {
  std::memset(data_ + offset, 0xff, bytes);
  if (!detect_races_) return;
  for (u32 i = offset >> shift_; i <= (offset + bytes - 1) >> shift_; ++i) {
    require_ordered(issuer, clock, i, site);
    granules_[i] = written(flying | who, 0);
  }
}

void SharedMemory::land(u32 who, Clock step, u32 offset, u32 bytes) {
  if (!detect_races_) return;
  for (u32 i = offset >> shift_; i <= (offset + bytes - 1) >> shift_; ++i) granules_[i] = written(who, step);
}

void SharedMemory::read_by_proxy(u32 agent, Clock step, const Clock* clock, const Clock* proxy_clock, u32 offset,
                                 u32 bytes, const Site& site) {
  for (u32 i = offset >> shift_; i <= (offset + bytes - 1) >> shift_; ++i) {
    const Writer writer = granules_[i].writer;
    if (writer.who >= flying || clock[writer.who] < writer.step) refuse_read(i << shift_, site);
    if (writer.who < threads_ && proxy_clock[writer.who] < writer.step)
      fail(Fault::proxy, site,
           fmt::format("shared byte {} was written by {}, with no fence_proxy_async since", i << shift_,
                       called(writer.who)));
    note(granules_[i], agent, step, nullptr);
  }
}

void SharedMemory::refine(u32 bytes) {
  const u32 finer = static_cast<u32>(std::countr_zero(bytes)), copies = 1u << (shift_ - finer);
  std::vector<Granule> split;
  split.reserve(granules_.size() * copies);
  for (const Granule& granule : granules_) split.insert(split.end(), copies, granule);
  granules_ = std::move(split);
  shift_ = finer;
}

std::string SharedMemory::called(u32 who) const {
  who &= ~u32{flying};
  if (who < threads_ && threads_ == block_threads_) return fmt::format("thread {}", who);
  if (who < threads_)
    return fmt::format("thread {} of block {} of the cluster", who % block_threads_, who / block_threads_);
  who = (who - threads_) % agents;
  if (who < mbarrier_agents) return fmt::format("bulk copies to mbarrier {}", who);
  return fmt::format("wgmma of warp {}", who - mbarrier_agents);
}

void SharedMemory::refuse_read(u32 offset, const Site& site) const {
  const Writer writer = granules_[offset >> shift_].writer;
  if (writer.who == nobody)
    fail(Fault::uninitialized, site, fmt::format("read of shared byte {}, never written", offset));
  if (writer.who >= flying)
    fail(Fault::in_flight, site,
         fmt::format("read of shared byte {} before {} has waited", offset, called(writer.who)));
  fail(Fault::race, site,
       fmt::format("read of shared byte {} is not ordered after the write by {}", offset, called(writer.who)));
}

void SharedMemory::refuse_write(u32 who, const Clock* clock, u32 i, const Site& site) const {
  const Granule& granule = granules_[i];
  const Writer writer = granule.writer;
  const u32 offset = i << shift_;
  if (writer.who != nobody && writer.who >= flying)
    fail(Fault::in_flight, site,
         fmt::format("write to shared byte {} before {} has waited", offset, called(writer.who)));
  if (writer.who != nobody && writer.who != who && clock[writer.who] < writer.step)
    fail(Fault::race, site,
         fmt::format("write to shared byte {} is not ordered after the write by {}", offset, called(writer.who)));
  for (const Writer& reader : granule.reader)
    if (reader.who != nobody && reader.who != who && clock[reader.who] < reader.step)
      fail(Fault::race, site,
           fmt::format("write to shared byte {} is not ordered after the read by {}", offset, called(reader.who)));
  fail(Fault::misuse, site, "an unordered write was ordered");  // unreachable
}

}  // namespace nibble::device::simulator
