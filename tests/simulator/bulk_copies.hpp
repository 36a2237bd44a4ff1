// mbarriers, and the copies that report to them: cp.async.bulk and TMA.
#pragma once
#include <vector>

#include "tests/simulator/shared_memory.hpp"

namespace nibble::device {
namespace simulator {
class Region;
struct Thread;
}  // namespace simulator

/// A matrix in global memory as TMA sees it: what cuTensorMapEncodeTiled would be given.
struct TensorMap {
  simulator::Region* region;
  const char* base;
  u32 element_bytes;
  u64 inner, outer, row_bytes;
  u32 box_inner, box_outer;
  Swizzle swizzle;

  [[nodiscard]] u32 box_bytes() const { return element_bytes * box_inner * box_outer; }
};

/// A matrix of `outer` rows of `inner` elements, which TMA copies in boxes of box_outer x box_inner. Throws LaunchError
/// for what cuTensorMapEncodeTiled refuses.
TensorMap make_tensor_map(const void* base, u32 element_bytes, u64 inner, u64 outer, u64 row_bytes, u32 box_inner,
                          u32 box_outer, Swizzle swizzle);

namespace simulator {

/// Fails unless a kernel may read the part of a box that is in the matrix, as bulk copies of its rows.
void check_box(const TensorMap& map, i32 x, i32 y, const Site& site);

/// Counts arrivals and bytes. Arriving releases what the thread did before, waiting acquires it.
struct Mbarrier {
  u32 offset = 0, count = 0, agent = 0, initializer = 0;
  i32 pending = 0;
  i64 bytes = 0;  // expected and not yet there; negative when they come early
  u32 phase = 0;
  bool fenced = false;
  bool of_cluster = false;  // other blocks have arrived
  Clock agent_step = 0;
  std::vector<Clock> arriving, released, proxy_arriving, proxy_released;
  std::vector<Thread*> waiting;
};

struct BulkCopy {
  u32 target;
  u32 bytes;
  u32 mbarrier;  // its offset
  const char* source;
  const TensorMap* map;  // null for a copy of consecutive bytes
  i32 x, y;
  std::vector<Clock> clock;  // of the thread that issued it
  Site site;
};

}  // namespace simulator
}  // namespace nibble::device
