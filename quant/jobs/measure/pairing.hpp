#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nibble/error.hpp"
#include "nibble/measure.hpp"
#include "quant/jobs/plan/views.hpp"
#include "quant/stream/stored_weights.hpp"

namespace nibble {

/// Finds which tensor of a candidate belongs to which tensor of the reference, and in which view: quantized candidates
/// may have it transposed (Conv1D) or in slices (experts).
class Pairing {
 public:
  /// Throws Error(bad_input) if a candidate is a plan but no conversion accepts the reference.
  Pairing(const Reader& reference, std::span<const Candidate> candidates);

  [[nodiscard]] const StoredWeights& reference() const noexcept { return reference_; }
  /// Of a candidate that is a checkpoint.
  [[nodiscard]] const StoredWeights& stored(std::size_t candidate) const { return *stored_[candidate]; }
  /// The number of views that any quantization could have of the reference's tensors; 0 if no candidate needed it.
  struct Views {
    std::size_t count = 0;
    std::uint64_t name_bytes = 0;
  };
  [[nodiscard]] const Views& views() const noexcept { return views_; }

  /// A view of a tensor of the reference, and what every candidate has for it.
  struct Row {
    PlannedTensor view;
    std::vector<std::optional<PlannedTensor>> planned;
    std::vector<std::optional<std::size_t>> stored;
  };
  /// The pairs of tensor `tensor` of reference(). Names that candidate c lacks are added to missing[c].
  [[nodiscard]] std::vector<Row> rows_of(std::size_t tensor, std::span<std::vector<std::string>> missing) const;

 private:
  // The rows of a tensor while candidates are matched, one after the other. A candidate has a view once, so it is
  // looked for among the rows of earlier candidates, beginning behind the one that was found last: candidates have
  // experts in the same order, and there may be thousands of them.
  struct Matching {
    std::vector<Row> rows;
    std::size_t earlier = 0;  // rows of earlier candidates
    std::size_t next = 0;     // where the search begins
  };
  Row& row_of(Matching& matching, const PlannedTensor& view) const;
  // How checkpoints have a tensor of the reference.
  struct Forms {
    PlannedTensor plain;                   // where it is not quantized
    std::vector<PlannedTensor> quantized;  // empty if that is not known
  };
  [[nodiscard]] Forms forms_of(const StoredWeights::Tensor& tensor) const;
  bool match_stored(Matching& matching, const Forms& forms, std::size_t candidate,
                    std::vector<std::string>& missing) const;

  std::span<const Candidate> candidates_;
  StoredWeights reference_;
  std::deque<std::optional<StoredWeights>> stored_;  // of candidates that are checkpoints
  std::vector<std::vector<std::uint32_t>> planned_;  // of those that are plans, by source
  ModelRoles model_roles_;                           // of the reference, if views are needed
  Views views_;
};

}  // namespace nibble
