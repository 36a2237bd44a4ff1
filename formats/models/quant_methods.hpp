#pragma once

#include <string_view>

namespace nibble {

/// quant_method in config.json if only nibble's own loader can read the result.
inline constexpr std::string_view nibble_quant_method = "nibble";

// What the schemes know (quant/schemes/registry.cpp).

/// Whether nibble reads what is quantized with this quant_method of config.json.
[[nodiscard]] bool is_quant_method(std::string_view name);

/// Whether a conversion takes such a model as its input.
[[nodiscard]] bool is_source_method(std::string_view name);

/// The quant_method of the scheme that gives its parts names like this one, if a conversion does not take what it
/// stores. Empty if there is none.
[[nodiscard]] std::string_view refused_method_of(std::string_view part);

}  // namespace nibble
