#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/conversion.hpp"
#include "cli/terminal/terminal.hpp"

/// The options of `nibble convert` that make its recipe, which other commands have as well.
namespace nibble::cli {

struct ConvertOptions : ConversionCommand {
  std::string to, embeddings = "keep", lm_head = "keep", experts = "keep";
  std::string blocksize, absmax;
  bool no_double_quant = false;
  bool no_default_skips = false;
  std::vector<std::string> rules;
  std::optional<std::string> advise;  ///< `nibble convert` only: a size, instead of most of these
};

/// --to, and the options that say how and to which tensors it is applied.
void add_recipe(CLI::App& command, ConvertOptions& options);

/// Makes the recipe of these options and runs the conversion. Refuses options that have no effect.
void run_recipe(const CLI::App& command, ConvertOptions& options, Terminal& terminal);

}  // namespace nibble::cli
