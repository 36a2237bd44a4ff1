#include "nibble/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "nibble/checkpoint.hpp"
#include "nibble/error.hpp"
#include "quant/codecs.hpp"

namespace nibble {
namespace {

constexpr std::uint64_t largest_chunk_bytes = 1 << 20;  // 256 KiB to 4 MiB measure alike
constexpr std::uint64_t smallest_chunk_bytes = 64 << 10;
constexpr std::size_t tokens_in_line = 4;  // while a tensor is finished; with 1, a conversion took 1.1 times as long
constexpr std::uint64_t smallest_behind = 256 << 10;  // of what is shorter, little would go past the page cache

// Measured as peak RSS on x86-64, and a third more than that for machines with other libraries.
constexpr std::uint64_t program_bytes = 14 << 20;     // code, libraries, a header of ordinary size: 7 to 10 MiB
constexpr std::uint64_t bytes_per_thread = 64 << 10;  // stack and the allocator's caches: 30 KiB with 64 threads

// From reading its header to writing the last file, a tensor takes this, and its name and shape several times: the
// text of the header, the reader's and the plan's copy, and while one of them grows, its old place. The six parts of
// NF4 in the output are half of it. 100,000 of them were measured to take 330 bytes each, all included.
constexpr std::uint64_t bytes_per_tensor = 128;
constexpr std::uint64_t bytes_per_report = 512;  // what measure() found, by name, until the tensor is in the manifest
constexpr std::uint64_t copies = 4;

// A chunk and what becomes of it, an eighth for the absmax of a small tensor that is whole in it, as much for what an
// encoder needs meanwhile, and a sixteenth for the sums of its hash.
constexpr std::uint64_t small_scratch = 8;  // chunk_bytes divided by
constexpr std::uint64_t hash_share = 16;
constexpr std::uint64_t bytes_per_token = 8192;  // two buffers start somewhere in a page

// Beside its device memory, a lane has room for the absmax of a chunk: of blocks of 32 16-bit weights, or of rows.
constexpr std::uint64_t absmax_share = 16;  // chunk_bytes divided by
constexpr std::uint64_t row_absmax_bytes = 16 << 10;

constexpr std::uint64_t bytes_per_scanned_row = 8;  // Codec::scratch_bytes() tells of them

// Encoder::finish() takes the absmax in pieces, and makes codes of it.
constexpr std::uint64_t finish_piece = 1 << 20;

}  // namespace

MemoryPlan plan_memory(const Plan& plan, const Resources& resources) {
  MemoryPlan memory{.threads = resources.threads != 0 ? resources.threads : default_threads(),
                    .behind = Writer::most_behind,
                    .chunk_bytes = largest_chunk_bytes};
  memory.tokens = memory.threads + tokens_in_line;
  std::uint64_t largest_scratch = 0;
  std::uint64_t texts = 0;
  std::uint64_t scanned = 0;
  Codecs codecs(plan.recipe.options);
  double growth = 1;  // of a chunk that is widened
  std::uint64_t longest = 1;
  for (const PlannedTensor& tensor : plan.tensors) {
    const Codec& codec = codecs[tensor.codec];
    largest_scratch = std::max(largest_scratch, codec.scratch_bytes(tensor.info));
    if (const std::uint64_t bytes = tensor.info.bytes(); bytes > 0)
      growth =
          std::max(growth, static_cast<double>(codec.parts(tensor.info).front().bytes()) / static_cast<double>(bytes));
    if (const std::uint64_t limit = smallest_chunk_bytes * 8 / traits(tensor.info.dtype).bits;
        codec.chunking(tensor.info, limit).scan)
      scanned = std::max(scanned, bytes_per_scanned_row * tensor.info.shape.at(0));
    texts += tensor.info.name.size() + tensor.info.shape.size() * sizeof(std::uint64_t);
    if (tensor.transposed) longest = transposed_chunk;
  }
  const std::uint64_t finish = std::min(largest_scratch, finish_piece) * 5 / 4;
  // The chunk, what becomes of it, and the rest of its sixteenths; what became of earlier ones is on its way.
  const auto token_bytes = [&] {
    const auto chunk = static_cast<double>(memory.chunk_bytes * longest);
    return static_cast<std::uint64_t>(chunk * (1 + growth * (1 + 1.0 / hash_share) + 2.0 / small_scratch)) +
           bytes_per_token;
  };
  const auto device_bytes = [&] {
    if (resources.device == nullptr) return std::uint64_t{0};
    return memory.threads *
           (std::max(memory.chunk_bytes * longest / absmax_share, row_absmax_bytes) + bytes_per_token / 2);
  };
  const auto behind_bytes = [&] {
    return static_cast<std::uint64_t>(static_cast<double>(memory.chunk_bytes * longest) * growth) + bytes_per_token / 2;
  };
  const auto fixed = [&] {
    const std::uint64_t report = plan.recipe.error_report == ErrorReport::full ? bytes_per_report : 0;
    return program_bytes + (bytes_per_tensor + report) * plan.tensors.size() + copies * texts +
           (memory.threads + memory.behind) * bytes_per_thread + memory.tokens * token_bytes() +
           memory.behind * behind_bytes() + device_bytes() + scanned + finish;
  };
  while (fixed() > resources.max_memory && memory.chunk_bytes > smallest_behind) memory.chunk_bytes /= 2;
  if (fixed() > resources.max_memory) memory.behind = 0;
  while (fixed() > resources.max_memory && memory.chunk_bytes > smallest_chunk_bytes) memory.chunk_bytes /= 2;
  while (fixed() > resources.max_memory && memory.tokens > 1) --memory.tokens;
  if (fixed() > resources.max_memory)
    throw Error(Errc::no_space,
                fmt::format("this conversion needs {:.1f} MB of memory, --max-memory allows {:.1f} MB",
                            static_cast<double>(fixed()) / 1e6, static_cast<double>(resources.max_memory) / 1e6));
  const std::uint64_t kept = std::min(largest_scratch, resources.max_memory - fixed());
  memory.scratch_bytes = std::max(kept, memory.chunk_bytes / small_scratch);
  memory.total_bytes = fixed() + kept;
  if (largest_scratch > memory.scratch_bytes) memory.spilled_bytes = largest_scratch;
  return memory;
}

}  // namespace nibble
