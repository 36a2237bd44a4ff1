#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

/// The layer and the kind of a tensor, from its name.
struct LayerAndKind {
  std::optional<std::uint64_t> layer;
  std::string kind;
};
[[nodiscard]] LayerAndKind layer_and_kind(std::string_view name);

}  // namespace nibble
