#pragma once

#include <string>
#include <vector>

#include "cli/terminal/terminal.hpp"

namespace nibble::cli {

/// Everything that the program does except reporting errors; `arguments` are those after its name. Throws Error,
/// std::bad_alloc, std::system_error.
void run_program(std::vector<std::string> arguments, Terminal& terminal);

}  // namespace nibble::cli
