#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble {

class Device;

/// What a conversion may use. None of it changes a byte of the result. max_memory is for the whole program, with the
/// allocator settings of the command line (few arenas, large blocks returned to the system); other settings may take
/// more.
struct Resources {
  unsigned threads = 0;                      ///< 0: default_threads()
  std::uint64_t max_memory = 1'000'000'000;  ///< bytes; the size and number of batches follow from it
  Device* device = nullptr;                  ///< for convert(): where codecs run; null: the CPU
};

/// The processors that this process may use: the quota of its cgroup, its affinity, at least 1.
[[nodiscard]] unsigned default_threads();

/// How a conversion uses its memory.
struct ConversionMemory {
  unsigned threads = 0;
  std::size_t tokens = 0;         ///< batches in flight
  std::size_t behind = 0;         ///< encoded batches being written to the disk; 0: a batch is in flight until written
  std::uint64_t chunk_bytes = 0;  ///< of the source, read at once; for transposed tensors so many times that:
  std::uint64_t transposed_chunk = 1;
  std::uint64_t batch_bytes = 0;    ///< largest encoded size of a batch, about; a batch has at least one chunk
  std::uint64_t scratch_bytes = 0;  ///< that encoders may keep in memory at a time; beyond that they use a file
  std::uint64_t spare_bytes = 0;    ///< the same again, so that memory need not be freed in between; 0: no room for it
  std::uint64_t total_bytes = 0;    ///< the sum of all this; a device's driver takes more
  std::uint64_t spilled_bytes = 0;  ///< the largest such file, beside the output until its tensor is finished
};

}  // namespace nibble
