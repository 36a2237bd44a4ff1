#include "cli/commands.hpp"

#include <algorithm>

namespace nibble::cli {

std::vector<std::string> with_dashes(std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (!argument.starts_with("--")) continue;
    std::replace(argument.begin(),
                 argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size())), '_',
                 '-');
  }
  return arguments;
}

}  // namespace nibble::cli
