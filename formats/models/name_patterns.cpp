// Names of one kind differ only in their numbers. Only the tuples of that kind decide whether a slot may be \d+,
// because a pattern with its text matches no name of another kind.

#include "formats/models/name_patterns.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <utility>

#include "formats/models/name_products.hpp"

namespace nibble {
namespace {

struct Kind {
  NumberTuples all;
  NumberTuples chosen;
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
    for (const NumberProduct& product : cover(kind.chosen, &kind.all)) {
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
