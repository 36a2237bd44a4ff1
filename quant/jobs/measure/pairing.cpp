#include "quant/jobs/measure/pairing.hpp"

#include <fmt/format.h>

#include <utility>

namespace nibble {
namespace {

bool has_matrix(const StoredWeights& weights) {
  for (std::size_t t = 0; t < weights.size(); ++t) {
    const TensorInfo tensor = weights[t].stored.info;
    if (tensor.shape.size() >= 2 && is_weight_type(tensor.dtype)) return true;
  }
  return false;
}

// Whether no conversion accepts it as input.
bool is_refused(const StoredWeights& weights) {
  for (std::size_t t = 0; t < weights.size(); ++t)
    if (const Scheme* const scheme = weights[t].scheme; scheme != nullptr && !scheme->is_source()) return true;
  return false;
}

// What a conversion would refuse is no weight to be measured either.
void check_decodable(const StoredWeights& weights) {
  for (std::size_t t = 0; t < weights.size(); ++t) weights.check_decodable(t);
}

// Where the planned tensors of each source begin: they are in the order of the input.
std::vector<std::uint32_t> index_by_source(const Plan& plan) {
  std::vector<std::uint32_t> begin{0};
  for (std::size_t p = 0; p < plan.tensors.size(); ++p)
    while (begin.size() <= plan.tensors[p].source) begin.push_back(static_cast<std::uint32_t>(p));
  begin.push_back(static_cast<std::uint32_t>(plan.tensors.size()));
  return begin;
}
template <class F>
void for_each_planned(const Plan& plan, const std::vector<std::uint32_t>& index, std::size_t source, F&& f) {
  if (source + 1 >= index.size()) return;
  for (std::size_t p = index[source]; p < plan.tensors.size() && plan.tensors[p].source == source; ++p)
    f(plan.tensors[p]);
}

}  // namespace

Pairing::Pairing(const Reader& reference, std::span<const Candidate> candidates)
    : candidates_(candidates), reference_(about(reference, [&] { return StoredWeights(reference); })) {
  check_decodable(reference_);
  const bool refused = is_refused(reference_);
  bool any_stored = false;
  for (const Candidate& candidate : candidates) {
    stored_.emplace_back();
    planned_.emplace_back();
    if (candidate.checkpoint != nullptr) {
      about(*candidate.checkpoint, [&] { check_decodable(stored_.back().emplace(*candidate.checkpoint)); });
      any_stored = true;
    } else if (refused) {
      throw Error(
          Errc::bad_input, printable(reference.path().string()),
          fmt::format("is quantized already: only plain weights can be converted to {}", printable(candidate.name)));
    } else {
      planned_.back() = index_by_source(*candidate.plan);
    }
  }
  if (any_stored && has_matrix(reference_)) {
    model_roles_ = roles_of(reference_);
    for (std::size_t t = 0; t < reference_.size(); ++t)
      for (const PlannedTensor& view : forms_of(reference_[t]).quantized) {
        ++views_.count;
        views_.name_bytes += view.info.name.size();
      }
  }
}

Pairing::Forms Pairing::forms_of(const StoredWeights::Tensor& tensor) const {
  const TensorInfo& info = tensor.stored.info;
  PlannedTensor whole = view_of(tensor);
  if (!model_roles_.finder) return {whole, {}};
  if (!is_weight_type(info.dtype) || info.shape.size() < 2) return {whole, {whole}};
  const Role role = model_roles_.finder->find(info).role;
  std::vector<PlannedTensor> views = quantized_views(whole, role);
  // Transposed once more, it has the layout of the original.
  if (is_stored_transposed(reference_.reader(), tensor, role)) return {views.front(), {whole}};
  whole.role = role;
  for (PlannedTensor& view : views) view.role = role;
  return {whole, std::move(views)};
}

Pairing::Row& Pairing::row_of(Matching& matching, const PlannedTensor& view) const {
  for (std::size_t i = 0; i < matching.earlier; ++i) {
    const std::size_t at = (matching.next + i) % matching.earlier;
    Row& row = matching.rows[at];
    if (row.view.source_offset != view.source_offset || row.view.transposed != view.transposed ||
        row.view.info.name != view.info.name)
      continue;
    matching.next = at + 1;
    return row;
  }
  Row& row = matching.rows.emplace_back();
  row.view = view;
  row.planned.resize(candidates_.size());
  row.stored.resize(candidates_.size());
  return row;
}

std::vector<Pairing::Row> Pairing::rows_of(std::size_t tensor, std::span<std::vector<std::string>> missing) const {
  const StoredWeights::Tensor reference = reference_[tensor];
  Matching matching;
  const DType dtype = reference.stored.info.dtype;
  if (!is_weight_type(dtype)) {
    if (is_floating_point(dtype))  // numbers, but of a type that nibble cannot decode
      for (std::vector<std::string>& names : missing) names.push_back(reference.stored.info.name);
    return {};
  }
  const PlannedTensor whole = view_of(reference);
  const Forms forms = forms_of(reference);
  for (std::size_t c = 0; c < candidates_.size(); ++c) {
    bool any = false;
    matching.earlier = matching.rows.size();
    if (candidates_[c].plan) {
      for_each_planned(*candidates_[c].plan, planned_[c], whole.source, [&](const PlannedTensor& planned) {
        row_of(matching, planned).planned[c] = planned;
        any = true;
      });
    } else {
      any = match_stored(matching, forms, c, missing[c]);
    }
    if (!any) missing[c].push_back(whole.info.name);
  }
  return std::move(matching.rows);
}

bool Pairing::match_stored(Matching& matching, const Forms& forms, std::size_t c,
                           std::vector<std::string>& missing) const {
  const StoredWeights& stored = *stored_[c];
  const auto match = [&](const PlannedTensor& view, std::size_t tensor) {
    const TensorInfo found = stored[tensor].stored.info;
    if (found.shape != view.info.shape || !is_weight_type(found.dtype)) return false;
    row_of(matching, view).stored[c] = tensor;
    return true;
  };
  const auto same_name = stored.find(forms.plain.info.name);
  std::vector<std::string> lacking;
  bool any = false;
  if (!(same_name && !stored[*same_name].quantized()))
    for (const PlannedTensor& view : forms.quantized) {
      const auto tensor = stored.find(view.info.name);
      if (tensor && match(view, *tensor))
        any = true;
      else
        lacking.push_back(view.info.name);
    }
  if (!any) return same_name && match(forms.plain, *same_name);
  missing.insert(missing.end(), lacking.begin(), lacking.end());
  return true;
}

}  // namespace nibble
