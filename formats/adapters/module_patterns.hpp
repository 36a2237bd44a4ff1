#pragma once

#include <re2/re2.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nibble {

/// The keys of rank_pattern and alpha_pattern: regular expressions for names of modules. As in peft, one matches the
/// whole name or what follows one of its dots, and of several the first one counts.
///
/// Most keys are names: letters, digits, `_`, `-`, `.` and `\.`, perhaps between `^` and `$`. They are looked up, so
/// an adapter may have one for every module. All others are tried one by one, and each takes 16 to 256 KiB, so there
/// may be few of them: 256, or 16 of several thousand characters.
class ModulePatterns {
 public:
  static constexpr std::uint64_t max_expression_bytes = 4 << 20;  ///< of all keys that are more than names
  static constexpr std::size_t max_forms = 1024;  ///< different lengths and positions of dots of the names

  /// Says why the pattern cannot be used; empty if it has been added.
  [[nodiscard]] std::string add(const std::string& pattern);

  /// The number of the first pattern that matches, in the order of add().
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;

 private:
  // Names of the same length with unescaped dots at the same positions. Such a dot stands for any byte.
  struct Form {
    bool whole = false;                                  // only the whole name may match
    std::vector<std::size_t> dots;                       // positions
    std::unordered_map<std::string, std::size_t> first;  // by the name with its dots
  };
  [[nodiscard]] std::string add_name(const std::string& pattern);
  [[nodiscard]] std::string add_expression(const std::string& pattern);

  std::size_t patterns_ = 0, form_count_ = 0;
  std::map<std::size_t, std::vector<Form>> forms_;  // by length
  std::vector<std::pair<std::unique_ptr<RE2>, std::size_t>> expressions_;
  std::uint64_t expression_bytes_ = 0;  // their budgets
};

}  // namespace nibble
