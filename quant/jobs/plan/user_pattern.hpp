#pragma once

#include <re2/re2.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace nibble {

/// A user's pattern (RE2 syntax, `.` is also a newline) for whole names of tensors, with its label in errors.
class UserPattern {
 public:
  /// `label` is a literal. Throws Error(usage), "LABEL 'PATTERN' ...", if it is not a valid pattern.
  UserPattern(std::string_view label, const std::string& pattern);

  [[nodiscard]] bool matches(std::string_view name) const;

  /// Calls a function with every name that there is.
  using EachName = std::function<void(const std::function<void(std::string_view)>&)>;

  /// Throws Error(usage) because it matches none of the names: if it were ignored silently, a whole conversion might be
  /// wasted. If it matches parts of names, the error suggests a pattern that matches these names as a whole.
  [[noreturn]] void fail_unmatched(const EachName& each_name) const;

  [[nodiscard]] std::string_view label() const noexcept { return label_; }
  /// Complete and unescaped, so that it can be pasted, unless that could confuse a terminal.
  [[nodiscard]] std::string text() const { return pasteable(text_); }

 private:
  [[nodiscard]] static std::string pasteable(const std::string& pattern);
  [[nodiscard]] std::string wider_pattern(const EachName& each_name) const;

  std::string_view label_;
  std::string text_;
  std::unique_ptr<RE2> regex_;
};

}  // namespace nibble
