#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "quant/schemes/module_targets.hpp"

namespace nibble {

/// What the quantization_config of compressed-tensors says of each module: `config_groups` with their `targets`, and
/// `ignore`. Groups that leave out their weights or their targets say nothing.
class ConfigGroups {
 public:
  static constexpr std::size_t max_groups = 1000;

  explicit ConfigGroups(const nlohmann::json& config);

  /// Why it cannot be applied; begins with the key. Empty if it can.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

  /// What contradicts FP8 codes of a module with scales of this strategy; names the key. If `any_strategy`, there is a
  /// single scale, which is the same thing in each. Empty if nothing contradicts them.
  [[nodiscard]] std::string contradiction(std::string_view module, std::string_view strategy, bool any_strategy) const;

 private:
  struct Group {
    std::string key;  // "config_groups.group_0"
    ModuleTargets targets;
    std::string strategy;  // empty if it is not stated
  };

  // False if the lists now have too many patterns, which problem() says.
  bool counts_patterns(const ModuleTargets& list);

  std::vector<Group> groups_;
  ModuleTargets ignored_;
  std::size_t patterns_ = 0;  // of all lists
  std::string problem_;
};

}  // namespace nibble
