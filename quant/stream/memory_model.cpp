#include "quant/stream/memory_model.hpp"

#include <algorithm>

#include "quant/quantizers/compensation/compensated_quantizer.hpp"

namespace nibble {

std::uint64_t text_bytes(const TensorList& tensors, std::size_t dimensions) {
  std::uint64_t bytes = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t)
    bytes +=
        tensors.name(t).size() + sizeof(std::uint64_t) * (std::max(tensors.shape(t).size(), dimensions) - dimensions);
  return bytes;
}

EncodingNeeds needs_of(const Plan& plan, const Codings& codings, const std::function<std::uint64_t(DType)>& limit) {
  EncodingNeeds needs;
  for (const PlannedTensor& tensor : plan.tensors) {
    const TensorInfo& info = tensor.info;
    const auto& [codec, quantizer] = codings[tensor.codec];
    const std::uint64_t codes = codec->code_bytes(info, info.elements());
    const auto add = [&](const Quantizer& by) {
      const std::uint64_t scratch = by.scratch_bytes(info);
      const std::uint64_t scanned = by.chunking(info, limit(info.dtype)).scan ? by.scan_bytes(info) : 0;
      const std::uint64_t least = std::min(by.chunking(info, 1).weights, info.elements());
      needs.least_chunk = std::max(needs.least_chunk, least * traits(info.dtype).bits / 8);
      needs.scratch = std::max(needs.scratch, scratch);
      needs.encoder = std::max(needs.encoder, finish_bytes(scratch) + scanned);
      if (codes > 0)
        needs.kept_share = std::max(needs.kept_share, static_cast<double>(scratch) / static_cast<double>(codes));
    };
    add(*quantizer);
    // Whether there are statistics of its input is not known here.
    if (plan.recipe.compensate && can_be_compensated(*codec, info)) add(*codings.compensated(tensor.codec, nullptr));
    needs.codes = std::max(needs.codes, codes);
    needs.decoder = std::max(needs.decoder, tensor.stored_bytes - codes);
    if (tensor.decoded) ++needs.decoded;
    if (const std::uint64_t bytes = info.bytes(); bytes > 0)
      needs.growth = std::max(needs.growth, static_cast<double>(codes) / static_cast<double>(bytes));
    if (!tensor.transposed) continue;
    needs.transposes = true;
    needs.shortest_row = std::clamp<std::uint64_t>(info.shape[1], 1, needs.shortest_row);
  }
  return needs;
}

}  // namespace nibble
