#include "quant/stream/codings.hpp"

#include <utility>

#include "quant/codecs/codecs.hpp"
#include "quant/quantizers/compensation/compensated_quantizer.hpp"

namespace nibble {

Codings::Codings(const Recipe& recipe, Device* device)
    : quantizer_options_{recipe.on_overflow, recipe.error_report != ErrorReport::none, device} {
  for (const CodecSpec& spec : {CodecSpec(), recipe.to, recipe.embeddings, recipe.lm_head, recipe.experts}) add(spec);
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) add(cast_codec(type));
  for (const Rule& rule : recipe.rules) add(rule.codec);
}

Codings::Codings(const Recipe& recipe, const PlannedTensors& tensors, Device* device) : Codings(recipe, device) {
  for (const PlannedTensor& tensor : tensors) add(tensor.codec);
}

std::unique_ptr<const Quantizer> Codings::compensated(const CodecSpec& spec, const InputFactor* factor) const {
  return make_compensated_quantizer(*made_.at(spec).codec, quantizer_options_, factor);
}

void Codings::add(const CodecSpec& spec) {
  if (made_.contains(spec)) return;
  auto codec = make_codec(spec);
  auto quantizer = make_quantizer(*codec, quantizer_options_);
  made_.emplace(spec, Coding{std::move(codec), std::move(quantizer)});
}

}  // namespace nibble
