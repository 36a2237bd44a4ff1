#pragma once

#include <string_view>

namespace nibble {

/// quant_method in config.json where only nibble's own loader reads the result.
inline constexpr std::string_view nibble_quant_method = "nibble";

/// Whether nibble reads what is quantized with this quant_method of config.json. The schemes know
/// (quant/schemes/registry.cpp).
[[nodiscard]] bool is_quant_method(std::string_view name);

}  // namespace nibble
