#include "formats/models/name_groups.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>

#include "formats/models/name_products.hpp"

namespace nibble {
namespace {

// A number that has a successor in the same spelling: not "007", and not of 30 digits.
std::optional<std::uint64_t> value_of(const std::string& number) {
  constexpr std::size_t max_digits = 18;
  if (number.size() > max_digits || (number.size() > 1 && number.front() == '0')) return std::nullopt;
  std::uint64_t value = 0;
  std::from_chars(number.data(), number.data() + number.size(), value);
  return value;
}

// "7", "{0..31}", "{0,2,5..9}".
std::string shown(const NumberTexts& numbers) {
  if (numbers.size() == 1) return *numbers.begin();
  std::string text;
  for (auto first = numbers.begin(); first != numbers.end();) {
    auto last = first, next = std::next(first);
    std::size_t length = 1;
    for (auto value = value_of(*first); next != numbers.end() && value && value_of(*next) == *value + 1; ++length) {
      value = value_of(*next);
      last = next++;
    }
    text += (text.empty() ? "{" : ",") + *first;
    if (length > 1) text += (length == 2 ? "," : "..") + *last;
    first = next;
  }
  return text + "}";
}

// Calls f(tuple) for every tuple of a product.
template <class F> void for_each_tuple(const NumberProduct& product, NumberTuple& tuple, F&& f) {
  if (tuple.size() == product.size()) return f(tuple);
  for (const std::string& number : product[tuple.size()].numbers) {
    tuple.push_back(number);
    for_each_tuple(product, tuple, f);
    tuple.pop_back();
  }
}

}  // namespace

std::vector<NameGroup> name_groups(const std::vector<std::string>& names) {
  std::map<std::vector<std::string>, std::map<NumberTuple, std::size_t>> kinds;
  for (std::size_t i = 0; i < names.size(); ++i) {
    CutName name = cut_at_numbers(names[i]);
    kinds[std::move(name.texts)][std::move(name.numbers)] = i;
  }
  std::vector<NameGroup> groups;
  for (const auto& kind : kinds) {
    const auto& texts = kind.first;
    const auto& indices = kind.second;
    NumberTuples tuples;
    for (const auto& [tuple, index] : indices) tuples.insert(tuple);
    for (const NumberProduct& product : cover(tuples)) {
      NameGroup group{texts.front(), names.size(), 0};
      for (std::size_t i = 0; i < product.size(); ++i) group.text += shown(product[i].numbers) + texts[i + 1];
      NumberTuple tuple;
      for_each_tuple(product, tuple, [&](const NumberTuple& member) {
        group.first = std::min(group.first, indices.at(member));
        ++group.count;
      });
      groups.push_back(std::move(group));
    }
  }
  std::sort(groups.begin(), groups.end(), [](const NameGroup& a, const NameGroup& b) { return a.first < b.first; });
  return groups;
}

}  // namespace nibble
