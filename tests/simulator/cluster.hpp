// A cluster: blocks that run at the same time and reach each other's shared memory. A block alone is a cluster of one.
//
// The threads of all its blocks have entries in one clock. Blocks advance by turns, each until none of its threads can
// go on.
#pragma once
#include <memory>
#include <vector>

#include "tests/simulator/shared_memory.hpp"

namespace nibble::device::simulator {

class Block;
struct Launch;
struct Options;
struct Thread;

struct Cluster {
  std::vector<std::unique_ptr<Block>>
      blocks;  // used again for the next cluster; those at the end may have no part in this one

  // Its barrier.
  u32 arrived = 0, phase = 0;
  std::vector<Clock> clock, proxy_clock;
  std::vector<Thread*> waiting;

  /// Runs the blocks from number `first` of the grid on. Throws Failure.
  void run(const Launch& launch, u64 first, const Options& options);
};

}  // namespace nibble::device::simulator
