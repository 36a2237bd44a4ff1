#include "quant/jobs/measure/measurement_memory.hpp"

#include <algorithm>

#include "nibble/error.hpp"
#include "quant/jobs/measure/outlier_columns.hpp"
#include "quant/stream/memory_model.hpp"

namespace nibble {
namespace {

// What a candidate or the reference needs in a measurement.
struct MeasuringNeeds {
  std::uint64_t lists = 0;
  std::uint64_t opening = 0;
  std::uint64_t decoders = 0;  // the largest
  std::uint64_t encoders = 0;
  std::uint64_t least_chunk = 0;
};

std::uint64_t name_bytes(const TensorList& tensors) { return text_bytes(tensors, counted_dimensions); }

MeasuringNeeds needs_of(const StoredWeights& stored) {
  const TensorList& parts = stored.reader().tensors();
  const std::uint64_t names = name_bytes(parts);
  MeasuringNeeds needs{.lists = bytes_per_part * parts.size() + names + 2 * stored.memory_bytes(),
                       .opening = bytes_per_opened * parts.size() + opened_names * names};
  if (const auto& config = stored.reader().config()) needs.lists += config->quantization_config.size();
  for (std::size_t t = 0; t < stored.size(); ++t) {
    const StoredWeights::Tensor tensor = stored[t];
    needs.decoders = std::max(needs.decoders, tensor.bytes - parts.bytes(tensor.stored.parts.front()));
  }
  return needs;
}

MeasuringNeeds needs_of(const Plan& plan, const Codings& codings) {
  const EncodingNeeds needs = nibble::needs_of(plan, codings, [](DType) { return unit_weights; });
  return {.decoders = needs.decoder, .encoders = needs.encoder, .least_chunk = needs.least_chunk};
}

}  // namespace

MeasurementMemory measurement_memory(const Pairing& pairing, std::span<const Candidate> candidates,
                                     const std::deque<Codings>& codings, const MeasureOptions& options,
                                     std::uint64_t statistics) {
  const unsigned threads = options.resources.threads != 0 ? options.resources.threads : default_threads();
  const std::uint64_t limit = options.resources.max_memory;
  const TensorList& tensors = pairing.reference().reader().tensors();
  MeasuringNeeds needs = needs_of(pairing.reference());
  const std::uint64_t per_error = bytes_per_error + (options.counts ? bytes_per_counts : 0);
  std::uint64_t results = pairing.reference().size();
  std::uint64_t names = name_bytes(tensors);
  const auto add_plan = [&](const Plan& plan) {
    const std::uint64_t own_names = name_bytes(plan.tensors.infos());
    needs.lists += bytes_per_planned * plan.tensors.size() + own_names;
    results = std::max<std::uint64_t>(results, plan.tensors.size());
    names = std::max(names, own_names);
  };
  if (const auto& [views, view_names] = pairing.views(); views > 0) {
    needs.lists += names;  // of the index by name
    results = std::max<std::uint64_t>(results, views);
    names = std::max(names, view_names);
  }
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    const MeasuringNeeds own =
        candidates[c].plan ? needs_of(*candidates[c].plan, codings[c]) : needs_of(pairing.stored(c));
    needs.lists += own.lists;
    needs.decoders += own.decoders;
    needs.encoders = std::max(needs.encoders, own.encoders);
    needs.least_chunk = std::max(needs.least_chunk, own.least_chunk);
    needs.opening = std::max(needs.opening, own.opening);
    if (candidates[c].plan) add_plan(*candidates[c].plan);
  }
  std::uint64_t columns = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (const auto shape = tensors.shape(t); shape.size() == 2 && shape[1] <= max_columns)
      columns = std::max(columns, shape[1]);

  const std::uint64_t always = program_bytes + statistics;
  std::uint64_t fixed = always + needs.lists + decoder_copies * needs.decoders + needs.encoders;
  fixed += results * (bytes_per_found + candidates.size() * per_error) + 2 * names;
  // Per weight: up to 8 bytes of the reference and, for every candidate, up to 4 as stored and 4 as encoded. Then the
  // sums of columns, of a unit and of its tensor.
  const std::uint64_t token = unit_weights * (8 + 8 * candidates.size()) + columns * (sizeof(float) + sizeof(double));
  std::size_t tokens = threads + measured_in_line;
  while (tokens > 1 && fixed + tokens * token > limit) --tokens;
  // Before it is compared, a tensor is encoded on all threads: a chunk takes its weights and at most as many codes.
  const std::uint64_t encoding = 2 * needs.least_chunk * threads;
  fixed = std::max(fixed + std::max(tokens * token, encoding), always + needs.opening);
  if (fixed > limit) throw too_little_memory("measuring needs", fixed, limit);
  return {threads, tokens, (limit - fixed) / 2, results};
}

}  // namespace nibble
