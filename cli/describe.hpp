#pragma once

#include <string>

#include "cli/terminal/json.hpp"

namespace nibble::cli {

/// The commands that have --json, with their arguments and their other options, for programs that offer them in another
/// form. nibble_list_commands() in nibble/c_api.h has the members. Left out are --help and what is about the terminal
/// only: --json and --progress.
[[nodiscard]] Json describe_commands();

/// Whether a command of this name has --json. True also if there is none of this name: running it says what was
/// probably meant.
[[nodiscard]] bool may_print_json(const std::string& command);

}  // namespace nibble::cli
