#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/terminal/terminal.hpp"

namespace nibble::cli {

void add_convert(CLI::App& app, Terminal& terminal);
void add_dequantize(CLI::App& app, Terminal& terminal);
void add_merge(CLI::App& app, Terminal& terminal);
void add_inspect(CLI::App& app, Terminal& terminal);
void add_measure(CLI::App& app, Terminal& terminal);
void add_formats(CLI::App& app, Terminal& terminal);
void add_completion(CLI::App& app, Terminal& terminal);

/// One entry per subcommand, in the order in which --help lists them.
inline constexpr void (*commands[])(CLI::App&, Terminal&) = {add_convert, add_dequantize, add_merge,     add_inspect,
                                                             add_measure, add_formats,    add_completion};

/// Options are spelled with `-` and accepted with `_` too: --block_size becomes --block-size, values stay.
[[nodiscard]] std::vector<std::string> with_dashes(std::vector<std::string> arguments);

}  // namespace nibble::cli
