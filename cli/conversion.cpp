#include "cli/conversion.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cli/summary.hpp"
#include "cli/terminal/json.hpp"
#include "cli/terminal/progress.hpp"
#include "cli/terminal/remedies.hpp"
#include "cli/terminal/sizes.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/device.hpp"
#include "nibble/error.hpp"

namespace nibble::cli {
namespace {

std::string line_of(const Message& warning) {
  return fmt::format("warning: {}", with_options(warning.text, warning.remedy));
}

void print_plan(Terminal& terminal, const ConversionCommand& options, const Plan& plan,
                const ConversionMemory& memory) {
  if (options.json) {
    Json json = plan_json(plan, memory);
    if (!options.advice.is_null()) json["advice"] = options.advice;
    return terminal.print("{}\n", dump_lines(json));
  }
  terminal.write(plan_text(plan, memory));
  for (const Message& warning : plan.warnings) terminal.note(line_of(warning));
}

// Makes the text before the output appears: afterwards nothing may fail, not even for lack of memory.
class ReportingDisplay final : public ProgressDisplay {
 public:
  ReportingDisplay(Terminal& terminal, ProgressStyle style, const ConversionCommand& options)
      : ProgressDisplay(terminal, style), terminal_(terminal), options_(options) {}

  void set_conversion(const PlannedConversion& planned) { planned_ = &planned; }

  void ready(const Report& report) override {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    const Device* const device = planned_->device();
    const Conversion conversion{
        planned_->input(), options_.out,
        device != nullptr && device->chunks() > 0 ? std::optional(std::string(device->name())) : std::nullopt,
        seconds.count(), options_.open != nullptr};
    std::string text;
    Json json;
    if (options_.json)
      json = report_json(report, conversion);
    else
      text = report_text(report, conversion);
    if (options_.json && !options_.advice.is_null()) json["advice"] = options_.advice;
    if (options_.add_to_report) options_.add_to_report(planned_->input(), report, *this, text, json);
    text_ = options_.json ? dump_lines(json) + '\n' : std::move(text);
    for (const Message& warning : report.warnings) warnings_.push_back(line_of(warning));
  }

  // Throws Error(io) if the report is lost.
  void print(const std::string& remains) {
    close();
    terminal_.write(text_);
    for (const std::string& warning : warnings_) terminal_.note(warning);
    if (!remains.empty()) terminal_.note("warning: " + remains);
    if (!terminal_.flush())
      throw Error(Errc::io, fmt::format("{} is complete, but the report cannot be written to standard output",
                                        escaped(options_.out)));
  }

 private:
  Terminal& terminal_;
  const ConversionCommand& options_;
  const PlannedConversion* planned_ = nullptr;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string text_;
  std::vector<std::string> warnings_;
};

std::uint64_t max_shard_bytes(const ConversionCommand& options) {
  return parse_size("--max-shard-size", options.max_shard_size);
}

// Refuses options that have no effect: the user expects something that will not happen.
void check_shards(const CLI::App& command, const Reader& in) {
  for (const char* const option : {"--max-shard-size", "--keep-shards"})
    if (!in.is_directory() && command.count(option) > 0)
      throw Error(Errc::usage, fmt::format("{} has no effect on '{}': a file is converted to a single file", option,
                                           escaped(in.path().native())));
}

}  // namespace

void add_paths(CLI::App& command, ConversionCommand& options) {
  command
      .add_option(
          "IN", options.in,
          "A .safetensors file, a model directory, or the name of a model in the local Hugging Face cache (org/model)")
      ->required()
      ->type_name("");
  command
      .add_option(
          "OUT", options.out,
          "Where to write the result: a file (NAME.safetensors) if IN is a file, a directory if IN is a directory")
      ->required()
      ->type_name("");
}

CLI::Option* add_on_overflow(CLI::App& command, Recipe& recipe) {
  return add_choice<OnOverflow>(
      command, "--on-overflow", recipe.on_overflow,
      {{"error", OnOverflow::error}, {"clamp", OnOverflow::clamp}, {"keep", OnOverflow::keep}},
      "What a cast does with finite values that its type cannot hold (fp16: beyond 65504): stop, "
      "store the largest value, or store infinity [error for fp16, keep for bf16 and fp32]",
      {}, {{"none", "keep"}});
}

void add_output(CLI::App& command, ConversionCommand& options) {
  command
      .add_option("--max-shard-size", options.max_shard_size,
                  "Start a new file when the current one would exceed this size (GB = 1e9 bytes, GiB = 2^30)")
      ->capture_default_str()
      ->type_name("SIZE")
      ->group(output_group);
  command.add_flag("--keep-shards", options.recipe.keep_shards, "Write one output file for each input file")
      ->excludes("--max-shard-size")
      ->group(output_group);
  command
      .add_flag(
          "--overwrite", options.conversion.overwrite,
          "Replace an existing output once the new one is complete. In a directory, files that are no model's stay")
      ->group(output_group);
  command
      .add_flag(
          "--resume", options.conversion.resume,
          "Go on where the same command was interrupted or killed, without converting again what it had finished. "
          "Without this option, what it left is removed")
      ->group(output_group);
  command
      .add_flag(
          "--dry-run", options.dry_run,
          "Print the codec of each tensor and the reason for it, the sizes and the memory needed, and write "
          "nothing. Fails if the conversion would fail because OUT exists, another nibble is writing it, writing there "
          "is not permitted, or there is too little free space")
      ->group(output_group);
  add_json(command, options.json)->group(output_group);
  add_progress(command, options.progress);
}

void check_conversion_options(const CLI::App& command, const ConversionCommand& options, const Reader& in) {
  (void)max_shard_bytes(options);
  check_shards(command, in);
  if (options.conversion.device == DeviceChoice::cuda) (void)Device::open(DeviceChoice::cuda);
}

void run_conversion(const CLI::App& command, ConversionCommand& options, Terminal& terminal,
                    const std::function<void(const Plan& plan)>& check) {
  terminal.catch_interrupts();
  options.recipe.max_shard_bytes = max_shard_bytes(options);
  options.conversion.resources = options.resources.resources();
  ReportingDisplay display(terminal, progress_style(options.progress), options);
  PlannedConversion conversion =
      options.open ? PlannedConversion(options.open(), options.out, options.recipe, options.conversion)
                   : PlannedConversion(options.in, options.out, options.recipe, options.conversion);
  display.set_conversion(conversion);
  check_shards(command, conversion.input());
  check(conversion.plan());
  if (options.dry_run) {
    print_plan(terminal, options, conversion.plan(), conversion.memory());
    return conversion.check_output();  // after the plan, which is valid whatever is wrong with the output
  }
  const Report report = std::move(conversion).run(display);
  display.print(report.remains);
}

}  // namespace nibble::cli
