// The device layer: kernels are written once and run on a GPU or, in the tests, thread by thread in a simulator.
//
// A kernel is a struct. Its members are its arguments, `threads` is the size of its blocks, and operator() is the code
// of one thread. It accesses memory through Global<T> and Shared<T>, and uses an instruction through the function of
// that name. Behind each is the backend that the include path of a target chooses: CUDA's (kernels/device/cuda), with
// one intrinsic or one line of PTX, or that of a simulator, which the tests bring along and which checks bounds,
// alignment, races, divergence and deadlocks. docs/device-layer.md says what it can and cannot find.
#pragma once
#include <cstddef>

#include "backend/device.hpp"
#include "kernels/device/types.hpp"

namespace nibble::device {

/// The blocks of a kernel that the current device runs at a time, each with so much dynamic shared memory.
template <class Kernel> u64 resident_blocks(std::size_t dynamic_shared_bytes) {
  const u64 shared_bytes = u64{static_shared_bytes<Kernel>()} + dynamic_shared_bytes;
  return u64{multiprocessors()} * blocks_at_a_time<Kernel>(multiprocessor_limits(), shared_bytes);
}

/// For kernels that loop over `blocks` blocks' work: as many blocks as the device runs at a time, or all.
template <class Kernel> Grid resident_grid(u64 blocks, std::size_t dynamic_shared_bytes = 0) {
  const u64 resident = resident_blocks<Kernel>(dynamic_shared_bytes);
  return {static_cast<u32>(blocks < resident ? blocks : resident)};
}

/// The launch's dynamic shared memory from the first multiple of `alignment`, a power of two above 16. A kernel which
/// uses it asks for `alignment` bytes more at the launch. (An alignment in the declaration would instead raise the
/// static shared memory of every kernel in the source file.)
NIBBLE_DEVICE Shared<u8> dynamic_shared_aligned(u32 alignment) {
  const Shared<u8> base = dynamic_shared();
  return base + i32((alignment - base.address() % alignment) % alignment);
}

/// The address of byte `offset` of a tile of 128-byte rows under the 128-byte swizzle; the tile is aligned to 1024.
NIBBLE_DEVICE u32 swizzle128(u32 offset) { return offset ^ ((offset >> 3) & 0x70); }

/// wgmma's descriptor of a tile in shared memory: PTX ISA, "Matrix Descriptor Format".
NIBBLE_DEVICE u64 tile_descriptor(u32 address, u32 leading_bytes, u32 stride_bytes, Swizzle swizzle) {
  return u64((address >> 4) & 0x3fff) | u64((leading_bytes >> 4) & 0x3fff) << 16 |
         u64((stride_bytes >> 4) & 0x3fff) << 32 | u64(u32(swizzle)) << 62;
}

}  // namespace nibble::device
