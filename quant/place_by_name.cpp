// The guess that stands in for the table of architectures where that lacks a model.

#include <fmt/format.h>
#include <re2/re2.h>

#include <unordered_map>

#include "quant/architectures.hpp"

namespace nibble {

std::vector<Placement> place_by_name(std::span<const TensorInfo> tensors) {
  // Words between dots and underscores. `gate` alone is a router, gate_proj is not.
  const RE2 embedding(
      R"((^|[._])(embed|embeds|emb|embedding|embeddings|embedder|embedders|wte|wpe|tok|token|tokens)([._]|$)|)"
      R"((^|[._])(shared|vocab)([._]|$))");
  const RE2 head(R"((^|[._])(head|heads|lm_head|unembed|unembedding|classifier|score|scorer|cls|logits?)([._]|$)|)"
                 R"((^|[._])(out_embed|embed_out|decoder_out|qa_outputs)([._]|$)|^(model\.)?output$)");
  const RE2 other(
      R"((^|[._])(norm|norms|layernorm|ln|bn|router|routers|position|positions|pos|positional)([._\d]|$)|)"
      R"((^|[._])(relative|rel|bias|conv|convs|codebook|codebooks|table|rotary|freqs?|mask|alpha)([._\d]|$)|)"
      R"((^|[._])(lora|adapter|timestep|time)([._\d]|$)|(norm|conv)\d*$|(^|\.)(gate|wg|gating|switch)$)");
  constexpr std::string_view by = " by name and shape";
  constexpr std::uint64_t vocabulary = 30'000;  // rows of the smallest common vocabularies
  constexpr std::uint64_t flat = 6;             // times more rows than columns: no hidden layer is that flat

  std::unordered_map<std::string_view, std::uint64_t> biases;
  for (const TensorInfo& tensor : tensors)
    if (tensor.shape.size() == 1 && tensor.name.ends_with(".bias")) biases[tensor.name] = tensor.shape[0];

  std::vector<Placement> result;
  result.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) {
    const std::string module = module_of(tensor.name);
    const auto add = [&](Role role, std::string_view what, bool keep) {
      Placement placement{role, module, fmt::format("{}{}", what, by), {}};
      if (keep) placement.keeps.push_back(module);
      result.push_back(std::move(placement));
    };
    if (!is_matrix_weight(tensor)) {
      add(Role::other, "no linear layer", false);
    } else if (RE2::PartialMatch(module, head)) {
      add(Role::output_embeddings, "output layer", true);
    } else if (RE2::PartialMatch(module, embedding)) {
      add(Role::embedding, "embedding", true);
    } else if (RE2::PartialMatch(module, other)) {
      add(Role::other, "no linear layer", true);
    } else if (tensor.shape[0] >= vocabulary && tensor.shape[0] / flat >= tensor.shape[1]) {
      add(Role::embedding, "rows as many as a vocabulary:", true);
    } else if (const auto bias = biases.find(module + ".bias");
               bias != biases.end() && bias->second != tensor.shape[0]) {
      add(Role::other, "stored transposed:", true);
    } else {
      add(Role::linear, "linear layer", true);
    }
  }
  return result;
}

}  // namespace nibble
