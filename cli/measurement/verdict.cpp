#include "cli/measurement/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/measurement/judgement.hpp"
#include "cli/measurement/measurement_groups.hpp"
#include "cli/terminal/figures.hpp"
#include "nibble/error.hpp"

namespace nibble::cli {
namespace {

// "20.1 to 20.7 dB"
std::string range(double low, double high) {
  const std::string from = decibels(low, 1), to = decibels(high, 1);
  return from == to ? from + " dB" : from + " to " + to + " dB";
}

void add(Verdict& verdict, std::size_t t, const MeasuredWeights& tensor, const MeasuredError& error) {
  ++verdict.tensors;
  verdict.min_normal = std::fmin(verdict.min_normal, error.normal_sqnr_db);
  verdict.max_normal = std::fmax(verdict.max_normal, error.normal_sqnr_db);
  if (!has_error(tensor, error)) {
    ++verdict.exact;
    return;
  }
  if (verdict.tensors - verdict.exact == 1) verdict.worst = t;  // the worst tensors come first
  switch (judge(tensor, error)) {
    case Judgement::broken:
      ++verdict.broken;
      return;
    case Judgement::worse:
      ++verdict.worse;
      break;
    default:
      break;
  }
  verdict.min_db = std::min(verdict.min_db, error.stats.sqnr_db());
  verdict.max_db = std::max(verdict.max_db, error.stats.sqnr_db());
}

}  // namespace

std::string Verdict::text(const Measurement& measurement) const {
  std::string line = fmt::format("{}: {}", form.text(), counted(tensors, "tensor"));
  if (tensors == exact) return line + " without any error";
  // Only broken tensors have no figure; the line mentions them below.
  if (min_db <= max_db) line += " at " + range(min_db, max_db);
  if (exact > 0) line += fmt::format(" ({} exact)", exact);
  if (broken > 0)
    line += fmt::format(", {} BROKEN (weights lost: NaN, infinite, beyond fp32, or not 0 where all were 0)", broken);
  if (const bool known = !std::isnan(min_normal); worse > 0)
    line += fmt::format(", {} worse than expected", worse);
  else if (known && broken == 0)
    line += ", as expected";
  if (!std::isnan(min_normal) && std::isfinite(max_normal))
    line += fmt::format(" (normal weights: {})", range(min_normal, max_normal));
  return line + fmt::format("; worst: {}", printable(measurement.tensors[worst].info.name));
}

std::vector<Verdict> verdicts(const Measurement& measurement, const MeasuredCandidate& candidate) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<Verdict> found;
  const auto of = [&](const StoredForm& form) -> Verdict& {
    const auto same = std::ranges::find(found, form, &Verdict::form);
    if (same != found.end()) return *same;
    Verdict verdict{.form = form};
    verdict.min_db = infinity;
    verdict.max_db = -infinity;
    verdict.min_normal = verdict.max_normal = std::nan("");
    return found.emplace_back(verdict);
  };
  const auto each = [&](std::size_t t, auto&& call) {
    if (candidate.tensors[t] && is_converted(outcome_of(measurement.tensors[t], *candidate.tensors[t])))
      call(measurement.tensors[t], *candidate.tensors[t]);
  };
  for (const bool quantized : {true, false})
    for (std::size_t t = 0; t < candidate.tensors.size(); ++t)
      each(t, [&](const MeasuredWeights&, const MeasuredError& error) {
        if (error.form.quantized() == quantized) (void)of(error.form);
      });
  for (const std::size_t t : worst_first(measurement, candidate))
    each(t, [&](const MeasuredWeights& tensor, const MeasuredError& error) { add(of(error.form), t, tensor, error); });
  return found;
}

}  // namespace nibble::cli
