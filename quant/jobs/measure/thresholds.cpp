#include "nibble/thresholds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "nibble/error.hpp"
#include "quant/jobs/measure/pairing.hpp"
#include "quant/jobs/plan/user_pattern.hpp"

namespace nibble {
namespace {

double figure_of(const ErrorStats& stats, Threshold::Figure figure) {
  switch (figure) {
    case Threshold::Figure::max_rmse:
      return stats.rmse();
    case Threshold::Figure::min_sqnr_db:
      return stats.sqnr_db();
    default:
      return stats.cosine();
  }
}

// Written so that a NaN breaks the limit, whether it is the figure or a weight that was a number before.
bool keeps(const MeasuredWeights& reference, const ErrorStats& stats, const Threshold& threshold) {
  if (stats.lost > 0 || stats.nan + stats.inf > reference.stats.nan + reference.stats.inf) return false;
  if (stats.count == 0) return true;
  const double value = figure_of(stats, threshold.figure);
  return threshold.figure == Threshold::Figure::max_rmse ? value <= threshold.limit : value >= threshold.limit;
}

UserPattern pattern_of(const Threshold& threshold) { return {to_string(threshold.figure), threshold.pattern}; }

}  // namespace

std::string_view to_string(Threshold::Figure figure) {
  switch (figure) {
    case Threshold::Figure::max_rmse:
      return "max-rmse";
    case Threshold::Figure::min_sqnr_db:
      return "min-sqnr";
    default:
      return "min-cosine";
  }
}

void check_patterns(const Reader& reference, std::span<const Candidate> candidates,
                    const std::vector<Threshold>& thresholds) {
  if (std::all_of(thresholds.begin(), thresholds.end(), [](const Threshold& one) { return one.pattern.empty(); }))
    return;
  const Pairing pairing(reference, candidates);
  std::vector<std::string> names;  // measured, or missing: both can break a limit
  std::vector<std::vector<std::string>> missing(candidates.size());
  for (std::size_t t = 0; t < pairing.reference().size(); ++t)
    for (const Pairing::Row& row : pairing.rows_of(t, missing)) names.push_back(row.view.info.name);
  for (std::vector<std::string>& of_candidate : missing)
    for (std::string& name : of_candidate) names.push_back(std::move(name));
  for (const Threshold& threshold : thresholds) {
    if (threshold.pattern.empty()) continue;
    const UserPattern pattern = pattern_of(threshold);
    if (std::none_of(names.begin(), names.end(), [&](const auto& name) { return pattern.matches(name); }))
      pattern.fail_unmatched([&](const auto& visit) {
        for (const std::string& name : names) visit(name);
      });
  }
}

std::vector<Violation> violations(const Measurement& measurement, const std::vector<Threshold>& thresholds) {
  std::vector<Violation> found;
  for (const Threshold& threshold : thresholds) {
    std::optional<UserPattern> pattern;
    if (!threshold.pattern.empty()) pattern = pattern_of(threshold);
    bool any = false;
    const auto matches = [&](const std::string& name) {
      const bool hit = !pattern || pattern->matches(name);
      any = any || hit;
      return hit;
    };
    std::vector<bool> is_meant(measurement.tensors.size());
    for (std::size_t t = 0; t < is_meant.size(); ++t) is_meant[t] = matches(measurement.tensors[t].info.name);
    for (std::size_t c = 0; c < measurement.candidates.size(); ++c) {
      const MeasuredCandidate& candidate = measurement.candidates[c];
      for (std::size_t t = 0; t < is_meant.size(); ++t) {
        const auto& error = candidate.tensors[t];
        if (!is_meant[t] || !error || keeps(measurement.tensors[t], error->stats, threshold)) continue;
        found.push_back({c, t, measurement.tensors[t].info.name, threshold, figure_of(error->stats, threshold.figure)});
      }
      for (const std::string& name : candidate.missing)
        if (matches(name)) found.push_back({c, is_meant.size(), name, threshold, std::nan("")});
    }
    if (!any && pattern)
      pattern->fail_unmatched([&](const auto& visit) {
        for (const MeasuredWeights& weights : measurement.tensors) visit(weights.info.name);
        for (const MeasuredCandidate& candidate : measurement.candidates)
          for (const std::string& name : candidate.missing) visit(name);
      });
  }
  return found;
}

}  // namespace nibble
