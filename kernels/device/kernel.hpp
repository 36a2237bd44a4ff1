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

/// Whether the kernel exists as code for sm_90a alone, because it uses what came with sm_90: its needs_sm90a, or false.
template <class Kernel> constexpr bool needs_sm90a() {
  if constexpr (requires { Kernel::needs_sm90a; }) return Kernel::needs_sm90a;
  return false;
}

/// Threads of a block in code for targets that a kernel does not exist for. That code traps. A kernel has more threads,
/// so a launch of such code is refused.
inline constexpr u32 threads_without_body = 32;

/// The code of a kernel that a device has loaded, as the runtime describes it. All 0 if it has found none.
struct LoadedCode {
  u32 ptx = 0, machine = 0;  // compiled to PTX of this target, and to machine code of that one; sm_90a counts as 90
  u32 max_threads = 0;       // of a block, by the launch bounds
};

/// Whether dependency_wait waits in this code. Code for sm_80 has none: it also runs on newer devices, and there too it
/// must wait for the kernel before it to end.
constexpr bool waits_for_dependencies(const LoadedCode& code) { return code.ptx >= 90 && code.machine >= 90; }

/// Whether this code is that of a kernel, and no more than what other targets have instead.
template <class Kernel> constexpr bool is_code_of(const LoadedCode& code) {
  static_assert(!needs_sm90a<Kernel>() || Kernel::threads > threads_without_body);
  return code.max_threads >= Kernel::threads;
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

/// What a multiprocessor has for the blocks that it runs at a time.
struct MultiprocessorLimits {
  u32 threads, shared_bytes;
  u32 reserved_shared_bytes;  // that the system takes for each block
};

/// How many of a kernel's blocks a multiprocessor runs at a time: min_blocks, for which the compiler has left
/// registers, or fewer if it has no room for the threads or for the shared memory, which is a block's static and
/// dynamic.
template <class Kernel> constexpr u32 blocks_at_a_time(const MultiprocessorLimits& limits, u64 shared_bytes) {
  u64 blocks = min_blocks_of<Kernel>();
  if (const u64 by_threads = limits.threads / Kernel::threads; by_threads < blocks) blocks = by_threads;
  const u64 by_shared = limits.shared_bytes / (shared_bytes + limits.reserved_shared_bytes);
  if (by_shared < blocks) blocks = by_shared;
  return blocks > 0 ? static_cast<u32>(blocks) : 1;
}

/// The most dynamic shared memory that any launch of the kernel takes, if it says so.
template <class Kernel> constexpr std::size_t max_shared_bytes_of(std::size_t this_launch) {
  if constexpr (requires { Kernel::max_block_shared_bytes(); }) return Kernel::max_block_shared_bytes();
  return this_launch;
}

}  // namespace nibble::device
