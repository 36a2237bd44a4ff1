#include "quant/stream/layer_inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "nibble/error.hpp"

namespace nibble {

// An expert of a tensor with several is known by its offset. Some models have the weights of experts as
// [experts, in, out], so a row is the weights of one input, and not of one output. Where a matrix is square, the two
// cannot be told apart, and the statistics are not used. A Conv1D is stored as [in, out], its codes as [out, in].
std::optional<LayerInput> layer_input(const Reader& in, const Calibration& statistics, const PlannedTensor& tensor) {
  const std::string_view name = in.tensors().name(tensor.source);
  const auto* const inputs = statistics.find(name);
  if (inputs == nullptr || tensor.info.shape.size() != 2 || !tensor.slices.empty()) return std::nullopt;
  const bool is_expert = inputs->size() > 1;
  const bool is_in_out = tensor.role == Role::conv1d && tensor.transposed == tensor.decoded;
  const std::uint64_t rows = tensor.info.shape[0], columns = tensor.info.shape[1];
  const std::uint64_t bytes = tensor.info.bytes(), number = bytes == 0 ? 0 : tensor.source_offset / bytes;
  const auto refuse_tensor = [&](const std::string& fact) {
    throw Error(Errc::bad_input, in.label_of(tensor.source), fmt::format("tensor '{}': {}", printable(name), fact));
  };
  if (number >= inputs->size())
    refuse_tensor(
        fmt::format("has at least {} matrices, the statistics have inputs of {}", number + 1, inputs->size()));
  const auto input = (*inputs)[number];
  if (!input || (is_expert && rows == columns)) return std::nullopt;
  const std::uint64_t width = statistics.inputs()[*input].columns;
  const bool by_rows = is_in_out || (is_expert && width != columns);
  if (width != (by_rows ? rows : columns))
    refuse_tensor(fmt::format("has {} columns, its input '{}' in the statistics has {}", columns,
                              printable(statistics.inputs()[*input].name), width));
  return LayerInput{*input, by_rows};
}

void OutputWeights::apply(std::uint64_t first, std::span<float> weights) const {
  if (weights_per_root_ == 1) return roots_.apply(first, weights);
  while (!weights.empty()) {
    const auto n = static_cast<std::size_t>(
        std::min<std::uint64_t>(weights.size(), weights_per_root_ - first % weights_per_root_));
    float room = 0;
    const float root = roots_.roots(first / weights_per_root_, 1, std::span(&room, 1)).front();
    for (float& weight : weights.first(n)) weight *= root;
    weights = weights.subspan(n);
    first += n;
  }
}

}  // namespace nibble
