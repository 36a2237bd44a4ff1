#include "quant/stream/conversion_memory.hpp"

#include <algorithm>

#include "core/xxh3.hpp"
#include "formats/commit/writer.hpp"
#include "nibble/error.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/memory_model.hpp"
#include "quant/stream/source.hpp"

namespace nibble {
namespace {

constexpr std::uint64_t max_transposed_chunk = 32, min_transposed_chunk = 8;

}  // namespace

ConversionMemory conversion_memory(const Plan& plan, const Resources& resources, const StatisticsMemory& statistics) {
  ConversionMemory memory{.threads = resources.threads != 0 ? resources.threads : default_threads(),
                          .behind = Writer::max_behind,
                          .chunk_bytes = max_chunk_bytes,
                          .batch_bytes = max_batch_bytes};
  memory.tokens = memory.threads + tokens_in_line;
  const Codings codings(plan.recipe, plan.tensors);
  const EncodingNeeds needs =
      needs_of(plan, codings, [](DType dtype) { return min_chunk_bytes * 8 / traits(dtype).bits; });
  if (needs.transposes) memory.transposed_chunk = max_transposed_chunk;
  const std::uint64_t texts = text_bytes(plan.tensors.infos(), 0);
  const std::uint64_t decoder = PlanEstimates::decoder_bytes(plan);
  const std::uint64_t hashes = needs.codes / Xxh3Chunks::chunk_bytes * bytes_per_hash;
  const auto chunk_bytes = [&] { return std::max(memory.chunk_bytes * memory.transposed_chunk, needs.least_chunk); };
  const auto queue = [&] {
    if (resources.device == nullptr) return std::uint64_t{0};
    return std::max(chunk_bytes() / absmax_share, row_absmax_bytes) + bytes_per_buffer;
  };
  const auto encoded = [&] {
    const auto codes = static_cast<std::uint64_t>(static_cast<double>(chunk_bytes()) * needs.growth);
    return std::max(memory.batch_bytes, codes) + bytes_per_buffer;
  };
  // Of the tensors in progress, the first may be fully encoded; of the others, only the batches in flight are.
  const auto batch_scratch = [&] {
    return std::min(needs.scratch, static_cast<std::uint64_t>(needs.kept_share * static_cast<double>(encoded())));
  };
  // For a weight of each row, at least.
  const auto gathered = [&] {
    if (!needs.transposes) return std::uint64_t{0};
    return std::max(memory.chunk_bytes * memory.transposed_chunk / needs.shortest_row + bytes_per_buffer,
                    WeightSource::transposed_bytes);
  };
  // Of the tensors with a batch in flight, and of the one that was finished last.
  const auto columns = [&] {
    return statistics.column_bytes * std::min<std::uint64_t>(memory.tokens + 1, statistics.tensors);
  };
  const auto fixed = [&] {
    const std::uint64_t report = plan.recipe.error_report == ErrorReport::full ? bytes_per_report : 0;
    const std::uint64_t readers = std::min<std::uint64_t>(memory.threads, memory.tokens);
    const std::uint64_t chunk = chunk_bytes();
    const std::uint64_t decoding =
        bytes_per_decoded * needs.decoded + (decoder > 0 ? decoder_copies * decoder + readers * chunk : 0);
    return program_bytes + PlanEstimates::rewrite_bytes(plan) + (bytes_per_converted + report) * plan.tensors.size() +
           converted_names * texts + (memory.threads + memory.behind) * bytes_per_thread + memory.threads * queue() +
           readers * (chunk + chunk / encoder_share + gathered() + bytes_per_buffer) +
           memory.tokens * (encoded() + batch_scratch()) + memory.behind * encoded() +
           (memory.behind > 0 ? HugePages::huge_page : 0) + needs.encoder + hashes + decoding + statistics.bytes +
           columns() + statistics.compensation.bytes(readers, chunk);
  };
  const auto fits = [&] { return fixed() <= resources.max_memory; };
  while (!fits() && memory.transposed_chunk > min_transposed_chunk) memory.transposed_chunk /= 2;
  while (!fits() && memory.batch_bytes > min_behind_bytes) memory.batch_bytes /= 2;
  while (!fits() && memory.chunk_bytes > min_behind_bytes) memory.chunk_bytes /= 2;
  if (!fits()) memory.behind = 0;
  while (!fits() && memory.chunk_bytes > min_chunk_bytes) {
    memory.chunk_bytes /= 2;
    memory.batch_bytes = memory.chunk_bytes;
  }
  while (!fits() && memory.tokens > 1) --memory.tokens;
  if (!fits()) throw too_little_memory("this conversion needs", fixed(), resources.max_memory);
  const std::uint64_t kept = std::min(needs.scratch, resources.max_memory - fixed());
  memory.scratch_bytes = std::max(kept, batch_scratch());
  memory.total_bytes = fixed() + kept;
  if (needs.scratch > memory.scratch_bytes) memory.spilled_bytes = needs.scratch;
  if (memory.spilled_bytes == 0 && needs.scratch <= resources.max_memory - memory.total_bytes) {
    memory.spare_bytes = needs.scratch;
    memory.total_bytes += needs.scratch;
  }
  return memory;
}

}  // namespace nibble
