// Encodes each updated tensor twice, with its update and without, as the conversion does, and compares what comes back.

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "core/memory/buffers.hpp"
#include "core/ranges.hpp"
#include "core/workers.hpp"
#include "nibble/error.hpp"
#include "nibble/merge.hpp"
#include "quant/jobs/measure/candidate_weights.hpp"
#include "quant/jobs/measure/pairing.hpp"
#include "quant/jobs/merge/merged_reader.hpp"
#include "quant/merge/survival.hpp"
#include "quant/simd/widen.hpp"
#include "quant/stream/codings.hpp"
#include "quant/stream/memory_model.hpp"
#include "quant/stream/weighing.hpp"

namespace nibble {
namespace {

constexpr std::uint64_t encoded_share = 4;  // of the memory: for two encoded tensors, and the merged weights

class SurvivalMeasuring {
 public:
  SurvivalMeasuring(const MergedReader& merged, const Plan& plan, const Resources& resources, Progress& progress)
      : merged_(merged),
        candidate_{{}, nullptr, plan},
        pairing_(merged, std::span(&candidate_, 1)),
        merged_weights_(merged, {}),
        base_weights_(merged.base(), {}),
        max_encoded_(resources.max_memory / encoded_share),
        progress_(progress),
        candidates_(pairing_, std::span(&candidate_, 1), codings_, weighings_, buffers_, progress) {
    candidate_.plan->recipe.error_report = ErrorReport::none;
    codings_.emplace_back(candidate_.plan->recipe, candidate_.plan->tensors);
    weighings_.emplace_back(merged, *candidate_.plan, resources.max_memory);
  }

  UpdateSurvival measure(const PlannedTensor& planned) {
    PlannedTensor of_base = planned;  // which may be stored in another type
    of_base.info.dtype = merged_.base().tensors().dtype(planned.source);
    of_base.source_offset =
        planned.source_offset / byte_count(planned.info.dtype, 1) * byte_count(of_base.info.dtype, 1);
    const WeightSource base = open_source(base_weights_, of_base, buffers_);
    WeightSource merged = open_source(merged_weights_, planned, buffers_);
    const std::uint64_t bytes = 2 * candidates_.memory_bytes(0, planned, merged).value_or(0);
    const bool fits = bytes <= max_encoded_;
    const Buffers::Loan memory = keep(merged, max_encoded_ - std::min(bytes, max_encoded_));
    const CandidateTensor q_base = candidates_.encoded(0, of_base, base, fits);
    const CandidateTensor q_merged = candidates_.encoded(0, planned, merged, fits);
    return survival(planned, {&base, &merged, weights_of(q_base, base), weights_of(q_merged, merged)});
  }

 private:
  using Sources = std::array<const WeightSource*, 4>;  // W, W + dW, and both after quantization

  // Merged weights are read twice. If there is room for all of them, they are merged once.
  Buffers::Loan keep(WeightSource& merged, std::uint64_t room) {
    const std::uint64_t elements = merged.info().elements();
    Buffers::Loan memory;
    if (merged.bytes(0, elements) > room) return memory;
    memory = buffers_.lend(merged.bytes(0, elements), 0);
    for_each_range(elements, unit_weights, [&](std::uint64_t first, std::uint64_t n) {
      check_cancelled(progress_);
      merged.read(first, memory.bytes().subspan(merged.bytes(0, first), merged.bytes(first, n)));
    });
    merged.set_memory(memory.bytes());
    return memory;
  }

  static const WeightSource* weights_of(const CandidateTensor& tensor, const WeightSource& reference) {
    return tensor.is_reference ? &reference : &*tensor.weights;
  }

  UpdateSurvival survival(const PlannedTensor& planned, const Sources& sources) {
    const std::uint64_t elements = planned.info.elements();
    std::vector<Survival> units((elements + unit_weights - 1) / unit_weights);
    for_each_range(elements, unit_weights, [&](std::uint64_t first, std::uint64_t n) {
      check_cancelled(progress_);
      units[first / unit_weights] = survival_of_unit(sources, first, n);
    });
    Survival all;
    for (const Survival& unit : units) all.add(unit);  // in order
    return {planned.info.name, all.update_norm(), all.ratio(), all.cosine()};
  }

  Survival survival_of_unit(const Sources& sources, std::uint64_t first, std::uint64_t n) const {
    std::array<Buffers::Loan, 4> loans;
    std::array<std::span<const std::byte>, 4> raw;
    for (std::size_t s = 0; s < sources.size(); ++s) raw[s] = sources[s]->raw(first, n, loans[s]);
    Survival sums;
    std::vector<float> tiles(sources.size() * tile_weights);
    for (std::uint64_t at = first; at < first + n; at += tile_weights) {
      const std::size_t size = std::min<std::uint64_t>(tile_weights, first + n - at);
      std::array<std::span<const float>, 4> weights;
      for (std::size_t s = 0; s < sources.size(); ++s)
        weights[s] =
            sources[s]->decode(first, raw[s], at, size, std::span(tiles).subspan(s * tile_weights, tile_weights));
      sums.add(weights[0], weights[1], weights[2], weights[3]);
    }
    return sums;
  }

  const MergedReader& merged_;
  Candidate candidate_;
  Pairing pairing_;
  StoredWeights merged_weights_, base_weights_;
  std::uint64_t max_encoded_;
  Progress& progress_;
  std::deque<Codings> codings_;
  std::deque<Weighing> weighings_;
  Buffers buffers_;
  CandidateWeights candidates_;
};

}  // namespace

std::vector<UpdateSurvival> measure_survival(const Reader& merged, const Plan& plan, const Resources& resources,
                                             Progress& progress) {
  const auto* const reader = dynamic_cast<const MergedReader*>(&merged);
  if (reader == nullptr) throw Error(Errc::usage, "no adapter is merged into this checkpoint");
  std::vector<UpdateSurvival> result;
  const auto is_measured = [&](const PlannedTensor& planned) {
    return planned.quantized && reader->is_updated(planned.source);
  };
  std::uint64_t done = 0, total = 0;
  for (const PlannedTensor& planned : plan.tensors)
    if (is_measured(planned)) total += planned.info.bytes();
  SurvivalMeasuring measuring(*reader, plan, resources, progress);
  Workers workers(resources.threads != 0 ? resources.threads : default_threads());
  workers.execute([&] {
    for (const PlannedTensor& planned : plan.tensors) {
      if (!is_measured(planned)) continue;
      progress.advance(planned.info.name, done, total);
      result.push_back(measuring.measure(planned));
      done += planned.info.bytes();
      progress.advance(planned.info.name, done, total);
    }
  });
  return result;
}

}  // namespace nibble
