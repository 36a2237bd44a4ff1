#include "cli/terminal/shell.hpp"

#include <algorithm>

namespace nibble::cli {

std::string shell_quoted(std::string_view word) {
  const auto is_plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           std::string_view("_-./=:,+@%").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + '\'';
}

std::string quoted_path(const std::string& path) { return shell_quoted(path.starts_with('-') ? "./" + path : path); }

}  // namespace nibble::cli
