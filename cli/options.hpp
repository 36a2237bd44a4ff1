#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "nibble/memory.hpp"

/// Options that several subcommands have, declared once each. --help lists options in the order in which they are
/// added, and that is the subcommand's own: so one function adds one option.
namespace nibble::cli {

inline constexpr const char* output_group = "Output";
inline constexpr const char* resources_group = "Resources";

/// What --max-memory and --threads were given.
struct ResourceOptions {
  std::string max_memory = "1GB";
  unsigned threads = 0;  ///< 0: as many as there are processors

  /// Throws Error(usage) if --max-memory is no size.
  [[nodiscard]] Resources resources() const;
};
void add_max_memory(CLI::App& command, ResourceOptions& options);
void add_threads(CLI::App& command, ResourceOptions& options);

/// --progress STYLE; progress_style() says what it means.
void add_progress(CLI::App& command, std::string& style);

CLI::Option* add_json(CLI::App& command, bool& json);

/// An option that may come several times, with one value each time.
CLI::Option* add_repeatable(CLI::App& command, const std::string& name, std::vector<std::string>& values,
                            const std::string& help);

}  // namespace nibble::cli
