#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/text/text_pool.hpp"
#include "formats/models/weight_name.hpp"
#include "nibble/plan.hpp"

namespace nibble {

struct PlannedTensors::Decisions {
  // Nearly all modules have the name of their weight. These numbers stand for such a name.
  static constexpr std::uint32_t module_is_name = UINT32_MAX;       // of the tensor
  static constexpr std::uint32_t module_has_name = UINT32_MAX - 1;  // the same without ".weight"

  struct Row {
    std::uint64_t source_offset;
    std::uint64_t source_bytes;
    std::uint64_t stored_bytes;
    std::uint32_t source;  // headers are too small for more
    CodecSpec codec;
    std::uint32_t reason;  // a text
    std::uint32_t module;  // a text, or one of the two numbers above
    Role role;
    DecidedBy decided_by;
    bool transposed, decoded, quantized, keeps_module;
  };

  [[nodiscard]] Row row(const PlannedTensor& tensor);

  std::vector<Row> rows;
  TextPool texts;
  std::map<std::size_t, std::vector<std::string>> keeps;   // of tensors that keep other modules than their own
  std::map<std::size_t, std::vector<std::size_t>> slices;  // of those few that have any
};

PlannedTensors::PlannedTensors() noexcept = default;
PlannedTensors::PlannedTensors(const PlannedTensors& other)
    : infos_(other.infos_), decisions_(other.decisions_ ? std::make_unique<Decisions>(*other.decisions_) : nullptr) {}
PlannedTensors& PlannedTensors::operator=(const PlannedTensors& other) {
  return *this = PlannedTensors(other);  // NOLINT(misc-unconventional-assign-operator)
}
PlannedTensors::PlannedTensors(PlannedTensors&&) noexcept = default;
PlannedTensors& PlannedTensors::operator=(PlannedTensors&&) noexcept = default;
PlannedTensors::~PlannedTensors() = default;

PlannedTensors::Decisions::Row PlannedTensors::Decisions::row(const PlannedTensor& tensor) {
  const std::string_view name = tensor.info.name;
  const std::uint32_t module = tensor.module == without_weight_suffix(name) ? module_has_name
                               : tensor.module == name                      ? module_is_name
                                                                            : texts.add(tensor.module);
  return {.source_offset = tensor.source_offset,
          .source_bytes = tensor.source_bytes,
          .stored_bytes = tensor.stored_bytes,
          .source = static_cast<std::uint32_t>(tensor.source),
          .codec = tensor.codec,
          .reason = texts.add(tensor.reason),
          .module = module,
          .role = tensor.role,
          .decided_by = tensor.decided_by,
          .transposed = tensor.transposed,
          .decoded = tensor.decoded,
          .quantized = tensor.quantized,
          .keeps_module = false};
}

void PlannedTensors::push_back(const PlannedTensor& tensor, std::span<const std::string> keeps) {
  if (!decisions_) decisions_ = std::make_unique<Decisions>();
  auto& rows = decisions_->rows;
  Decisions::Row added = decisions_->row(tensor);
  added.keeps_module = keeps.size() == 1 && keeps.front() == tensor.module;
  if (!added.keeps_module && !keeps.empty()) decisions_->keeps[rows.size()].assign(keeps.begin(), keeps.end());
  if (!tensor.slices.empty()) decisions_->slices[rows.size()] = tensor.slices;
  infos_.push_back(tensor.info);
  rows.push_back(added);
}

void PlannedTensors::replace(std::size_t tensor, const PlannedTensor& by) {
  // `by` may hold texts of this list, which adding one moves.
  const std::string reason(by.reason);
  const std::string module(by.module);
  PlannedTensor own = by;
  own.reason = reason, own.module = module;
  Decisions::Row& row = decisions_->rows[tensor];
  const bool keeps_module = row.keeps_module;
  row = decisions_->row(own);
  row.keeps_module = keeps_module;
  infos_.set_shape(tensor, by.info.shape);
}

PlannedTensor PlannedTensors::operator[](std::size_t tensor) const {
  const Decisions::Row& row = decisions_->rows[tensor];
  const TextPool& texts = decisions_->texts;
  const std::string_view name = infos_.name(tensor);
  const auto slices = decisions_->slices.find(tensor);
  return {.info = infos_[tensor],
          .source = row.source,
          .source_offset = row.source_offset,
          .transposed = row.transposed,
          .slices = slices == decisions_->slices.end() ? std::vector<std::size_t>() : slices->second,
          .codec = row.codec,
          .reason = texts[row.reason],
          .decided_by = row.decided_by,
          .role = row.role,
          .module = row.module == Decisions::module_has_name  ? without_weight_suffix(name)
                    : row.module == Decisions::module_is_name ? name
                                                              : texts[row.module],
          .decoded = row.decoded,
          .quantized = row.quantized,
          .source_bytes = row.source_bytes,
          .stored_bytes = row.stored_bytes};
}

std::vector<std::string> PlannedTensors::keeps(std::size_t tensor) const {
  if (decisions_->rows[tensor].keeps_module) return {std::string((*this)[tensor].module)};
  const auto found = decisions_->keeps.find(tensor);
  return found == decisions_->keeps.end() ? std::vector<std::string>() : found->second;
}

}  // namespace nibble
