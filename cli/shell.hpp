#pragma once

#include <string>
#include <string_view>

/// Words of a command line to be copied.
namespace nibble::cli {

/// A word as a POSIX shell has to be given it.
[[nodiscard]] std::string shell_quoted(std::string_view word);

/// A path likewise, which no program takes for an option.
[[nodiscard]] std::string quoted_path(const std::string& path);

}  // namespace nibble::cli
