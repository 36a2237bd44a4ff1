#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nibble::cli {

/// "5GB" = 5e9, "5GiB" = 5 x 2^30, "300KB", "1.5 MB", "4096". Throws Error(usage) naming the option.
[[nodiscard]] std::uint64_t parse_size(std::string_view option, std::string_view text);

/// "13.48 GB (12.55 GiB)"
[[nodiscard]] std::string size_both(std::uint64_t bytes);

/// "13.48 GB"
[[nodiscard]] std::string size_short(std::uint64_t bytes);

}  // namespace nibble::cli
