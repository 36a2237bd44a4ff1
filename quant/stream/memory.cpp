#include "nibble/memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "core/xxh3.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/error.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/memory_model.hpp"

namespace nibble {
namespace {

constexpr std::uint64_t max_chunk_bytes = 1 << 20;
constexpr std::uint64_t min_chunk_bytes = 64 << 10;
constexpr std::uint64_t max_batch_bytes = 1 << 20;
constexpr std::size_t tokens_in_line = 4;  // while a tensor is finished; with 1, a conversion took 1.1 times as long
constexpr std::uint64_t min_behind_bytes = 256 << 10;  // of shorter chunks, little would go past the page cache

constexpr std::uint64_t bytes_per_thread = 64 << 10;  // stack and the allocator's caches: 30 KiB with 64 threads

// From reading its header to writing the last file, a tensor takes this, and its name and shape several times: the
// text of the header, the reader's and the plan's copy, and while one of them grows, its old copy. The six parts of
// NF4 in the output are half of it. 100,000 of them were measured to take 330 bytes each, all included.
constexpr std::uint64_t bytes_per_tensor = 128;
constexpr std::uint64_t bytes_per_report = 512;  // what measure() found, by name, until the tensor is in the manifest
constexpr std::uint64_t copies = 4;

// Each hash chunk of the largest part has a hash of 16 bytes, and 35 bytes of text in nibble.json. A vector or a string
// that grows takes three times that: the old buffer, and a new one of twice the size.
constexpr std::uint64_t bytes_per_hash = 3 * (16 + 35);

constexpr std::uint64_t encoder_share = 8;        // of a chunk, which an encoder needs meanwhile
constexpr std::uint64_t bytes_per_buffer = 4096;  // which starts somewhere in a page

// Beside its device memory, a queue has room for the absmax of a chunk: of blocks of 32 16-bit weights, or of rows.
constexpr std::uint64_t absmax_share = 16;
constexpr std::uint64_t row_absmax_bytes = 16 << 10;

}  // namespace

MemoryPlan plan_memory(const Plan& plan, const Resources& resources) {
  MemoryPlan memory{.threads = resources.threads != 0 ? resources.threads : default_threads(),
                    .behind = Writer::max_behind,
                    .chunk_bytes = max_chunk_bytes,
                    .batch_bytes = max_batch_bytes};
  memory.tokens = memory.threads + tokens_in_line;
  std::uint64_t largest_scratch = 0;
  std::uint64_t largest_codes = 0;
  std::uint64_t texts = 0;
  std::uint64_t scanned = 0;
  Codings codings(plan.recipe);
  double growth = 1;      // of a chunk that is widened
  double kept_share = 0;  // of what becomes of a tensor, in scratch
  std::uint64_t longest = 1;
  std::uint64_t shortest_row = UINT64_MAX;  // of those that are transposed
  for (const PlannedTensor& tensor : plan.tensors) {
    const auto& [codec, quantizer] = codings[tensor.codec];
    const std::uint64_t scratch = quantizer->scratch_bytes(tensor.info);
    const std::uint64_t stored = codec->code_bytes(tensor.info, tensor.info.elements());
    largest_scratch = std::max(largest_scratch, scratch);
    largest_codes = std::max(largest_codes, stored);
    if (stored > 0) kept_share = std::max(kept_share, static_cast<double>(scratch) / static_cast<double>(stored));
    if (const std::uint64_t bytes = tensor.info.bytes(); bytes > 0)
      growth = std::max(growth, static_cast<double>(stored) / static_cast<double>(bytes));
    if (const std::uint64_t limit = min_chunk_bytes * 8 / traits(tensor.info.dtype).bits;
        quantizer->chunking(tensor.info, limit).scan)
      scanned = std::max(scanned, bytes_per_scanned_row * tensor.info.shape.at(0));
    texts += tensor.info.name.size() + tensor.info.shape.size() * sizeof(std::uint64_t);
    if (tensor.transposed) {
      longest = transposed_chunk;
      shortest_row = std::clamp<std::uint64_t>(tensor.info.shape[1], 1, shortest_row);
    }
  }
  const std::uint64_t finish = finish_bytes(largest_scratch) + largest_codes / Xxh3Chunks::chunk_bytes * bytes_per_hash;
  const auto queue = [&] {
    if (resources.device == nullptr) return std::uint64_t{0};
    return std::max(memory.chunk_bytes * longest / absmax_share, row_absmax_bytes) + bytes_per_buffer;
  };
  const auto encoded = [&] {
    const auto chunk = static_cast<double>(memory.chunk_bytes * longest);
    return std::max(memory.batch_bytes, static_cast<std::uint64_t>(chunk * growth)) + bytes_per_buffer;
  };
  // Of all tensors in work, the first may be encoded as a whole, and of the others the batches in flight.
  const auto batch_scratch = [&] {
    return std::min(largest_scratch, static_cast<std::uint64_t>(kept_share * static_cast<double>(encoded())));
  };
  const auto fixed = [&] {
    const std::uint64_t report = plan.recipe.error_report == ErrorReport::full ? bytes_per_report : 0;
    const std::uint64_t readers = std::min<std::uint64_t>(memory.threads, memory.tokens);
    const std::uint64_t chunk = memory.chunk_bytes * longest;
    const std::uint64_t decoding = plan.decoder_bytes > 0 ? decoder_copies * plan.decoder_bytes + readers * chunk : 0;
    return program_bytes + plan.rewrite_bytes + (bytes_per_tensor + report) * plan.tensors.size() + copies * texts +
           (memory.threads + memory.behind) * bytes_per_thread + memory.threads * queue() +
           readers * (chunk + chunk / encoder_share + chunk / shortest_row + bytes_per_buffer) +
           memory.tokens * (encoded() + batch_scratch()) + memory.behind * encoded() +
           (memory.behind > 0 ? HugePages::huge_page : 0) + scanned + finish + decoding;
  };
  const auto fits = [&] { return fixed() <= resources.max_memory; };
  while (!fits() && memory.batch_bytes > min_behind_bytes) memory.batch_bytes /= 2;
  while (!fits() && memory.chunk_bytes > min_behind_bytes) memory.chunk_bytes /= 2;
  if (!fits()) memory.behind = 0;
  while (!fits() && memory.chunk_bytes > min_chunk_bytes) {
    memory.chunk_bytes /= 2;
    memory.batch_bytes = memory.chunk_bytes;
  }
  while (!fits() && memory.tokens > 1) --memory.tokens;
  if (!fits()) throw too_little_memory("this conversion needs", fixed(), resources.max_memory);
  const std::uint64_t kept = std::min(largest_scratch, resources.max_memory - fixed());
  memory.scratch_bytes = std::max(kept, batch_scratch());
  memory.total_bytes = fixed() + kept;
  if (largest_scratch > memory.scratch_bytes) memory.spilled_bytes = largest_scratch;
  if (memory.spilled_bytes == 0 && largest_scratch <= resources.max_memory - memory.total_bytes) {
    memory.spare_bytes = largest_scratch;
    memory.total_bytes += largest_scratch;
  }
  return memory;
}

}  // namespace nibble
