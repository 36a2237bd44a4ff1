// nibble measure REF TEST...: options, one call into the library, a table, and whether thresholds hold.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include "cli/advise.hpp"
#include "cli/commands.hpp"
#include "cli/measurement/html_report.hpp"
#include "cli/measurement/measurement.hpp"
#include "cli/measurement/report_file.hpp"
#include "cli/options/codec_option.hpp"
#include "cli/options/options.hpp"
#include "cli/options/threshold_option.hpp"
#include "cli/terminal/progress.hpp"
#include "cli/terminal/shell.hpp"
#include "cli/terminal/terminal.hpp"
#include "formats/commit/apart.hpp"
#include "nibble/error.hpp"
#include "nibble/measure.hpp"
#include "nibble/thresholds.hpp"
#include "quant/stream/stored_weights.hpp"
#include "quant/stream/weighing.hpp"

namespace nibble::cli {
namespace {

struct MeasureArguments {
  std::string reference;
  std::vector<std::string> tests;
  std::vector<std::string> formats;
  std::vector<std::string> max_rmse, min_sqnr, min_cosine;
  std::int64_t worst = 10;
  bool json = false;
  bool csv = false;
  std::string html;
  std::optional<std::string> advise;
  bool allow_nibble_only = false;
  std::filesystem::path calibration;
  std::string progress;
  ResourceOptions resource_options;
};

bool use_colours() {
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && (no_color == nullptr || *no_color == '\0') &&
         (terminal == nullptr || std::string_view(terminal) != "dumb");
}

std::string option_of(Threshold::Figure figure) { return fmt::format("--{}", to_string(figure)); }

std::vector<Threshold> parse_thresholds(const MeasureArguments& options) {
  std::vector<Threshold> thresholds;
  const auto add = [&](Threshold::Figure figure, const std::vector<std::string>& texts) {
    for (const std::string& text : texts) thresholds.push_back(parse_threshold(figure, option_of(figure), text));
  };
  add(Threshold::Figure::max_rmse, options.max_rmse);
  add(Threshold::Figure::min_sqnr_db, options.min_sqnr);
  add(Threshold::Figure::min_cosine, options.min_cosine);
  return thresholds;
}

void report(Terminal& terminal, const std::vector<Violation>& found, const Measurement& measurement) {
  for (const Violation& violation : found)
    terminal.note(fmt::format(
        "fails: {}: tensor '{}': {}, {} {:.6g}", escaped(measurement.candidates[violation.candidate].name),
        printable(violation.name),
        violation.tensor == measurement.tensors.size() ? "cannot be compared" : fmt::format("{:.6g}", violation.value),
        option_of(violation.threshold.figure), violation.threshold.limit));
  if (!found.empty())
    throw Error(
        Errc::difference,
        fmt::format("{}: tensor '{}' {}breaks {}", escaped(measurement.candidates[found[0].candidate].name),
                    printable(found[0].name), found.size() > 1 ? fmt::format("(and {} more) ", found.size() - 1) : "",
                    option_of(found[0].threshold.figure)));
}

void check_has_weights(const Reader& checkpoint) {
  const StoredWeights weights(checkpoint);
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (is_weight_type(weights[i].stored.info.dtype)) return;
  throw Error(Errc::bad_input,
              fmt::format("{}: no tensor can be compared: none has a weight type (F64, F32, BF16, F16)",
                          escaped(checkpoint.path().string())));
}

// What was measured and how, as a command line.
std::string command_of(const MeasureArguments& options) {
  std::string command = "nibble measure " + quoted_path(options.reference);
  for (const std::string& test : options.tests) command += ' ' + quoted_path(test);
  const auto add = [&](std::string_view option, const std::vector<std::string>& values) {
    for (const std::string& value : values) command += fmt::format(" {} {}", option, shell_quoted(value));
  };
  add("--to", options.formats);
  if (options.allow_nibble_only) command += " --allow-nibble-only";
  add("--max-rmse", options.max_rmse);
  add("--min-sqnr", options.min_sqnr);
  add("--min-cosine", options.min_cosine);
  if (!options.calibration.empty()) command += " --calibration " + quoted_path(options.calibration.string());
  const MeasureArguments defaults;
  if (options.worst != defaults.worst) command += fmt::format(" --worst {}", options.worst);
  if (const std::string& size = options.resource_options.max_memory; size != defaults.resource_options.max_memory)
    command += " --max-memory " + shell_quoted(size);
  return command;
}

void run(const CLI::App& command, const MeasureArguments& options, Terminal& terminal) {
  terminal.catch_interrupts();
  check_calibration(command, options.calibration);
  const Resources resources = options.resource_options.resources();
  const ProgressStyle style = progress_style(options.progress);
  std::vector<CodecSpec> codecs;
  for (const std::string& format : options.formats) codecs.push_back(parse_codec("--to", format, target_names()));
  if (options.advise)
    return run_advise(terminal, {options.reference, *options.advise, codecs, options.allow_nibble_only,
                                 options.calibration, options.json, style, resources});
  if (options.tests.empty() && options.formats.empty())
    throw Error(Errc::usage, "nothing to measure: name a TEST, or a format with --to");
  const std::vector<Threshold> thresholds = parse_thresholds(options);
  std::uint64_t left = resources.max_memory;
  const auto open = [&](const std::string& path) {
    auto reader = open_checkpoint(path, {.accept_quantized = true, .max_memory = left});
    left -= std::min(left, reader->memory_bytes());
    return reader;
  };
  const std::unique_ptr<Reader> reference = open(options.reference);
  std::deque<std::unique_ptr<Reader>> tests;
  std::vector<Candidate> candidates;
  for (const std::string& test : options.tests)
    candidates.push_back({test, tests.emplace_back(open(test)).get(), std::nullopt});
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    Recipe recipe = measured_recipe(codecs[i]);
    recipe.allow_nibble_only = options.allow_nibble_only;
    Plan plan = make_plan(*reference, recipe);
    weigh_searches(plan, options.calibration);
    candidates.push_back({options.formats[i], nullptr, std::move(plan)});
  }
  check_patterns(*reference, candidates, thresholds);
  // If the report cannot be written there, say so now and not after hours of measuring.
  std::optional<ReportFile> report_file;
  std::string made;
  if (!options.html.empty()) {
    made = report_made(command_of(options));
    check_no_input(options.html, *reference);
    for (const std::unique_ptr<Reader>& test : tests) check_no_input(options.html, *test);
    report_file.emplace(options.html);
  }
  ProgressDisplay progress(terminal, style);
  const bool needs_counts = options.json || report_file;
  const Measurement measurement =
      measure(*reference, candidates, {needs_counts, resources, options.calibration}, progress);
  progress.close();
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    const MeasuredCandidate& candidate = measurement.candidates[c];
    if (candidate.missing.empty() || std::any_of(candidate.tensors.begin(), candidate.tensors.end(),
                                                 [](const auto& error) { return error.has_value(); }))
      continue;
    check_has_weights(*reference);
    if (candidates[c].checkpoint != nullptr) check_has_weights(*candidates[c].checkpoint);
    throw Error(Errc::bad_input, fmt::format("{}: has none of the tensors of {} in the same shape",
                                             escaped(candidate.name), escaped(measurement.name)));
  }
  const std::vector<Violation> found = violations(measurement, thresholds);  // or usage: before anything is printed
  // Everything that may fail comes before the report appears.
  std::string page;
  if (report_file) {
    std::string json;
    write_json(measurement, [&](std::string_view text) { json += text; });
    page = html_report(json, made);
  }
  const auto print = [&](std::string_view text) { terminal.write(text); };
  if (options.json) {
    write_json(measurement, print);
    print("\n");
  } else if (options.csv) {
    write_csv(measurement, print);
  } else {
    print(to_table(measurement, static_cast<std::size_t>(options.worst), use_colours()));
  }
  if (!terminal.flush()) throw Error(Errc::io, "cannot write to standard output");
  if (report_file)
    for (const std::string& warning : report_file->write(page)) terminal.note("warning: " + warning);
  report(terminal, found, measurement);
}

}  // namespace

void add_measure(CLI::App& app, Terminal& terminal) {
  CLI::App* const command = app.add_subcommand("measure", "Measure the error of a conversion, tensor by tensor");
  const auto options = std::make_shared<MeasureArguments>();
  command
      ->add_option(
          "REF", options->reference,
          "The original: a file, a model directory, or the name of a model in the local Hugging Face cache (org/model)")
      ->required()
      ->type_name("");
  command
      ->add_option("TEST", options->tests,
                   "One or more checkpoints to compare with REF, plain or quantized by any tool")
      ->type_name("");

  const std::string what = "Conversions that are measured but not written";
  add_repeatable(*command, "--to", options->formats,
                 "Measure what `convert --to` would write; with --advise: choose among these codecs [all that "
                 "quantize]; repeatable")
      ->type_name(codec_type)
      ->group(what);
  CLI::Option* const advise =
      command->add_option("--advise", options->advise,
                          "Find the codecs with the smallest error for a given size, or for a number of bits per "
                          "weight of REF (5GB, 4.5bits), and print the command that uses them");
  advise->type_name("SIZE")->group(what);
  command
      ->add_flag("--allow-nibble-only", options->allow_nibble_only,
                 "Allow --to and --advise to choose formats that only nibble can read, not transformers")
      ->group(what);

  add_calibration(
      *command, options->calibration,
      "Statistics that `python -m nibble.calibrate` wrote: also show the errors of the layers' outputs. Searches of "
      "absmax use the statistics as those of `convert` do. --advise goes by the sensitivities of the layers, if there "
      "are any (--sensitivities), or by the errors of their outputs")
      ->group("Statistics");

  set_range(command->add_option("--worst", options->worst,
                                "Number of tensors to list, worst first; 0 lists all. Kinds and layers are limited to "
                                "the same number if there are more than 128 of them"),
            0, 1'000'000'000)
      ->capture_default_str()
      ->group(output_group);
  CLI::Option* const json = add_json(*command, options->json)->group(output_group);
  command->add_flag("--csv", options->csv, "Print comma-separated values, one line for each tensor")
      ->excludes(json)
      ->group(output_group);
  command
      ->add_option(
          "--html", options->html,
          "Write an HTML report that needs no network: layers, kinds, a heat map, histograms, the worst blocks")
      ->type_name(file_type)
      ->check([](const std::string& path) { return path.empty() ? "is empty" : ""; }, "")
      ->group(output_group);
  add_progress(*command, options->progress);

  const std::string limits = "Limits (exit code 8 if a tensor breaks one)";
  const auto limit = [&](const char* name, std::vector<std::string>& values, const char* help) {
    add_repeatable(*command, name, values, help)->type_name("[RE=]X")->group(limits);
  };
  limit("--max-rmse", options->max_rmse, "The largest root mean square error allowed; repeatable");
  limit("--min-sqnr", options->min_sqnr, "The lowest signal-to-quantization-noise ratio allowed, in dB; repeatable");
  limit("--min-cosine", options->min_cosine, "The lowest cosine similarity allowed; repeatable");

  add_max_memory(*command, options->resource_options);
  add_threads(*command, options->resource_options);

  for (const char* const other : {"TEST", "--worst", "--csv", "--html", "--max-rmse", "--min-sqnr", "--min-cosine"})
    advise->excludes(command->get_option(other));

  command->footer(codec_help() +
                  "\nExamples:\n"
                  "  nibble measure Llama-3.1-8B Llama-3.1-8B-nf4\n"
                  "  nibble measure Llama-3.1-8B --to nf4 --to int8 --to nf4:block-size=32\n"
                  "  nibble measure Llama-3.1-8B --to nf4 --to nf4:absmax=search --calibration STATS\n"
                  "  nibble measure REF TEST --min-sqnr 18 --min-sqnr '.*down_proj.*=20'\n"
                  "  nibble measure Llama-3.1-8B --advise 5.5bits --calibration STATS");
  command->callback([command, options, &terminal] { run(*command, *options, terminal); });
}

}  // namespace nibble::cli
