// A kind of names is a text with slots for numbers, and its chosen names are tuples of numbers. They are covered by
// products of sets, slot by slot from the left: numbers that have the same rest go together. Whether a slot may be \d+
// is decided by the tuples of the kind alone, for a pattern of its text matches no name of another kind.

#include "quant/name_patterns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

namespace nibble {
namespace {

using Tuple = std::vector<std::string>;

struct ByValue {
  bool operator()(const std::string& a, const std::string& b) const {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }
  bool operator()(const Tuple& a, const Tuple& b) const {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), *this);
  }
};
using NumberTexts = std::set<std::string, ByValue>;
using Tuples = std::set<Tuple, ByValue>;

struct Slot {
  NumberTexts numbers;
  bool any = false;
};
using Product = std::vector<Slot>;

bool matches(const Product& product, const Tuple& tuple) {
  for (std::size_t i = 0; i < product.size(); ++i)
    if (!product[i].any && !product[i].numbers.contains(tuple[i])) return false;
  return true;
}

// The tuples without their first number, by that.
std::map<std::string, Tuples, ByValue> rests(const Tuples& tuples) {
  std::map<std::string, Tuples, ByValue> by_first;
  for (const Tuple& tuple : tuples) by_first[tuple.front()].insert(Tuple(tuple.begin() + 1, tuple.end()));
  return by_first;
}

std::vector<Product> cover(const Tuples& chosen, const Tuples& all) {
  if (chosen.begin()->empty()) return {{}};
  const auto all_rests = rests(all);
  std::map<Tuples, NumberTexts> groups;
  std::vector<const Tuples*> order;
  for (const auto& [number, rest] : rests(chosen)) {
    const auto [group, is_new] = groups.try_emplace(rest);
    if (is_new) order.push_back(&group->first);
    group->second.insert(number);
  }
  std::vector<Product> products;
  for (const Tuples* rest : order) {
    const NumberTexts& numbers = groups[*rest];
    Tuples existing;
    for (const std::string& number : numbers) existing.insert(all_rests.at(number).begin(), all_rests.at(number).end());
    for (Product& product : cover(*rest, existing)) {
      const bool alone = std::all_of(all_rests.begin(), all_rests.end(), [&](const auto& other) {
        return numbers.contains(other.first) ||
               std::none_of(other.second.begin(), other.second.end(),
                            [&](const Tuple& tuple) { return matches(product, tuple); });
      });
      product.insert(product.begin(), Slot{numbers, alone && numbers.size() > 1});
      products.push_back(std::move(product));
    }
  }
  return products;
}

// A name cut at its numbers.
struct CutName {
  std::vector<std::string> texts;  // one more than numbers
  Tuple numbers;
};

CutName cut_at_numbers(std::string_view name) {
  CutName result{{""}, {}};
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view piece = name.substr(begin, end - begin);
    if (begin > 0) result.texts.back() += '.';
    if (!piece.empty() && piece.find_first_not_of("0123456789") == std::string_view::npos) {
      result.numbers.emplace_back(piece);
      result.texts.emplace_back();
    } else {
      result.texts.back() += piece;
    }
    begin = end + 1;
  }
  return result;
}

struct Kind {
  Tuples all;
  Tuples chosen;
};

}  // namespace

std::string exact_pattern(std::string_view text) {
  std::string pattern;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool word = (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z');
    if (word || byte == '_') {
      pattern += text[i];
    } else if (byte < 0x20 || byte == 0x7F) {
      pattern += fmt::format("\\x{:02x}", byte);
    } else if (byte < 0x80) {
      pattern += '\\';
      pattern += text[i];
    } else {  // a code point: two, three or four bytes
      const std::size_t more = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
      std::uint32_t point = byte & (0x3FU >> more);
      for (std::size_t k = 0; k < more && i + 1 < text.size(); ++k)
        point = point << 6 | (static_cast<unsigned char>(text[++i]) & 0x3FU);
      pattern += fmt::format("\\x{{{:x}}}", point);
    }
  }
  return pattern;
}

std::vector<std::string> name_patterns(const TensorList& tensors, const std::vector<bool>& chosen) {
  std::map<std::vector<std::string>, Kind> kinds;
  std::vector<const std::vector<std::string>*> order;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (!chosen[t]) continue;
    const auto [kind, is_new] = kinds.try_emplace(cut_at_numbers(tensors.name(t)).texts);
    if (is_new) order.push_back(&kind->first);
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    CutName name = cut_at_numbers(tensors.name(t));
    const auto kind = kinds.find(name.texts);
    if (kind == kinds.end()) continue;
    if (chosen[t]) kind->second.chosen.insert(name.numbers);
    kind->second.all.insert(std::move(name.numbers));
  }
  std::vector<std::string> patterns;
  for (const std::vector<std::string>* texts : order) {
    const Kind& kind = kinds[*texts];
    for (const Product& product : cover(kind.chosen, kind.all)) {
      std::string& pattern = patterns.emplace_back(exact_pattern(texts->front()));
      for (std::size_t i = 0; i < product.size(); ++i) {
        const NumberTexts& numbers = product[i].numbers;
        pattern += product[i].any        ? "\\d+"
                   : numbers.size() == 1 ? *numbers.begin()
                                         : fmt::format("({})", fmt::join(numbers, "|"));
        pattern += exact_pattern((*texts)[i + 1]);
      }
    }
  }
  return patterns;
}

}  // namespace nibble
