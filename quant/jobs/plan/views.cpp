#include "quant/jobs/plan/views.hpp"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <utility>

#include "nibble/error.hpp"

namespace nibble {
namespace {

// A matrix of an expert, by its name.
struct Slice {
  std::string fused;  // empty: it is none
  std::string number;
};

Slice slice_of(std::string_view matrix) {
  std::string name;
  std::string leaf;
  std::string number;
  constexpr const char* pattern = R"((?s)((?:.*\.)?)(0|[1-9]\d{0,8})\.([^.]+)\.weight)";
  const re2::StringPiece text(matrix.data(), matrix.size());
  if (!RE2::FullMatch(text, pattern, &name, &number, &leaf)) return {};
  return {name + leaf, number};
}

std::string slice_name(std::string_view fused, std::size_t number) {
  const std::size_t leaf = fused.rfind('.') + 1;  // 0 if there is no dot
  return fmt::format("{}{}.{}.weight", fused.substr(0, leaf), number, fused.substr(leaf));
}

}  // namespace

ModelRoles roles_of(const StoredWeights& in, const Scheme* scheme) {
  const auto& config = in.reader().config();
  const TensorList& tensors = in.reader().tensors();
  if (config && !config->architecture.empty()) {
    ModelRoles roles{{}, static_cast<const ModelClass&>(*config), config->tie_word_embeddings.value_or(false)};
    const LoadingRules rules = scheme == nullptr ? LoadingRules{} : loading_rules(*scheme);
    roles.finder = make_role_finder(roles.model, tensors, roles.tied, rules);
    // If the configuration does not say whether the head is tied, the file does: a tied head is not stored.
    const auto has_head = [&] {
      for (std::size_t t = 0; t < in.size(); ++t)
        if (roles.finder->find(in[t].stored.info).role == Role::output_embeddings) return true;
      return false;
    };
    if (roles.finder && !config->tie_word_embeddings && !has_head()) {
      roles.tied = true;
      roles.finder = make_role_finder(roles.model, tensors, roles.tied, rules);
    }
    if (roles.finder) return roles;
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
    tensor.transposed = !tensor.transposed;
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
  tensor.info.shape.erase(tensor.info.shape.begin());
  for (std::uint64_t e = 0; e < experts; ++e) {
    tensor.info.name = slice_name(name, e);
    tensor.source_offset = e * slice;
    views.push_back(tensor);
  }
  return views;
}

bool is_stored_transposed(const Reader& in, const StoredWeights::Tensor& tensor, Role role) {
  return role == Role::conv1d && tensor.quantized() && in.config() &&
         (is_nibble_only(*in.config()) || !tensor.scheme->is_source());
}

std::string fused_name(std::string_view matrix) { return slice_of(matrix).fused; }

CutTensors::CutTensors(const StoredWeights& in, RoleFinder& finder) {
  const Reader& reader = in.reader();
  if (!reader.config() || !is_nibble_only(*reader.config())) return;
  std::map<std::string, std::map<std::size_t, std::size_t>> slices;  // by name and number
  for (std::size_t t = 0; t < in.size(); ++t) {
    const TensorInfo tensor = in[t].stored.info;
    const Slice slice = slice_of(tensor.name);
    if (slice.fused.empty() || tensor.shape.size() != 2 || finder.find(tensor).role != Role::unknown) continue;
    const TensorInfo fused{slice.fused, tensor.dtype, {1, tensor.shape[0], tensor.shape[1]}};
    if (finder.find(fused).role == Role::expert) slices[slice.fused].emplace(std::stoul(slice.number), t);
  }
  for (const auto& [name, by_number] : slices) {
    CutTensor& cut = cut_.emplace_back(CutTensor{name, {}, in.size()});
    const TensorInfo first = in[by_number.begin()->second].stored.info;
    for (const auto& [number, t] : by_number) {
      const StoredWeights::Tensor slice = in[t];
      const auto fail = [&](const std::string& fact) {
        throw Error(Errc::bad_input, reader.label_of(slice.stored.parts.front()),
                    fmt::format("tensor '{}' is an expert, cut out of '{}' by nibble, but {}",
                                printable(slice.stored.info.name), printable(cut.name), fact));
      };
      if (number != cut.slices.size())
        fail(fmt::format("'{}' is missing", printable(slice_name(name, cut.slices.size()))));
      if (!is_weight_type(slice.stored.info.dtype))
        fail(fmt::format("it is of type {}, which holds no weights", traits(slice.stored.info.dtype).name));
      if (slice.stored.info.shape != first.shape)
        fail(fmt::format("it is {}, and '{}' is {}", to_string(slice.stored.info.shape), printable(first.name),
                         to_string(first.shape)));
      cut.slices.push_back(t);
      cut.first = std::min(cut.first, t);
      cut_of_[t] = cut_.size() - 1;
    }
  }
}

const CutTensor* CutTensors::find(std::size_t tensor) const {
  const auto found = cut_of_.find(tensor);
  return found == cut_of_.end() ? nullptr : &cut_[found->second];
}

}  // namespace nibble
