#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

/// Names as texts with slots for the numbers between their dots: the layers of a model have one such text in common.
namespace nibble {

/// The numbers of a name, as they are spelled.
using NumberTuple = std::vector<std::string>;

/// By value: "9" before "10".
struct ByValue {
  bool operator()(const std::string& a, const std::string& b) const {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }
  bool operator()(const NumberTuple& a, const NumberTuple& b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), *this);
  }
};
using NumberTexts = std::set<std::string, ByValue>;
using NumberTuples = std::set<NumberTuple, ByValue>;

/// A name with more numbers is not cut: cover() recurses once for each number, and layers do not have that many.
inline constexpr std::size_t max_numbers = 16;

/// `model.layers.3.mlp.weight`: "model.layers." and ".mlp.weight", and 3.
struct CutName {
  std::vector<std::string> texts;  ///< one more than numbers
  NumberTuple numbers;
};
[[nodiscard]] CutName cut_at_numbers(std::string_view name);

/// The numbers that a slot may have. `any`: the slot may take every number, because that matches no tuple of `all` that
/// was not chosen.
struct NumberSlot {
  NumberTexts numbers;
  bool any = false;
};
using NumberProduct = std::vector<NumberSlot>;

/// Products of sets that together have each tuple of `chosen`, which is not empty, once, and no other. Tuples have
/// equal sizes. Without `all`, no slot is `any`.
[[nodiscard]] std::vector<NumberProduct> cover(const NumberTuples& chosen, const NumberTuples* all = nullptr);

}  // namespace nibble
