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
#include "quant/stream/stored_weights.hpp"

namespace nibble {

/// Which tensor of a candidate belongs to which of the reference, in which view: candidates that are quantized may have
/// it transposed (Conv1D) or in slices (experts).
class Pairing {
 public:
  /// Throws Error(bad_input) if the reference is quantized and a candidate is a plan.
  Pairing(const Reader& reference, std::span<const Candidate> candidates);

  [[nodiscard]] const StoredWeights& reference() const noexcept { return reference_; }
  /// Of a candidate that is a checkpoint.
  [[nodiscard]] const StoredWeights& stored(std::size_t candidate) const { return *stored_[candidate]; }
  /// What any quantization could make of the reference, if that had to be known.
  [[nodiscard]] const std::optional<Plan>& everything() const noexcept { return everything_; }

  /// A view of a tensor of the reference, and what every candidate has for it.
  struct Row {
    PlannedTensor view;
    std::vector<std::optional<PlannedTensor>> planned;
    std::vector<std::optional<std::size_t>> stored;
  };
  /// Of tensor `tensor` of reference(). What candidate c lacks is added to missing[c].
  [[nodiscard]] std::vector<Row> rows_of(std::size_t tensor, std::span<std::vector<std::string>> missing) const;

 private:
  Row& row_of(std::vector<Row>& rows, const PlannedTensor& view) const;
  bool match_stored(std::vector<Row>& rows, const PlannedTensor& whole, std::size_t candidate,
                    std::vector<std::string>& missing) const;

  std::span<const Candidate> candidates_;
  StoredWeights reference_;
  std::deque<std::optional<StoredWeights>> stored_;  // of candidates that are checkpoints
  std::vector<std::vector<std::uint32_t>> views_;    // of those that are plans, by source
  std::optional<Plan> everything_;
  std::vector<std::uint32_t> everything_by_source_;
};

}  // namespace nibble
