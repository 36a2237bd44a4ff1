#include "core/text/suggest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr std::size_t max_length = 40;  // longer texts are not mistyped words
constexpr std::size_t min_beginning = 3;
constexpr std::size_t letters_per_error = 3;  // a word of six letters may have two wrong letters

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

std::string digits(std::string_view text) {
  std::string result;
  std::copy_if(text.begin(), text.end(), std::back_inserter(result), [](char c) { return c >= '0' && c <= '9'; });
  return result;
}

// How many letters have to be changed, removed, inserted, or swapped with their neighbour.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = std::exchange(last, row);
  }
  return last.back();
}

}  // namespace

std::optional<std::string_view> nearest(std::string_view given, std::span<const std::string_view> known,
                                        std::span<const Synonym> synonyms) {
  if (given.size() > max_length) return std::nullopt;
  const std::string typed = lower(given);
  for (const std::string_view word : known)
    if (lower(word) == typed) return word;
  for (const auto& [other, word] : synonyms)
    if (other == typed && std::find(known.begin(), known.end(), word) != known.end()) return word;
  const auto begins = [&](std::string_view word) { return lower(word).starts_with(typed); };
  if (typed.size() >= min_beginning && std::count_if(known.begin(), known.end(), begins) == 1)
    return *std::find_if(known.begin(), known.end(), begins);
  std::optional<std::string_view> best;
  std::size_t min_errors = std::max<std::size_t>(1, typed.size() / letters_per_error) + 1;
  for (const std::string_view word : known) {
    if (digits(word) != digits(typed)) continue;
    const std::size_t errors = distance(typed, lower(word));
    if (errors < min_errors && errors < word.size()) min_errors = errors, best = word;
  }
  return best;
}

std::string none_of(std::string_view given, std::span<const std::string_view> known,
                    std::span<const Synonym> synonyms) {
  const auto meant = nearest(given, known, synonyms);
  return fmt::format("'{}' is not one of {}{}", printable(given), fmt::join(known, ", "),
                     meant ? fmt::format(": did you mean {}?", *meant) : "");
}

}  // namespace nibble
