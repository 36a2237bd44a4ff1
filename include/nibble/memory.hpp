#pragma once

#include <cstddef>
#include <cstdint>

#include "nibble/recipe.hpp"

namespace nibble {

class Device;

/// What a conversion may use. None of it changes a byte of the result. max_memory is about the whole program with the
/// allocator that the command line sets up (few arenas, large blocks given back): others may take some more.
struct Resources {
  unsigned threads = 0;                      ///< 0: default_threads()
  std::uint64_t max_memory = 1'000'000'000;  ///< bytes; batches and their number are planned within it
  Device* device = nullptr;                  ///< for convert(): where codecs run; null: the CPU
};

/// The processors that this process may use: the quota of its cgroup, its affinity, at least 1.
[[nodiscard]] unsigned default_threads();

/// How a conversion uses its memory.
struct MemoryPlan {
  unsigned threads = 0;
  std::size_t tokens = 0;         ///< batches in flight
  std::size_t behind = 0;         ///< encoded batches that wait for the disk; 0: a batch in flight waits itself
  std::uint64_t chunk_bytes = 0;  ///< of the source, read at once; transposed tensors take transposed_chunk times that
  std::uint64_t batch_bytes = 0;  ///< what becomes of a batch, about: as many chunks as make no more, but one at least
  std::uint64_t scratch_bytes = 0;  ///< what encoders may keep in memory at a time; beyond it they use a file
  std::uint64_t spare_bytes = 0;    ///< as much once more, so that memory need not be given back; 0: no room for it
  std::uint64_t total_bytes = 0;    ///< what it all comes to; a device's driver takes some of its own
  std::uint64_t spilled_bytes = 0;  ///< the largest such file, beside the output until its tensor is finished
};

/// A transposed tensor is gathered from all of its rows on disk: longer chunks take longer stretches of each.
inline constexpr std::uint64_t transposed_chunk = 8;

/// Batches and their number such that
///
///   program + names + threads x (chunk + queue) + (tokens + behind) x encoded batch + scratch <= max_memory
///
/// where scratch is twice the largest Codec::scratch_bytes() if there is room for it, or once, and otherwise what is
/// left: a tensor that needs more keeps it in a file. Throws Error(no_space) that says how much it takes if even the
/// smallest batches do not fit.
[[nodiscard]] MemoryPlan plan_memory(const Plan& plan, const Resources& resources);

}  // namespace nibble
