// Tuples are covered slot by slot from the left: numbers with the same rest are joined.

#include "formats/models/name_products.hpp"

#include <map>

namespace nibble {
namespace {

bool matches(const NumberProduct& product, const NumberTuple& tuple) {
  for (std::size_t i = 0; i < product.size(); ++i)
    if (!product[i].any && !product[i].numbers.contains(tuple[i])) return false;
  return true;
}

using Rests = std::map<std::string, NumberTuples, ByValue>;

// The tuples without their first number, by that.
Rests rests(const NumberTuples& tuples) {
  Rests by_first;
  for (const NumberTuple& tuple : tuples) by_first[tuple.front()].insert(NumberTuple(tuple.begin() + 1, tuple.end()));
  return by_first;
}

// Whether no tuple with another first number has a rest that the product takes.
bool is_alone(const NumberTexts& numbers, const NumberProduct& product, const Rests& all) {
  return std::all_of(all.begin(), all.end(), [&](const auto& other) {
    return numbers.contains(other.first) ||
           std::none_of(other.second.begin(), other.second.end(),
                        [&](const NumberTuple& tuple) { return matches(product, tuple); });
  });
}

}  // namespace

std::vector<NumberProduct> cover(const NumberTuples& chosen, const NumberTuples* all) {
  if (chosen.begin()->empty()) return {{}};
  const Rests all_rests = all != nullptr ? rests(*all) : Rests();
  std::map<NumberTuples, NumberTexts> groups;
  std::vector<const NumberTuples*> order;
  for (const auto& [number, rest] : rests(chosen)) {
    const auto [group, is_new] = groups.try_emplace(rest);
    if (is_new) order.push_back(&group->first);
    group->second.insert(number);
  }
  std::vector<NumberProduct> products;
  for (const NumberTuples* rest : order) {
    const NumberTexts& numbers = groups[*rest];
    NumberTuples existing;
    if (all != nullptr)
      for (const std::string& number : numbers)
        existing.insert(all_rests.at(number).begin(), all_rests.at(number).end());
    for (NumberProduct& product : cover(*rest, all != nullptr ? &existing : nullptr)) {
      const bool any = all != nullptr && numbers.size() > 1 && is_alone(numbers, product, all_rests);
      product.insert(product.begin(), NumberSlot{numbers, any});
      products.push_back(std::move(product));
    }
  }
  return products;
}

CutName cut_at_numbers(std::string_view name) {
  CutName result{{""}, {}};
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view piece = name.substr(begin, end - begin);
    if (begin > 0) result.texts.back() += '.';
    if (!piece.empty() && piece.find_first_not_of("0123456789") == std::string_view::npos) {
      if (result.numbers.size() == max_numbers) return {{std::string(name)}, {}};
      result.numbers.emplace_back(piece);
      result.texts.emplace_back();
    } else {
      result.texts.back() += piece;
    }
    begin = end + 1;
  }
  return result;
}

}  // namespace nibble
