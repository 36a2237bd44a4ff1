// What a kernel says about its launches, for both backends. All of it is known to the compiler, and all but `threads`
// may be left out.
#pragma once
#include <cstddef>
#include <type_traits>

#include "kernels/device/types.hpp"

namespace nibble::device {

/// Whether a launch may begin before the kernel before it on the stream has ended (programmatic dependent launch). Such
/// a kernel calls dependency_wait before it reads anything that another kernel has written, and before it writes.
enum class Overlap { no, yes };

/// Blocks per multiprocessor a kernel wants at least: its min_blocks, or 1.
template <class Kernel> constexpr u32 min_blocks_of() {
  if constexpr (requires { Kernel::min_blocks; }) return Kernel::min_blocks;
  return 1;
}

inline constexpr u32 max_cluster = 8;  // on every device that has clusters

/// Blocks that run at the same time and reach each other's shared memory, in a row along x: its cluster, or 1.
template <class Kernel> constexpr u32 cluster_of() {
  if constexpr (requires { Kernel::cluster; }) return Kernel::cluster;
  return 1;
}

/// What the arguments of a kernel, its members, may take: 4 KiB on every device.
inline constexpr std::size_t max_parameter_bytes = 4096;
/// The dynamic shared memory that a launch may have without asking for more.
inline constexpr std::size_t default_shared_bytes = std::size_t{48} << 10;

/// Registers of a thread, as the compiler is told by `threads` and `min_blocks`: of the 65,536 of a multiprocessor, in
/// eights, and 255 at most.
constexpr u32 max_registers(u32 threads, u32 min_blocks) {
  const u32 share = 65536 / (threads * min_blocks) / 8 * 8;
  return share < 255 ? share : 255;
}

/// The most dynamic shared memory that any launch of the kernel takes, if it says so.
template <class Kernel> constexpr std::size_t max_shared_bytes_of(std::size_t this_launch) {
  if constexpr (requires { Kernel::max_block_shared_bytes(); }) return Kernel::max_block_shared_bytes();
  return this_launch;
}

}  // namespace nibble::device
