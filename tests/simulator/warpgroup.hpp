// wgmma: the multiplications that a warp has issued, and the accumulators that they own meanwhile.
#pragma once
#include <deque>
#include <vector>

#include "tests/simulator/shared_memory.hpp"

namespace nibble::device::simulator {

struct WarpgroupMultiply {
  float* d;
  u32 n;                   // columns; a thread holds n / 2 accumulators
  u64 a, b;                // descriptors
  const u32* a_registers;  // or null
  Major major_a, major_b;
  bool is_f16;  // else bf16
  bool adds;    // to the accumulators, or replaces them
  Site site;
  u32 a_values[4] = {};  // of the registers when it was issued
};

/// Registers of A as a wgmma_fence saw them.
struct FencedRegisters {
  const u32* begin;
  std::vector<u32> value;
};

/// An array of accumulators. The multiplications own it from the first of them to their wait: until then the registers
/// are NaN, so that an early read spoils the result, and an early write is seen.
struct Accumulators {
  float* d = nullptr;
  std::vector<float> value;
  u32 in_flight = 0;
  bool fenced = false;
};

struct Warpgroup {
  std::vector<WarpgroupMultiply> open;  // since the last commit
  std::deque<std::vector<WarpgroupMultiply>> groups;
  std::vector<Accumulators> accumulators;
  std::vector<FencedRegisters> fenced_registers;
};

}  // namespace nibble::device::simulator
