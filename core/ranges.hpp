#pragma once

#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <cstdint>

namespace nibble {

/// Calls f(first, n) for ranges of at most `size` out of `all` items, on all threads of the caller's oneTBB arena.
/// Isolated: a waiting thread does not start other tasks of the caller, such as a batch of a pipeline.
template <class F> void for_each_range(std::uint64_t all, std::uint64_t size, F&& f) {
  const std::uint64_t ranges = all / size + (all % size != 0 ? 1 : 0);
  const auto call = [&](std::uint64_t range) { f(range * size, std::min(size, all - range * size)); };
  tbb::this_task_arena::isolate([&] { tbb::parallel_for(std::uint64_t{0}, ranges, call); });
}

}  // namespace nibble
