#include "formats/adapters/module_patterns.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "nibble/error.hpp"

namespace nibble {
namespace {

// RE2 takes no more than its budget for the program and the states of an expression. The syntax tree is not in the
// budget; it takes up to 64 bytes for each character.
constexpr std::uint64_t min_budget = 16 << 10, max_budget = 256 << 10;
constexpr std::uint64_t bytes_per_character = 64;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

// A pattern that is a name, taken apart.
struct NamePattern {
  std::string text;               // without escapes
  std::vector<std::size_t> dots;  // that stand for any byte
  bool whole = false;             // ^
};

std::optional<NamePattern> parse_name(std::string_view pattern) {
  NamePattern name;
  name.whole = pattern.starts_with('^');
  if (name.whole) pattern.remove_prefix(1);
  if (pattern.ends_with('$')) pattern.remove_suffix(1);
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const bool is_escaped = pattern[i] == '\\';
    if (is_escaped && (++i == pattern.size() || pattern[i] != '.')) return std::nullopt;
    if (pattern[i] == '.' && !is_escaped) name.dots.push_back(name.text.size());
    if (pattern[i] != '.' && !is_name_character(pattern[i])) return std::nullopt;
    name.text += pattern[i];
  }
  return name;
}

}  // namespace

std::string ModulePatterns::add(const std::string& pattern) {
  std::string why = add_name(pattern);
  if (why.empty()) ++patterns_;
  return why;
}

std::string ModulePatterns::add_name(const std::string& pattern) {
  const auto name = parse_name(pattern);
  if (!name) return add_expression(pattern);
  std::vector<Form>& forms = forms_[name->text.size()];
  auto form = std::ranges::find_if(
      forms, [&](const Form& known) { return known.whole == name->whole && known.dots == name->dots; });
  if (form == forms.end()) {
    if (++form_count_ > max_forms)
      return fmt::format("is one of more than {} different kinds of names (by length and position of dots)", max_forms);
    form = forms.insert(forms.end(), {name->whole, name->dots, {}});
  }
  form->first.emplace(name->text, patterns_);
  return {};
}

std::string ModulePatterns::add_expression(const std::string& pattern) {
  std::uint64_t budget = min_budget;
  while (budget <= max_budget && pattern.size() > budget / bytes_per_character) budget *= 4;
  std::unique_ptr<RE2> regex;
  for (; budget <= max_budget; budget *= 4) {
    RE2::Options options(RE2::Quiet);
    options.set_max_mem(static_cast<std::int64_t>(budget));
    regex = std::make_unique<RE2>("(?:.*\\.)?(?:" + pattern + ")", options);
    if (regex->error_code() == RE2::ErrorPatternTooLarge) continue;
    if (!regex->ok()) break;
    if (budget > max_expression_bytes - expression_bytes_)
      return fmt::format("is one of too many keys that are not names of modules: matching them takes more than {} MiB",
                         max_expression_bytes >> 20);
    expression_bytes_ += budget;
    expressions_.emplace_back(std::move(regex), patterns_);
    return {};
  }
  if (!regex)
    return fmt::format("is no name of a module and longer than {} characters", max_budget / bytes_per_character);
  return fmt::format("is not a regular expression that can be used: {}", printable(regex->error()));
}

std::optional<std::size_t> ModulePatterns::find(std::string_view name) const {
  std::size_t best = patterns_;
  std::string text;
  for (std::size_t begin = 0; begin <= name.size();) {
    if (const auto forms = forms_.find(name.size() - begin); forms != forms_.end())
      for (const Form& form : forms->second) {
        if (form.whole && begin > 0) continue;
        text = name.substr(begin);
        for (const std::size_t dot : form.dots)
          if (text[dot] != '\n') text[dot] = '.';
        if (const auto found = form.first.find(text); found != form.first.end()) best = std::min(best, found->second);
      }
    const std::size_t dot = name.find('.', begin);
    if (dot == std::string_view::npos) break;
    begin = dot + 1;
  }
  for (const auto& [regex, number] : expressions_)
    if (number < best && RE2::FullMatch(re2::StringPiece(name.data(), name.size()), *regex)) best = number;
  return best == patterns_ ? std::nullopt : std::optional(best);
}

}  // namespace nibble
