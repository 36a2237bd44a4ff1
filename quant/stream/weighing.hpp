#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "formats/calibration/calibration.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/plan.hpp"
#include "quant/quantizers/column_weights.hpp"
#include "quant/stream/conversion_memory.hpp"

namespace nibble {

/// How much the errors of each column count in a conversion: the statistics that its recipe names, by tensor of the
/// plan. Thread-safe.
class Weighing {
 public:
  /// All columns count alike.
  Weighing() = default;

  /// Opens Recipe::calibration, if there is one, and reads the mean squares of all tensors whose absmax is searched.
  /// `in` must outlive this. Throws what Calibration does; Error(usage) if the plan searches nothing; Error(bad_input)
  /// for an input of another width than the tensor, and if no tensor that is searched has statistics.
  Weighing(const Reader& in, const Plan& plan, std::uint64_t max_memory);

  /// Of a tensor's columns; empty if it has no statistics or no search would use them.
  [[nodiscard]] ColumnWeights columns_of(const PlannedTensor& tensor) const;

  /// What nibble.json says about the statistics, as a JSON object; empty if there are none. No path.
  [[nodiscard]] const std::string& identity() const noexcept { return identity_; }

  /// A line about searched tensors without statistics; empty if all have them.
  [[nodiscard]] const std::string& warning() const noexcept { return warning_; }

  /// For conversion_memory().
  [[nodiscard]] const StatisticsMemory& memory() const noexcept { return memory_; }

  /// As Reader::check_unchanged().
  void check_unchanged() const {
    if (statistics_) statistics_->check_unchanged();
  }

 private:
  [[nodiscard]] std::optional<std::size_t> input_of(const PlannedTensor& tensor) const;
  [[nodiscard]] bool has_columns_of(const PlannedTensor& tensor, std::size_t input) const;

  const Reader* in_ = nullptr;
  std::unique_ptr<const Calibration> statistics_;
  StatisticsMemory memory_;
  std::string identity_, warning_;
};

/// Whether a codec's absmax is searched, so that statistics make a difference.
[[nodiscard]] bool searches_absmax(const CodecSpec& codec);

}  // namespace nibble
