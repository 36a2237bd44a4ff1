// What a GPU's memory can do at most, by the plainest kernels, and the one step of bitsandbytes' that torch does.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>

namespace nibble::bench {

/// The bytes are multiples of 32 KiB, the pointers of 16 bytes.
void copy_bytes(const void* in, void* out, std::size_t bytes, cudaStream_t stream);

/// Reads all of it, and writes a word to `out` only in the case that chance does not bring about.
void read_bytes(const void* in, void* out, std::size_t bytes, cudaStream_t stream);

/// A kernel that does nothing, in so many blocks of 256 threads: what a launch costs.
void launch_empty(unsigned blocks, cudaStream_t stream);

/// values[i] += *offset.
void add_offset(float* values, const float* offset, std::size_t n, cudaStream_t stream);

}  // namespace nibble::bench
