#include "nibble/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr std::uint64_t largest_chunk_bytes = 1 << 20;  // 256 KiB to 4 MiB measure alike
constexpr std::uint64_t smallest_chunk_bytes = 64 << 10;
constexpr std::uint64_t program_bytes = 24 << 20;  // code, libraries, headers of ordinary size

// What names, shapes and the report of a tensor take, from reading its header to writing the manifest: measured with
// 100,000 small NF4 tensors, which have six parts each.
constexpr std::uint64_t bytes_per_tensor = 8 << 10;

}  // namespace

MemoryPlan plan_memory(const Plan& plan, const Resources& resources) {
  MemoryPlan memory{.threads = resources.threads != 0 ? resources.threads : default_threads(),
                    .chunk_bytes = largest_chunk_bytes};
  memory.tokens = memory.threads + std::size_t{1};
  std::uint64_t kept = 0;
  std::map<std::string, std::unique_ptr<const Codec>, std::less<>> codecs;
  std::uint64_t longest = 1;
  for (const PlannedTensor& tensor : plan.tensors) {
    auto& codec = codecs[tensor.codec];
    if (!codec) codec = make_codec(tensor.codec, plan.recipe.options);
    kept = std::max(kept, codec->encoder_bytes(tensor.info));
    if (tensor.transposed) longest = transposed_chunk;
  }
  const auto total = [&] {
    return program_bytes + bytes_per_tensor * plan.tensors.size() + kept +
           2 * memory.tokens * memory.chunk_bytes * longest;
  };
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
