#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// The multiple-choice knapsack: one choice for every item, the least cost within a number of bytes.
namespace nibble {

struct Choice {
  std::uint64_t bytes = 0;
  double cost = 0;
};

/// From one corner of an item's lower convex hull to the next: more bytes, less cost.
struct HullStep {
  std::size_t item = 0;
  std::size_t to = 0;  ///< index of the choice
  std::uint64_t bytes = 0;
  double saved = 0;
};

/// From the smallest choice of every item to the one of least cost, the steps that save most per byte first; of equal
/// ones that of the earlier item. Where the path is cut at any step, nothing that size costs less.
struct HullPath {
  std::vector<std::size_t> smallest;  ///< index of a choice, by item
  std::uint64_t smallest_bytes = 0;
  std::vector<HullStep> steps;
};

/// Every item has at least one choice, and costs are finite. Of equal choices the first is taken.
[[nodiscard]] HullPath hull_path(std::span<const std::vector<Choice>> items);

/// A choice for every item, path.smallest_bytes <= limit: as many steps as fit, and after the first that does not,
/// further ones that do, in order.
///
/// With a part of that first step the result would be the optimum of the linear relaxation. So it costs at most what
/// this one step saves more than the best there is.
[[nodiscard]] std::vector<std::size_t> walk(const HullPath& path, std::uint64_t limit);

}  // namespace nibble
