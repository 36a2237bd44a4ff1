// A block's shared memory and its race detector.
//
// Each thread has a vector clock: for every other thread, up to which of its steps what it did is ordered before now.
// Each granule remembers its last writer and three readers. An access is a race unless the clock of its thread has
// reached the steps at which the others touched the granule. Only barriers, sync_warp and mbarriers join clocks:
// shuffles and mma order no memory.
#pragma once
#include <vector>

#include "kernels/device/types.hpp"
#include "tests/simulator/failure.hpp"

namespace nibble::device::simulator {

using Clock = u16;

/// The largest size a block can have on any device (sm_90), and what the simulator puts before it.
inline constexpr u32 max_shared_bytes = (227u << 10) + 1008;

/// Readers and writers are threads, or agents: each mbarrier stands for the copies that report to it, each warpgroup
/// for its wgmma. Agents come after the threads of all blocks of the cluster.
inline constexpr u32 mbarrier_agents = 32, wgmma_agents = 32, agents = mbarrier_agents + wgmma_agents;

class SharedMemory {
 public:
  SharedMemory();

  /// Empty, for a block of `block_threads` threads in a cluster of `threads`. The detector's granules stay as small as
  /// an earlier block needed.
  void start(u32 threads, u32 block_threads, bool detect_races);

  /// Room for `bytes`, whose content is unknown; its offset, a multiple of 16.
  u32 allocate(u32 bytes, const Site& site);

  [[nodiscard]] char* data() { return data_; }
  [[nodiscard]] u32 used() const { return used_; }

  /// A thread or agent whose clock is `clock` and whose own step is `clock[who]` accesses bytes that exist.
  void read(u32 who, const Clock* clock, u32 offset, u32 bytes, const Site& site) {
    if (!detect_races_) return;
    if (bytes < granule()) refine(bytes);
    for (u32 i = offset >> shift_; i <= (offset + bytes - 1) >> shift_; ++i) read_granule(who, clock, i, site);
  }
  void write(u32 who, const Clock* clock, u32 offset, u32 bytes, const Site& site) {
    if (!detect_races_) return;
    if (bytes < granule()) refine(bytes);
    for (u32 i = offset >> shift_; i <= (offset + bytes - 1) >> shift_; ++i) {
      require_ordered(who, clock, i, site);
      granules_[i] = written(who, clock[who]);
    }
  }

  /// An asynchronous copy by `who` is going to write here: its bytes are NaN until it lands.
  void take_off(u32 who, u32 issuer, const Clock* clock, u32 offset, u32 bytes, const Site& site);
  /// It has landed, as a write of `who` at `step`.
  void land(u32 who, Clock step, u32 offset, u32 bytes);

  /// A read of bytes that exist by the asynchronous proxy, which is over at `step` of the agent. It sees the writes of
  /// threads up to `proxy_clock` only.
  void read_by_proxy(u32 agent, Clock step, const Clock* clock, const Clock* proxy_clock, u32 offset, u32 bytes,
                     const Site& site);

  /// The last writer of the byte and its step; nobody if there is none.
  static constexpr u16 nobody = 0xffff, flying = 0x8000;
  struct Writer {
    u16 who;
    Clock step;
  };
  [[nodiscard]] Writer writer(u32 offset) const { return granules_[offset >> shift_].writer; }

  /// Reports the read of the byte at `offset`, which read() would refuse.
  [[noreturn]] void refuse_read(u32 offset, const Site& site) const;

 private:
  struct Granule {
    Writer writer;
    Writer reader[3];
  };
  static Granule written(u32 who, Clock step) {
    return {{static_cast<u16>(who), step}, {{nobody, 0}, {nobody, 0}, {nobody, 0}}};
  }
  [[nodiscard]] u32 granule() const { return 1u << shift_; }

  void read_granule(u32 who, const Clock* clock, u32 i, const Site& site) {
    Granule& granule = granules_[i];
    const Writer writer = granule.writer;
    if (writer.who != who && (writer.who >= flying || clock[writer.who] < writer.step)) [[unlikely]]
      refuse_read(i << shift_, site);
    note(granule, who, clock[who], clock);
  }

  // Remembers a reader, at best instead of one that is ordered before it; else a random one is forgotten, and other
  // seeds forget others.
  void note(Granule& granule, u32 who, Clock step, const Clock* clock) {
    u32 slot = 3;
    for (u32 j = 0; j < 3; ++j) {
      Writer& reader = granule.reader[j];
      if (reader.who == who) {
        reader.step = step;
        return;
      }
      if (slot == 3 && (reader.who == nobody || (clock != nullptr && clock[reader.who] >= reader.step))) slot = j;
    }
    if (slot == 3) slot = (random_ = random_ * 1664525u + 1013904223u) >> 16 & 1;
    granule.reader[slot] = {static_cast<u16>(who), step};
  }

  void require_ordered(u32 who, const Clock* clock, u32 i, const Site& site) {
    const Granule& granule = granules_[i];
    const Writer writer = granule.writer;
    bool ordered =
        writer.who == nobody || (writer.who < flying && (writer.who == who || clock[writer.who] >= writer.step));
    for (const Writer& reader : granule.reader)
      ordered &= reader.who == nobody || reader.who == who || clock[reader.who] >= reader.step;
    if (!ordered) [[unlikely]]
      refuse_write(who, clock, i, site);
  }

  [[noreturn]] void refuse_write(u32 who, const Clock* clock, u32 i, const Site& site) const;
  [[nodiscard]] std::string called(u32 who) const;

  // Smaller granules from now on: an access touches part of one.
  void refine(u32 bytes);

  std::vector<char> memory_;
  char* data_;
  u32 used_ = 0, threads_ = 0, block_threads_ = 0, shift_ = 2, random_ = 1;
  bool detect_races_ = true;
  std::vector<Granule> granules_;
};

}  // namespace nibble::device::simulator
