#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "cli/options/options.hpp"
#include "cli/terminal/json.hpp"
#include "cli/terminal/terminal.hpp"
#include "nibble/convert.hpp"

/// What the commands have in common that write a checkpoint: where it comes from and goes to, and how the run is told.
/// They differ in their recipe.
namespace nibble::cli {

/// The options of such a command.
struct ConversionCommand {
  std::string in;
  std::string out;
  Recipe recipe;
  ConversionOptions conversion;
  std::string max_shard_size = "5GB";
  ResourceOptions resources;
  bool dry_run = false;
  bool json = false;
  std::string progress;

  Json advice{};  ///< null, or what the JSON about the plan or the result has under this name

  /// Opens the input, if it is more than what `in` names.
  std::function<std::unique_ptr<const Reader>()> open{};
  /// Adds to what is printed about the result, as text or as members of the JSON object.
  std::function<void(const Reader& in, const Report& report, Progress& progress, std::string& text, Json& json)>
      add_to_report{};
};

/// IN and OUT.
void add_paths(CLI::App& command, ConversionCommand& options);
/// --on-overflow.
CLI::Option* add_on_overflow(CLI::App& command, Recipe& recipe);
/// --max-shard-size, --keep-shards, --overwrite, --resume, --dry-run, --json, --progress.
void add_output(CLI::App& command, ConversionCommand& options);

/// Refuses what run_conversion() would refuse, whatever the recipe: for a command that takes long to come to one.
void check_conversion_options(const CLI::App& command, const ConversionCommand& options, const Reader& in);

/// Plans, and prints the plan or carries it out and prints the report. options.recipe is complete but for what
/// add_output() added. `check` may refuse the plan before anything is printed.
void run_conversion(
    const CLI::App& command, ConversionCommand& options, Terminal& terminal,
    const std::function<void(const Plan& plan)>& check = [](const Plan&) {});

}  // namespace nibble::cli
