#include <algorithm>

#include "formats/models/weight_name.hpp"
#include "nibble/plan.hpp"

namespace nibble {

PlannedTensors::Row PlannedTensors::row(const PlannedTensor& tensor) {
  // Nearly all modules are named as their weights are.
  const std::string_view name = tensor.info.name;
  const std::uint32_t module = tensor.module == without_weight_suffix(name) ? module_has_name
                               : tensor.module == name                      ? module_is_name
                                                                            : texts_.add(tensor.module);
  return {.source_offset = tensor.source_offset,
          .source_bytes = tensor.source_bytes,
          .stored_bytes = tensor.stored_bytes,
          .source = static_cast<std::uint32_t>(tensor.source),
          .codec = tensor.codec,
          .reason = texts_.add(tensor.reason),
          .module = module,
          .role = tensor.role,
          .decided_by = tensor.decided_by,
          .transposed = tensor.transposed,
          .decoded = tensor.decoded,
          .quantized = tensor.quantized,
          .keeps_module = false};
}

void PlannedTensors::push_back(const PlannedTensor& tensor, std::span<const std::string> keeps) {
  Row added = row(tensor);
  added.keeps_module = keeps.size() == 1 && keeps.front() == tensor.module;
  if (!added.keeps_module && !keeps.empty()) keeps_[rows_.size()].assign(keeps.begin(), keeps.end());
  infos_.push_back(tensor.info);
  rows_.push_back(added);
}

void PlannedTensors::replace(std::size_t tensor, const PlannedTensor& by) {
  // `by` may hold texts of this list, which adding one moves.
  const std::string reason(by.reason);
  const std::string module(by.module);
  PlannedTensor own = by;
  own.reason = reason, own.module = module;
  const bool keeps_module = rows_[tensor].keeps_module;
  rows_[tensor] = row(own);
  rows_[tensor].keeps_module = keeps_module;
  infos_.set_shape(tensor, by.info.shape);
}

PlannedTensor PlannedTensors::operator[](std::size_t tensor) const {
  const Row& row = rows_[tensor];
  const std::string_view name = infos_.name(tensor);
  return {.info = infos_[tensor],
          .source = row.source,
          .source_offset = row.source_offset,
          .transposed = row.transposed,
          .codec = row.codec,
          .reason = texts_[row.reason],
          .decided_by = row.decided_by,
          .role = row.role,
          .module = row.module == module_has_name  ? without_weight_suffix(name)
                    : row.module == module_is_name ? name
                                                   : texts_[row.module],
          .decoded = row.decoded,
          .quantized = row.quantized,
          .source_bytes = row.source_bytes,
          .stored_bytes = row.stored_bytes};
}

std::vector<std::string> PlannedTensors::keeps(std::size_t tensor) const {
  if (rows_[tensor].keeps_module) return {std::string((*this)[tensor].module)};
  const auto found = keeps_.find(tensor);
  return found == keeps_.end() ? std::vector<std::string>() : found->second;
}

}  // namespace nibble
