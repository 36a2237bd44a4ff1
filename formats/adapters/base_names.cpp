#include "formats/adapters/base_names.hpp"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <set>

#include "formats/models/weight_name.hpp"

namespace nibble {
namespace {

// The matrices of an expert in the order in which they are merged, as the models name them.
constexpr std::array<std::string_view, 2> first_names{"gate_proj", "w1"};
constexpr std::array<std::string_view, 2> second_names{"up_proj", "w3"};
constexpr std::array<std::string_view, 2> single_names{"down_proj", "w2"};

// Each is tried for a name that the base lacks. Models have a few, and one with more gets no such help.
constexpr std::size_t max_first_components = 64;

bool is_expert_name(std::string_view name, const std::array<std::string_view, 2>& names) {
  return std::ranges::find(names, name) != names.end();
}

std::string parameter_of(const FoundRole& role) {
  const bool is_module = role.is_linear || (role.role != Role::expert && role.role != Role::other);
  return is_module ? role.module + std::string(weight_suffix) : role.module;
}

}  // namespace

BaseNames::BaseNames(const TensorList& tensors, RoleFinder& roles) : tensors_(tensors) {
  std::set<std::string> first;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const TensorInfo tensor = tensors[t];
    const FoundRole found = roles.find(tensor);
    roles_.push_back(found.is_linear && found.role == Role::other ? Role::kept : found.role);
    stored_[tensor.name] = t;
    for (const std::string& name : {parameter_of(found), found.module})
      if (auto& same = loaded_[name]; same.empty() || same.back() != t) same.push_back(t);
    if (const std::size_t dot = tensor.name.find('.'); dot != std::string::npos)
      first.insert(tensor.name.substr(0, dot + 1));
  }
  if (first.size() <= max_first_components) first_components_.assign(first.begin(), first.end());
}

std::vector<std::size_t> BaseNames::find_all(const std::string& parameter) const {
  if (const auto stored = stored_.find(parameter); stored != stored_.end()) return {stored->second};
  if (const auto loaded = loaded_.find(parameter); loaded != loaded_.end() && loaded->second.size() == 1)
    return loaded->second;
  // A model with a head has one component more than the model without.
  std::vector<std::size_t> result;
  const auto look = [&](const std::string& name) {
    if (const auto stored = stored_.find(name); stored != stored_.end()) result.push_back(stored->second);
  };
  if (const std::size_t dot = parameter.find('.'); dot != std::string::npos) look(parameter.substr(dot + 1));
  for (const std::string& first : first_components_) look(first + parameter);
  return result;
}

std::optional<std::size_t> BaseNames::find(const std::string& parameter) const {
  const auto all = find_all(parameter);
  return all.size() == 1 ? std::optional(all.front()) : std::nullopt;
}

std::vector<ExpertMatrix> BaseNames::find_experts(const std::string& parameter) const {
  std::vector<ExpertMatrix> matrices;
  const auto loaded = loaded_.find(parameter);
  if (loaded == loaded_.end()) return matrices;
  static const RE2 name(R"(.*\.(\d+)\.([^.]+)\.weight)");
  for (const std::size_t t : loaded->second) {
    ExpertMatrix matrix{t};
    std::string leaf;
    if (roles_[t] != Role::expert || tensors_.shape(t).size() != 2 ||
        !RE2::FullMatch(re2::StringPiece(tensors_.name(t).data(), tensors_.name(t).size()), name, &matrix.expert,
                        &leaf))
      return {};
    matrix.second = is_expert_name(leaf, second_names);
    if (!matrix.second && !is_expert_name(leaf, first_names) && !is_expert_name(leaf, single_names)) return {};
    matrices.push_back(matrix);
  }
  std::ranges::sort(matrices, {}, [](const ExpertMatrix& m) { return std::pair(m.expert, m.second); });
  return matrices;
}

}  // namespace nibble
