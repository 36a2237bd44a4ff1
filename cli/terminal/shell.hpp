#pragma once

#include <string>
#include <string_view>

/// Words of a command line to be copied.
namespace nibble::cli {

/// A word, quoted for a POSIX shell.
[[nodiscard]] std::string shell_quoted(std::string_view word);

/// The same for a path, such that no program takes it for an option.
[[nodiscard]] std::string quoted_path(const std::string& path);

}  // namespace nibble::cli
