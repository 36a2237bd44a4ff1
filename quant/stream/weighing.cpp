#include "quant/stream/weighing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "core/refuse.hpp"
#include "core/xxh3.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/absmax_choice.hpp"

namespace nibble {

bool searches_absmax(const CodecSpec& codec) {
  return codec.has(absmax_option.name) && absmax_choice_of(codec) != AbsmaxChoice::max;
}

Weighing::Weighing(const Reader& in, const Plan& plan, std::uint64_t max_memory) : in_(&in) {
  if (plan.recipe.calibration.empty()) return;
  statistics_ = std::make_unique<Calibration>(plan.recipe.calibration, max_memory);
  std::size_t searched = 0, missing = 0;
  std::string first_missing;
  std::set<std::size_t> inputs;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (!searches_absmax(tensor.codec)) continue;
    ++searched;
    const auto input = input_of(tensor);
    if (!input) {
      if (missing++ == 0) first_missing = tensor.info.name;
    } else if (has_columns_of(tensor, *input)) {
      inputs.insert(*input);
      ++memory_.tensors;
      memory_.column_bytes = std::max<std::uint64_t>(memory_.column_bytes, sizeof(float) * tensor.info.shape[1]);
    }
  }
  memory_.bytes = statistics_->memory_bytes();
  if (searched == 0)
    throw Error(Errc::usage, "statistics of a calibration have no effect: the absmax of no tensor is searched");
  if (missing == searched)
    refuse(escaped((plan.recipe.calibration / Calibration::file_name).native()),
           "lists no tensor whose absmax is searched; '{}' is the first: is it of another model?",
           printable(first_missing));
  if (missing > 0)
    warning_ = fmt::format(
        "{} of {} tensors whose absmax is searched have no statistics, so all their columns count "
        "alike: '{}'{}",
        missing, searched, printable(first_missing), missing > 1 ? ", ..." : "");
  Xxh3Stream hash;
  for (const std::size_t input : inputs) {
    const std::vector<float> mean_square = statistics_->mean_square(input);
    hash.append(std::as_bytes(std::span(mean_square)));
  }
  identity_ = fmt::format(R"({{"bytes":{},"xxh3_128":"{}","mean_squares_xxh3_128":"{}","tensors":{}}})",
                          statistics_->manifest_bytes(), statistics_->manifest_hash().hex(), hash.digest().hex(),
                          memory_.tensors);
}

// An expert of a tensor with several is known by its offset. Some models have the weights of experts as
// [experts, in, out], so a row is the weights of one input, and not of one output. Where a matrix is square, the two
// cannot be told apart, and the statistics are not used.
std::optional<std::size_t> Weighing::input_of(const PlannedTensor& tensor) const {
  const std::string_view name = in_->tensors().name(tensor.source);
  const auto* const inputs = statistics_->find(name);
  if (inputs == nullptr || tensor.info.shape.size() != 2 || !tensor.slices.empty()) return std::nullopt;
  const bool is_expert = inputs->size() > 1;
  const std::uint64_t rows = tensor.info.shape[0], columns = tensor.info.shape[1];
  const std::uint64_t bytes = tensor.info.bytes(), number = bytes == 0 ? 0 : tensor.source_offset / bytes;
  const auto refuse_tensor = [&](const std::string& fact) {
    throw Error(Errc::bad_input, in_->label_of(tensor.source), fmt::format("tensor '{}': {}", printable(name), fact));
  };
  if (number >= inputs->size())
    refuse_tensor(
        fmt::format("has at least {} matrices, the statistics have inputs of {}", number + 1, inputs->size()));
  const auto input = (*inputs)[number];
  if (!input || (is_expert && rows == columns)) return std::nullopt;
  const std::uint64_t width = statistics_->inputs()[*input].columns;
  if (width != columns && !(is_expert && width == rows))
    refuse_tensor(fmt::format("has {} columns, its input '{}' in the statistics has {}", columns,
                              printable(statistics_->inputs()[*input].name), width));
  return input;
}

// Where rows are the inputs, all weights of a row are multiplied by the same input, so a search within a row is the
// same without statistics.
bool Weighing::has_columns_of(const PlannedTensor& tensor, std::size_t input) const {
  return statistics_->inputs()[input].columns == tensor.info.shape[1];
}

ColumnWeights Weighing::columns_of(const PlannedTensor& tensor) const {
  if (!statistics_ || !searches_absmax(tensor.codec)) return {};
  const auto input = input_of(tensor);
  if (!input || !has_columns_of(tensor, *input)) return {};
  return ColumnWeights(statistics_->mean_square(*input));
}

}  // namespace nibble
