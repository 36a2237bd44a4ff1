#include "nibble/thresholds.hpp"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>

#include "nibble/error.hpp"
#include "quant/pairing.hpp"

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

// Written so that what is not a number breaks the limit, be it the figure or weights that were numbers before.
bool keeps(const MeasuredWeights& reference, const ErrorStats& stats, const Threshold& threshold) {
  if (stats.lost > 0 || stats.nan + stats.inf > reference.stats.nan + reference.stats.inf) return false;
  if (stats.count == 0) return true;
  const double value = figure_of(stats, threshold.figure);
  return threshold.figure == Threshold::Figure::max_rmse ? value <= threshold.limit : value >= threshold.limit;
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::unique_ptr<RE2> compiled(const Threshold& threshold) {
  auto pattern = std::make_unique<RE2>(threshold.pattern, RE2::Quiet);
  if (!pattern->ok())
    throw Error(Errc::usage, fmt::format("{} '{}': {}", option_name(threshold.figure), printable(threshold.pattern),
                                         printable(pattern->error())));
  return pattern;
}

[[noreturn]] void fail_unmatched(const Threshold& threshold) {
  throw Error(Errc::usage,
              fmt::format("{} '{}' matches no tensor", option_name(threshold.figure), printable(threshold.pattern)));
}

}  // namespace

std::string_view option_name(Threshold::Figure figure) {
  switch (figure) {
    case Threshold::Figure::max_rmse:
      return "--max-rmse";
    case Threshold::Figure::min_sqnr_db:
      return "--min-sqnr";
    default:
      return "--min-cosine";
  }
}

Threshold parse_threshold(Threshold::Figure figure, const std::string& option, const std::string& text) {
  const std::size_t equals = text.rfind('=');
  const bool has_pattern = equals != std::string::npos;
  const auto limit = number(std::string_view(text).substr(has_pattern ? equals + 1 : 0));
  if (!limit)
    throw Error(Errc::usage,
                fmt::format("{} '{}': neither a number nor of the form RE=NUMBER", option, printable(text)));
  if (equals == 0) throw Error(Errc::usage, fmt::format("{} '{}': the pattern is empty", option, printable(text)));
  Threshold threshold{figure, *limit, has_pattern ? text.substr(0, equals) : ""};
  (void)compiled(threshold);  // measuring takes long: better to say it now
  return threshold;
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
    const auto pattern = compiled(threshold);
    if (std::none_of(names.begin(), names.end(), [&](const auto& name) { return RE2::FullMatch(name, *pattern); }))
      fail_unmatched(threshold);
  }
}

std::vector<Violation> violations(const Measurement& measurement, const std::vector<Threshold>& thresholds) {
  std::vector<Violation> found;
  for (const Threshold& threshold : thresholds) {
    std::unique_ptr<RE2> pattern;
    if (!threshold.pattern.empty()) pattern = compiled(threshold);
    bool any = false;
    const auto matches = [&](const std::string& name) {
      const bool hit = !pattern || RE2::FullMatch(name, *pattern);
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
    if (!any && pattern) fail_unmatched(threshold);
  }
  return found;
}

}  // namespace nibble
