#include "quant/schemes/config_groups.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "nibble/error.hpp"

namespace nibble {

ConfigGroups::ConfigGroups(const nlohmann::json& config) {
  const nlohmann::json none = nlohmann::json::object();
  const auto found = config.find("config_groups");
  for (const auto& [name, group] : (found == config.end() || !found->is_object() ? none : *found).items()) {
    if (!group.is_object() || !group.contains("targets")) continue;
    const auto weights = group.find("weights");
    if (weights == group.end() || !weights->is_object()) continue;
    if (groups_.size() == max_groups) {
      problem_ = fmt::format("config_groups has more than {} groups", max_groups);
      return;
    }
    const std::string key = fmt::format("config_groups.{}", printable(name));
    ModuleTargets targets(group["targets"], key + ".targets");
    if (!targets.problem().empty()) {
      problem_ = targets.problem();
      return;
    }
    if (!counts_patterns(targets)) return;
    const nlohmann::json strategy = weights->value("strategy", nlohmann::json());
    groups_.push_back({key, std::move(targets), strategy.is_string() ? strategy.get<std::string>() : std::string()});
  }
  if (const auto ignore = config.find("ignore"); ignore != config.end() && !ignore->is_null()) {
    ignored_ = ModuleTargets(*ignore, "ignore");
    problem_ = ignored_.problem();
    if (problem_.empty()) (void)counts_patterns(ignored_);
  }
}

bool ConfigGroups::counts_patterns(const ModuleTargets& list) {
  patterns_ += list.pattern_count();
  if (patterns_ <= ModuleTargets::max_patterns) return true;
  problem_ = fmt::format("config_groups and ignore have more than {} patterns", ModuleTargets::max_patterns);
  return false;
}

std::string ConfigGroups::contradiction(std::string_view module, std::string_view strategy, bool any_strategy) const {
  if (ignored_.match(module)) return "ignore of config.json says that it is not quantized";
  const Group* other = nullptr;
  for (const Group& group : groups_) {
    // A class may be that of the module.
    if (!group.targets.match(module) && !group.targets.has_classes()) continue;
    if (any_strategy || group.strategy.empty() || group.strategy == strategy) return {};
    other = &group;
  }
  if (groups_.empty()) return {};
  if (other == nullptr) return "config_groups of config.json has no group with it among its targets";
  return fmt::format("{}.weights.strategy of config.json is '{}'", other->key, printable(other->strategy));
}

}  // namespace nibble
