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

/// The most dynamic shared memory that any launch of the kernel takes, if it says so.
template <class Kernel> constexpr std::size_t max_shared_bytes_of(std::size_t this_launch) {
  if constexpr (requires { Kernel::max_block_shared_bytes(); }) return Kernel::max_block_shared_bytes();
  return this_launch;
}

}  // namespace nibble::device
