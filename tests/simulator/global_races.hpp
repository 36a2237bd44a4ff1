// Races on global memory that a kernel both reads and writes.
//
// Within a block the clocks of the threads order accesses, as for shared memory. Blocks are ordered by one protocol
// alone: a thread writes, calls threadfence and then an atomic operation; a thread of another block does an atomic
// operation on the same address later, then calls threadfence and reads. Whatever was ordered before the first fence
// is then ordered before the second. "The last block adds up" is this. Waiting for another block is not simulated.
#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/simulator/shared_memory.hpp"

namespace nibble::device::simulator {

struct Thread;

enum class Use { read, write, atomic };

/// What threads had done before their fences when they came to one atomic variable.
class Releases {
 public:
  void add(u32 block, const std::vector<Clock>& clock);
  [[nodiscard]] u32 size() const { return size_; }
  /// Whether one of the first `count` covers the step of a thread of that block.
  [[nodiscard]] bool cover(u32 count, u32 block, u32 thread, Clock step) const;

 private:
  struct Release {
    u32 number;
    std::vector<Clock> clock;
  };
  std::unordered_map<u32, std::vector<Release>> by_block_;
  u32 size_ = 0;
};

/// A thread saw the first `count` releases at its `step`.
struct Acquire {
  const Releases* releases;
  u32 count;
  u32 thread;
  Clock step;
};

/// Of one launch. Blocks have numbers that no other block ever has.
struct BlockOrder {
  explicit BlockOrder(u32 blocks);
  const u32 first_block;
  std::recursive_mutex mutex;  // for several workers
  std::unordered_map<std::uintptr_t, Releases> releases;
};

/// The last writer and two readers of each granule of an allocation, in the manner of SharedMemory.
class GlobalShadow {
 public:
  /// Throws Failure if the access by the current thread is a race.
  void touch(std::uintptr_t base, std::size_t offset, std::size_t bytes, std::size_t region_bytes, Use use,
             const std::string& name, const Site& site);
  void clear() { granules_.clear(); }

 private:
  struct Touch {
    u32 block = 0;  // 0: nobody
    u16 thread = 0;
    Clock step = 0;
  };
  struct Granule {
    Touch writer;
    Touch reader[2];
    bool atomic = false;  // the write
  };
  static bool ordered(const Touch& before, const Thread& thread);
  void refine(u32 shift);

  std::vector<Granule> granules_;
  u32 shift_ = 2, random_ = 1;
};

}  // namespace nibble::device::simulator
