#include "nibble/memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr std::uint64_t largest_chunk_bytes = 1 << 20;  // 256 KiB to 4 MiB measure alike
constexpr std::uint64_t smallest_chunk_bytes = 64 << 10;
constexpr std::uint64_t program_bytes = 24 << 20;  // code, libraries, headers of ordinary size

// What stays in memory from a tensor's first chunk to its last: a quantized tensor's parts beside the weights, and
// the fp32 values that they are made from, which together are at most an fp32 absmax per 32 weights twice over.
std::uint64_t kept_bytes(const PlannedTensor& tensor, std::uint32_t blocksize) {
  if (!tensor.quantized) return 0;
  const std::uint64_t absmax = tensor.info.elements() / blocksize + 1;
  const std::uint64_t rows = tensor.info.shape.empty() ? 1 : tensor.info.shape.front();
  return (4 + 4) * std::max(absmax, rows);
}

}  // namespace

MemoryPlan plan_memory(const Plan& plan, const Resources& resources) {
  MemoryPlan memory{.threads = resources.threads != 0 ? resources.threads : default_threads(),
                    .chunk_bytes = largest_chunk_bytes};
  memory.tokens = memory.threads + std::size_t{1};
  std::uint64_t kept = 0;
  std::uint64_t longest = 1;
  for (const PlannedTensor& tensor : plan.tensors) {
    kept = std::max(kept, kept_bytes(tensor, plan.recipe.options.blocksize));
    if (tensor.transposed) longest = transposed_chunk;
  }
  const auto total = [&] { return program_bytes + kept + 2 * memory.tokens * memory.chunk_bytes * longest; };
  while (total() > resources.max_memory && memory.chunk_bytes > smallest_chunk_bytes) memory.chunk_bytes /= 2;
  while (total() > resources.max_memory && memory.tokens > 1) --memory.tokens;
  memory.total_bytes = total();
  if (memory.total_bytes > resources.max_memory)
    throw Error(Errc::no_space, fmt::format("this conversion needs {:.1f} MB of memory, --max-memory allows {:.1f} MB",
                                            static_cast<double>(memory.total_bytes) / 1e6,
                                            static_cast<double>(resources.max_memory) / 1e6));
  return memory;
}

}  // namespace nibble
