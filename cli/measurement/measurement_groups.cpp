#include "cli/measurement/measurement_groups.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace nibble::cli {

double badness(const ErrorStats& stats, Judgement judgement) {
  if (judgement == Judgement::broken) return std::numeric_limits<double>::infinity();
  const double value = stats.rel_rmse();
  if (std::isnan(value)) return stats.square > 0 ? std::numeric_limits<double>::infinity() : -1;
  return value;
}

void OutputErrors::add(const MeasuredWeights& tensor, const MeasuredError& error) {
  if (error.output.count == 0) return;
  ++tensors;
  weights += tensor.info.elements();
  cost += static_cast<double>(tensor.info.elements()) * error.output.relative_square();
}

double OutputErrors::rel_rmse() const {
  return tensors == 0 ? std::nan("") : std::sqrt(cost / static_cast<double>(weights));
}

double OutputErrors::sqnr_db() const {
  return tensors == 0 ? std::nan("") : 10 * std::log10(static_cast<double>(weights) / cost);
}

void Group::add(const MeasuredWeights& tensor, const MeasuredError& error) {
  ++tensors;
  weights += tensor.info.elements();
  bytes += error.bytes;
  exact += has_error(tensor, error) ? 0 : 1;
  stats.add(error.stats);
  output.add(tensor, error);
  judgement = std::max(judgement, judge(tensor, error));
}

double Group::bits() const {
  return weights == 0 ? std::nan("") : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
}

void SplitGroup::add(const MeasuredWeights& tensor, const MeasuredError& error) {
  const Outcome outcome = outcome_of(tensor, error);
  (*this)[outcome].add(tensor, error);
  if (outcome != Outcome::kept) converted.add(tensor, error);
}

Groups make_groups(const Measurement& measurement, const MeasuredCandidate& candidate) {
  Groups groups;
  for (std::size_t t = 0; t < candidate.tensors.size(); ++t) {
    if (!candidate.tensors[t]) continue;
    const MeasuredWeights& tensor = measurement.tensors[t];
    const MeasuredError& error = *candidate.tensors[t];
    groups.total.add(tensor, error);
    groups.all.add(tensor, error);
    groups.kinds[tensor.kind].add(tensor, error);
    if (tensor.layer) groups.layers[*tensor.layer].add(tensor, error);
  }
  return groups;
}

std::vector<std::size_t> worst_first(const Measurement& measurement, std::span<const MeasuredCandidate> candidates) {
  std::vector<double> largest(measurement.tensors.size(), -2);
  for (const MeasuredCandidate& candidate : candidates)
    for (std::size_t t = 0; t < largest.size(); ++t)
      if (const auto& error = candidate.tensors[t])
        largest[t] = std::max(largest[t], badness(error->stats, judge(measurement.tensors[t], *error)));
  std::vector<std::size_t> order(largest.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t t) { return largest[t] == -2; });
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return largest[a] > largest[b]; });
  return order;
}

OutputErrors output_of(const MeasuredWeights& tensor, const MeasuredError& error) {
  OutputErrors output;
  output.add(tensor, error);
  return output;
}

double bits_of(const MeasuredWeights& tensor, const MeasuredError& error) {
  const std::uint64_t weights = tensor.info.elements();
  return weights == 0 ? std::nan("") : 8 * static_cast<double>(error.bytes) / static_cast<double>(weights);
}

double max_abs(const ErrorStats& stats) { return stats.count == 0 ? std::nan("") : stats.max_abs; }

}  // namespace nibble::cli
