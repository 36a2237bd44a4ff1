#include "quant/jobs/plan/user_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "nibble/error.hpp"

namespace nibble {
namespace {

re2::StringPiece piece(std::string_view name) { return {name.data(), name.size()}; }

// Names may contain newlines, and a user who writes `.*` means every name.
RE2::Options options() {
  RE2::Options options(RE2::Quiet);
  options.set_dot_nl(true);
  return options;
}

}  // namespace

UserPattern::UserPattern(std::string_view label, const std::string& pattern)
    : label_(label), text_(pattern), regex_(std::make_unique<RE2>(pattern, options())) {
  if (!regex_->ok())
    throw Error(Errc::usage, fmt::format("{} '{}' is not a regular expression: {}", label, printable(pattern),
                                         printable(regex_->error())));
}

std::string UserPattern::pasteable(const std::string& pattern) {
  const bool is_plain = std::all_of(pattern.begin(), pattern.end(), [](char c) { return c >= ' ' && c <= '~'; });
  return is_plain ? pattern : printable(pattern);
}

bool UserPattern::matches(std::string_view name) const { return RE2::FullMatch(piece(name), *regex_); }

void UserPattern::fail_unmatched(const EachName& each_name) const {
  throw Error(Errc::usage,
              fmt::format("{} '{}' matches no tensor{}", label_, pasteable(text_), wider_pattern(each_name)));
}

// A pattern for whole names, if this one matches only parts of names.
std::string UserPattern::wider_pattern(const EachName& each_name) const {
  const auto count = [&](const auto& matches) {
    std::size_t hits = 0;
    each_name([&](std::string_view name) { hits += matches(piece(name)) ? 1 : 0; });
    return hits;
  };
  const std::size_t hits = count([&](const auto& name) { return RE2::PartialMatch(name, *regex_); });
  if (hits == 0) return {};
  const std::string inner = text_.find('|') == std::string::npos ? text_ : "(" + text_ + ")";
  for (const std::string& wider : {inner + ".*", ".*" + inner, ".*" + inner + ".*"}) {
    const RE2 regex(wider, options());
    if (regex.ok() && count([&](const auto& name) { return RE2::FullMatch(name, regex); }) == hits)
      return fmt::format(" as a whole name; '{}' matches {}", pasteable(wider), hits);
  }
  return fmt::format(" as a whole name, and part of {}", hits);
}

}  // namespace nibble
