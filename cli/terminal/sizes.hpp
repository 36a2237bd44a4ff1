#pragma once

#include <cstdint>
#include <string_view>

#include "core/text/size_text.hpp"

namespace nibble::cli {

/// "5GB" = 5e9, "5GiB" = 5 x 2^30, "300KB", "1.5 MB", "4096". Throws Error(usage) naming the option.
[[nodiscard]] std::uint64_t parse_size(std::string_view option, std::string_view text);

}  // namespace nibble::cli
