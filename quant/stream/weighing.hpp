#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/xxh3.hpp"
#include "formats/calibration/calibration.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/plan.hpp"
#include "quant/quantizers/column_weights.hpp"
#include "quant/quantizers/compensation/input_factor.hpp"
#include "quant/stream/conversion_memory.hpp"

namespace nibble {

/// Which factor compensates the errors of a tensor. Tensors with the same input and block size share one.
struct FactorOf {
  std::size_t input;      ///< in Calibration::inputs()
  std::size_t blocksize;  ///< InputFactor::Options::blocksize
  auto operator<=>(const FactorOf&) const = default;
};

/// A factor, and the XXH3-128 of the second moment that it was made of, as it is stored.
struct MadeFactor {
  FactorOf of;
  Xxh3 second_moment;
  InputFactor factor;
};

/// How much the errors of each column count in a conversion, and how they are compensated: the statistics that its
/// recipe names, by tensor of the plan. Thread-safe.
class Weighing {
 public:
  /// All columns count alike, and nothing is compensated.
  Weighing() = default;

  /// Opens Recipe::calibration, if there is one, and reads the mean squares of all tensors whose absmax is searched,
  /// unless they are compensated. `in` must outlive this. Throws what Calibration does; Error(usage) if the plan
  /// searches nothing, compensates without statistics, or compensates nothing; Error(bad_input) for statistics without
  /// second moments that should compensate, for an input of another width than the tensor, and if no tensor that is
  /// searched or compensated has statistics.
  Weighing(const Reader& in, const Plan& plan, std::uint64_t max_memory);

  /// Of a tensor's columns; empty if it has no statistics, no search would use them, or its errors are compensated.
  [[nodiscard]] ColumnWeights columns_of(const PlannedTensor& tensor) const;

  /// By what a tensor's errors are compensated; nothing: they are not.
  [[nodiscard]] std::optional<FactorOf> factor_of(const PlannedTensor& tensor) const;

  /// Reads a second moment and makes the factor, on the caller's oneTBB arena. `progress` as in InputFactor. Throws
  /// Error(bad_input) if the second moment cannot be used.
  [[nodiscard]] std::unique_ptr<const MadeFactor> make_factor(const FactorOf& of,
                                                              const std::function<void(double)>& progress) const;

  /// The bytes that make_factor() reads.
  [[nodiscard]] std::uint64_t second_moment_bytes(const FactorOf& of) const;

  /// What nibble.json says about the statistics, as a JSON object; empty if there are none. No path.
  [[nodiscard]] const std::string& identity() const noexcept { return identity_; }

  /// Lines about tensors that are searched without statistics or not compensated.
  [[nodiscard]] const std::vector<std::string>& warnings() const noexcept { return warnings_; }

  /// For conversion_memory().
  [[nodiscard]] const StatisticsMemory& memory() const noexcept { return memory_; }

  /// As Reader::check_unchanged().
  void check_unchanged() const {
    if (statistics_) statistics_->check_unchanged();
  }

 private:
  [[nodiscard]] std::optional<std::size_t> input_of(const PlannedTensor& tensor) const;
  [[nodiscard]] bool has_columns_of(const PlannedTensor& tensor, std::size_t input) const;
  [[nodiscard]] std::optional<std::size_t> columns_to_compensate(const CodecSpec& codec);
  void add_memory_of(const FactorOf& of);

  const Reader* in_ = nullptr;
  std::unique_ptr<const Calibration> statistics_;
  std::map<CodecSpec, std::optional<std::size_t>> compensated_columns_;  // of the plan's codecs, if it compensates
  StatisticsMemory memory_;
  std::string identity_;
  std::vector<std::string> warnings_;
};

/// Whether a codec's absmax is searched, so that statistics make a difference.
[[nodiscard]] bool searches_absmax(const CodecSpec& codec);

/// Has the searches of a plan use the statistics in `calibration`. A plan without searches stays as it is: Weighing
/// refuses statistics that have no effect.
void weigh_searches(Plan& plan, const std::filesystem::path& calibration);

}  // namespace nibble
