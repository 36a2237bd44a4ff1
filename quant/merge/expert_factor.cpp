#include "quant/merge/expert_factor.hpp"

#include "quant/merge/adapter_values.hpp"

namespace nibble {

ExpertFactor::ExpertFactor(const Adapter& adapter, const LowRankUpdate& update)
    : rank_(update.rank), values_(element_count(adapter.weights().tensors().shape(update.b))) {
  const std::uint64_t width = rank_ * update.experts;
  out_ = values_.size() / width;
  for_each_value(adapter.weights(), update.b, 0, values_.size(), [&](std::uint64_t i, float value) {
    const std::uint64_t expert = i % width % update.experts, k = i % width / update.experts;
    values_[(expert * out_ + i / width) * rank_ + k] = value;
  });
}

std::uint64_t ExpertFactor::memory_bytes(const Adapter& adapter, const LowRankUpdate& update) {
  return element_count(adapter.weights().tensors().shape(update.b)) * sizeof(float);
}

}  // namespace nibble
