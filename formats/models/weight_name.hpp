#pragma once

#include <string_view>

namespace nibble {

inline constexpr std::string_view weight_suffix = ".weight";

/// The module of a weight, taken from its name: "lm_head" of "lm_head.weight".
[[nodiscard]] constexpr std::string_view without_weight_suffix(std::string_view name) noexcept {
  if (name.ends_with(weight_suffix)) name.remove_suffix(weight_suffix.size());
  return name;
}

}  // namespace nibble
