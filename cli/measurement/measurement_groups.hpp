#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/measurement/judgement.hpp"
#include "nibble/measure.hpp"

/// The figures of several tensors of a measurement together, and which of them are the worst.
namespace nibble::cli {

/// Errors of layers' outputs. The outputs of different layers have different scales, so each error is relative to its
/// own layer and counts by the number n of the layer's weights, as in the cost of an advice (nibble/advise.hpp).
struct OutputErrors {
  std::uint64_t tensors = 0;  ///< that have statistics
  std::uint64_t weights = 0;
  double cost = 0;  ///< sum over the tensors of n * (sum e^2 / sum w^2)

  void add(const MeasuredWeights& tensor, const MeasuredError& error);  ///< nothing without statistics
  // NaN without statistics.
  [[nodiscard]] double rel_rmse() const;  ///< sqrt(cost / weights)
  [[nodiscard]] double sqnr_db() const;   ///< 10 log10(weights / cost); infinite if no weight differs
};

/// Figures of all weights together, not means of figures.
struct Group {
  std::uint64_t tensors = 0;
  std::uint64_t weights = 0;
  std::uint64_t bytes = 0;
  std::uint64_t exact = 0;  ///< tensors without any error
  ErrorStats stats;
  OutputErrors output;
  Judgement judgement = Judgement::unknown;  ///< of the worst

  void add(const MeasuredWeights& tensor, const MeasuredError& error);
  [[nodiscard]] double bits() const;  ///< for each weight; NaN without weights
  [[nodiscard]] bool is_exact() const noexcept { return exact == tensors; }
};

struct SplitGroup : ByOutcome<Group> {
  Group converted;  ///< quantized or cast

  void add(const MeasuredWeights& tensor, const MeasuredError& error);
};

struct Groups {
  Group total;
  SplitGroup all;
  std::map<std::string, SplitGroup> kinds;
  std::map<std::uint64_t, SplitGroup> layers;
};
/// The key by which tensors and groups of tensors are sorted: the relative error; infinity for broken ones and for
/// errors in weights that were all zero; -1 if there is no figure.
[[nodiscard]] double badness(const ErrorStats& stats, Judgement judgement);

[[nodiscard]] Groups make_groups(const Measurement& measurement, const MeasuredCandidate& candidate);

/// Indices of all tensors that any of these candidates has, sorted by the largest relative error in any candidate.
/// Broken ones and errors in weights that were all zero come first, those without a figure last.
[[nodiscard]] std::vector<std::size_t> worst_first(const Measurement& measurement,
                                                   std::span<const MeasuredCandidate> candidates);
[[nodiscard]] inline std::vector<std::size_t> worst_first(const Measurement& measurement,
                                                          const MeasuredCandidate& candidate) {
  return worst_first(measurement, std::span(&candidate, 1));
}

[[nodiscard]] OutputErrors output_of(const MeasuredWeights& tensor, const MeasuredError& error);
[[nodiscard]] double bits_of(const MeasuredWeights& tensor, const MeasuredError& error);
[[nodiscard]] double max_abs(const ErrorStats& stats);  ///< NaN without weights

}  // namespace nibble::cli
