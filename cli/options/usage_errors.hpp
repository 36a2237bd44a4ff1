#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace nibble::cli {

/// What is wrong with a command line, in one line that says what was probably meant and which help to read. `app` has
/// parsed `arguments` and thrown `error`.
[[nodiscard]] std::string explain(CLI::App& app, const std::vector<std::string>& arguments,
                                  const CLI::ParseError& error);

/// Throws Error(usage) if an option has an empty value, such as `--html=`: CLI11 would take the next argument for it.
void refuse_empty_values(CLI::App& app, const std::vector<std::string>& arguments);

/// `nibble help` and `nibble help convert` as the options that they stand for. A command that does not exist is left
/// alone, so that an error can explain it.
[[nodiscard]] std::vector<std::string> with_help_option(CLI::App& app, std::vector<std::string> arguments);

}  // namespace nibble::cli
