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

/// Figures of all weights together, not means of figures.
struct Group {
  std::uint64_t tensors = 0;
  std::uint64_t weights = 0;
  std::uint64_t bytes = 0;
  std::uint64_t exact = 0;  ///< tensors without any error
  ErrorStats stats;
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

[[nodiscard]] double bits_of(const MeasuredWeights& tensor, const MeasuredError& error);
[[nodiscard]] double max_abs(const ErrorStats& stats);  ///< NaN without weights

}  // namespace nibble::cli
