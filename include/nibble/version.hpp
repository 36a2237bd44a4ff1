#pragma once

#include <string_view>

namespace nibble {

/// "0.1.0"
[[nodiscard]] std::string_view version() noexcept;

}  // namespace nibble
