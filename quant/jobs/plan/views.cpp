#include "quant/jobs/plan/views.hpp"

#include <fmt/format.h>
#include <re2/re2.h>

#include <utility>

namespace nibble {

ModelRoles roles_of(const StoredWeights& in, const Scheme* scheme) {
  const auto& config = in.reader().config();
  const TensorList& tensors = in.reader().tensors();
  if (config && !config->architecture.empty()) {
    ModelRoles model{{}, config->architecture, config->tie_word_embeddings.value_or(false)};
    const LoadingRules rules = scheme == nullptr ? LoadingRules{} : loading_rules(*scheme);
    model.finder = make_role_finder(model.architecture, tensors, model.tied, rules);
    // If the configuration does not say whether the head is tied, the file does: a tied head is not stored.
    const auto has_head = [&] {
      for (std::size_t t = 0; t < in.size(); ++t)
        if (model.finder->find(in[t].stored.info).role == Role::output_embeddings) return true;
      return false;
    };
    if (model.finder && !config->tie_word_embeddings && !has_head()) {
      model.tied = true;
      model.finder = make_role_finder(model.architecture, tensors, model.tied, rules);
    }
    if (model.finder) return model;
  }
  return {make_role_finder_by_name(tensors), {}, false};
}

PlannedTensor view_of(const StoredWeights::Tensor& tensor) {
  PlannedTensor view;
  view.info = tensor.stored.info;
  view.source = tensor.stored.parts.front();
  view.decoded = tensor.quantized();
  view.source_bytes = tensor.bytes;
  return view;
}

std::vector<PlannedTensor> quantized_views(PlannedTensor tensor, Role role) {
  if (role == Role::conv1d) {
    tensor.transposed = true;
    std::swap(tensor.info.shape.at(0), tensor.info.shape.at(1));
  }
  std::vector<PlannedTensor> views;
  if (role != Role::expert || tensor.info.shape.size() != 3 || tensor.info.elements() == 0) {
    views.push_back(std::move(tensor));
    return views;
  }
  // [experts, out, in] becomes one matrix per expert: `experts.down_proj` -> `experts.7.down_proj.weight`.
  const std::uint64_t experts = tensor.info.shape[0], slice = tensor.info.bytes() / experts;
  tensor.source_bytes /= experts;
  const std::string name = std::move(tensor.info.name);
  const std::size_t leaf = name.rfind('.') + 1;  // 0 if there is no dot
  tensor.info.shape.erase(tensor.info.shape.begin());
  for (std::uint64_t e = 0; e < experts; ++e) {
    tensor.info.name = fmt::format("{}{}.{}.weight", name.substr(0, leaf), e, name.substr(leaf));
    tensor.source_offset = e * slice;
    views.push_back(tensor);
  }
  return views;
}

bool is_stored_transposed(const Reader& in, const StoredWeights::Tensor& tensor, Role role) {
  return role == Role::conv1d && tensor.quantized() && in.config() &&
         (is_nibble_only(*in.config()) || !tensor.scheme->is_source());
}

std::string fused_name(std::string_view matrix) {
  std::string name;
  std::string leaf;
  std::string expert;
  constexpr const char* pattern = R"((?s)((?:.*\.)?)(\d+)\.([^.]+)\.weight)";
  const re2::StringPiece text(matrix.data(), matrix.size());
  return RE2::FullMatch(text, pattern, &name, &expert, &leaf) ? name + leaf : std::string();
}

}  // namespace nibble
