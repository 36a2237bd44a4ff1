#include "quant/jobs/merge/plain_reader.hpp"

#include <algorithm>

#include "quant/jobs/plan/plan.hpp"
#include "quant/stream/memory_model.hpp"

namespace nibble {
namespace {

Recipe decoding() {
  Recipe recipe;
  recipe.intake = Intake::any;
  recipe.decoded_as = DType::f32;
  return recipe;
}

}  // namespace

PlainReader::PlainReader(std::unique_ptr<const Reader> in)
    : DerivedReader(*in),
      in_(std::move(in)),
      stored_(*in_, schemes_of(Intake::any)),
      plan_(make_plan(stored_, decoding())),
      config_(in_->config()) {
  if (!config_) return;
  for (std::string* text : {&config_->quant_method, &config_->quantization_config, &config_->quantization_key,
                            &config_->second_quantization})
    text->clear();
}

bool PlainReader::is_as_stored(const PlannedTensor& tensor) {
  return !tensor.decoded && !tensor.transposed && tensor.slices.empty();
}

void PlainReader::read(std::size_t tensor, std::uint64_t offset, std::span<std::byte> out) const {
  const PlannedTensor planned = plan_.tensors[tensor];
  if (is_as_stored(planned)) return in_->read(planned.source, planned.source_offset + offset, out);
  const auto source = sources_.get(
      tensor, [&] { return std::make_shared<const WeightSource>(open_source(stored_, planned, buffers_)); });
  const std::uint64_t width = traits(planned.info.dtype).bits / 8;
  Buffers::Loan loan;
  std::ranges::copy(source->weights(offset / width, out.size() / width, loan), out.begin());
}

std::uint64_t PlainReader::position(std::size_t tensor, std::uint64_t offset) const {
  const PlannedTensor planned = plan_.tensors[tensor];
  if (!is_as_stored(planned)) return offset;
  return ReaderInternals::position(*in_, planned.source, planned.source_offset + offset);
}

DType PlainReader::model_type(std::size_t tensor) const {
  return stored_[stored_.find(plan_.tensors[tensor].source).value()].stored.info.dtype;
}

std::uint64_t PlainReader::reading_bytes() const { return PlanEstimates::decoder_bytes(plan_); }

}  // namespace nibble
