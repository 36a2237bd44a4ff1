#include "quant/jobs/advise/hull_path.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace nibble {
namespace {

double saved_per_byte(const Choice& from, const Choice& to) {
  return (from.cost - to.cost) / static_cast<double>(to.bytes - from.bytes);
}

// The corners of the lower convex hull, by size, and points on its edges: these smaller steps may still fit.
std::vector<std::size_t> corners(const std::vector<Choice>& choices) {
  std::vector<std::size_t> order(choices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return choices[a].bytes != choices[b].bytes ? choices[a].bytes < choices[b].bytes
                                                : choices[a].cost < choices[b].cost;
  });
  std::vector<std::size_t> hull;
  for (const std::size_t next : order) {
    const Choice& choice = choices[next];
    if (!hull.empty() && choice.cost >= choices[hull.back()].cost) continue;  // larger, and no better
    const auto dents = [&] {
      const Choice& last = choices[hull.back()];
      return saved_per_byte(choices[hull[hull.size() - 2]], last) < saved_per_byte(last, choice);
    };
    while (hull.size() >= 2 && dents()) hull.pop_back();
    hull.push_back(next);
  }
  return hull;
}

}  // namespace

HullPath hull_path(std::span<const std::vector<Choice>> items) {
  HullPath path;
  std::vector<double> rates;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::vector<std::size_t> hull = corners(items[i]);
    path.smallest.push_back(hull.front());
    path.min_bytes += items[i][hull.front()].bytes;
    double rate = std::numeric_limits<double>::infinity();
    for (std::size_t h = 1; h < hull.size(); ++h) {
      const Choice& from = items[i][hull[h - 1]];
      const Choice& to = items[i][hull[h]];
      rate = std::min(rate, saved_per_byte(from, to));  // rounding must not reverse the order of one item's steps
      rates.push_back(rate);
      path.steps.push_back({i, hull[h], to.bytes - from.bytes, from.cost - to.cost});
    }
  }
  std::vector<std::size_t> order(path.steps.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return rates[a] > rates[b]; });
  std::vector<HullStep> sorted;
  sorted.reserve(order.size());
  for (const std::size_t s : order) sorted.push_back(path.steps[s]);
  path.steps = std::move(sorted);
  return path;
}

std::vector<std::size_t> walk(const HullPath& path, std::uint64_t limit) {
  std::vector<std::size_t> choices = path.smallest;
  std::vector<bool> ended(choices.size());  // a step that is left out ends its item: the next one leads on from there
  std::uint64_t left = limit - path.min_bytes;
  for (const HullStep& step : path.steps) {
    if (ended[step.item]) continue;
    if (step.bytes > left) {
      ended[step.item] = true;
      continue;
    }
    left -= step.bytes;
    choices[step.item] = step.to;
  }
  return choices;
}

}  // namespace nibble
