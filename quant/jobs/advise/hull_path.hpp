#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// The multiple-choice knapsack problem: one choice for every item, at the least cost within a number of bytes.
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

/// From the smallest choice of every item to the one of least cost, beginning with the steps that save most per byte;
/// of equal steps, the one of the earlier item comes first. Wherever the path is cut, no other choice of that size
/// costs less.
struct HullPath {
  std::vector<std::size_t> smallest;  ///< index of a choice, by item
  std::uint64_t min_bytes = 0;
  std::vector<HullStep> steps;
};

/// Every item has at least one choice, and costs are finite. Of equal choices the first is taken.
[[nodiscard]] HullPath hull_path(std::span<const std::vector<Choice>> items);

/// A choice for every item, path.min_bytes <= limit: as many steps as fit, and after the first that does not,
/// further ones that do, in order.
///
/// A fraction of that first step would make the result the optimum of the linear relaxation. So the cost exceeds the
/// optimum by at most what this one step would save.
[[nodiscard]] std::vector<std::size_t> walk(const HullPath& path, std::uint64_t limit);

}  // namespace nibble
