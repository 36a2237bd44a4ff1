#include "quant/schemes/module_targets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "nibble/error.hpp"

namespace nibble {
namespace {

constexpr std::string_view linear_class = "Linear";
constexpr std::int64_t max_pattern_memory = 128 << 10;  // about 11,000 instructions

// The names of classes begin with a capital letter, those of modules do not, as a rule; and modules are in others.
bool is_class(std::string_view entry) {
  return !entry.empty() && entry.front() >= 'A' && entry.front() <= 'Z' && entry.find('.') == std::string_view::npos;
}

re2::StringPiece as_piece(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

ModuleTargets::ModuleTargets(const nlohmann::json& list, std::string_view key) {
  if (!list.is_array()) {
    problem_ = fmt::format("{} is not a list", key);
    return;
  }
  RE2::Options options(RE2::Quiet);
  options.set_dot_nl(false);  // as in Python
  options.set_max_mem(max_pattern_memory);
  for (const nlohmann::json& entry : list) {
    if (!entry.is_string()) {
      problem_ = fmt::format("{} has an entry that is not a string", key);
      return;
    }
    std::string text = entry.get<std::string>();
    if (!text.starts_with(pattern_prefix)) {
      has_linear_ = has_linear_ || text == linear_class;
      has_classes_ = has_classes_ || is_class(text);
      names_.insert(std::move(text));
      continue;
    }
    if (patterns_.size() == max_patterns) {
      problem_ = fmt::format("{} has more than {} patterns", key, max_patterns);
      return;
    }
    const auto& pattern = patterns_.emplace_back(
        std::make_unique<RE2>(as_piece(std::string_view(text).substr(pattern_prefix.size())), options));
    if (pattern->ok()) continue;
    problem_ = fmt::format("{} has the pattern '{}', which RE2 does not take: {}", key, printable(text),
                           printable(pattern->error()));
    return;
  }
}

bool ModuleTargets::match(std::string_view module) const {
  if (!problem_.empty()) return false;
  if (has_linear_ || names_.contains(module)) return true;
  return std::ranges::any_of(patterns_, [&](const std::unique_ptr<RE2>& pattern) {
    return pattern->Match(as_piece(module), 0, module.size(), RE2::ANCHOR_START, nullptr, 0);
  });
}

}  // namespace nibble
