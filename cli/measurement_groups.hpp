#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/judgement.hpp"
#include "nibble/measure.hpp"

/// What several tensors of a measurement come to, and which of them are the worst.
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
/// What orders tensors and groups of them: the relative error; infinity for what is broken and for errors in weights
/// that were all zero; -1 for what has no figure.
[[nodiscard]] double badness(const ErrorStats& stats, Judgement judgement);

[[nodiscard]] Groups make_groups(const Measurement& measurement, const MeasuredCandidate& candidate);

/// Indices of all tensors that any of these candidates has, by the largest relative error that it has in any of them.
/// Broken ones and errors in weights that were all zero come first, and what has no figure last.
[[nodiscard]] std::vector<std::size_t> worst_first(const Measurement& measurement,
                                                   std::span<const MeasuredCandidate> candidates);
[[nodiscard]] inline std::vector<std::size_t> worst_first(const Measurement& measurement,
                                                          const MeasuredCandidate& candidate) {
  return worst_first(measurement, std::span(&candidate, 1));
}

[[nodiscard]] double bits_of(const MeasuredWeights& tensor, const MeasuredError& error);
[[nodiscard]] double max_abs(const ErrorStats& stats);  ///< NaN without weights

}  // namespace nibble::cli
