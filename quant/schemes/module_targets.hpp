#pragma once

#include <re2/re2.h>

#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

/// A list of modules as the quantization_config of compressed-tensors has it, under `targets` and `ignore`: whole
/// names, names of classes, and regular expressions behind "re:" that match from the beginning of a name.
class ModuleTargets {
 public:
  static constexpr std::string_view pattern_prefix = "re:";
  /// Of all lists of a model together, so that neither memory nor time grow with what a file asks for.
  static constexpr std::size_t max_patterns = 1000;

  ModuleTargets() = default;

  /// `key` is where the list stands. If problem() is not empty, nothing matches.
  ModuleTargets(const nlohmann::json& list, std::string_view key);

  /// Why the list cannot be applied, beginning with the key. Empty if it can.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

  /// Whether the name of a module is in the list, or what all linear layers are: the class "Linear".
  [[nodiscard]] bool match(std::string_view module) const;

  [[nodiscard]] std::size_t pattern_count() const noexcept { return patterns_.size(); }

  /// Whether there may be a class in it to which a module belongs: no file says of which class a module is.
  [[nodiscard]] bool has_classes() const noexcept { return has_classes_; }

 private:
  std::set<std::string, std::less<>> names_;
  std::vector<std::unique_ptr<RE2>> patterns_;
  bool has_linear_ = false, has_classes_ = false;
  std::string problem_;
};

}  // namespace nibble
