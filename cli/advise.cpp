// nibble measure REF --advise SIZE: measures the formats, asks the library, prints the command to copy and the curve.
// nibble convert does the same before it converts.

#include "cli/advise.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "cli/terminal/figures.hpp"
#include "cli/terminal/json.hpp"
#include "cli/terminal/shell.hpp"
#include "cli/terminal/sizes.hpp"
#include "nibble/advise.hpp"
#include "nibble/error.hpp"
#include "nibble/measure.hpp"
#include "nibble/version.hpp"

namespace nibble::cli {
namespace {

constexpr int advice_schema = 1;
constexpr std::size_t max_curve_rows = 16;  // of the curve, for people
constexpr double error_bar_width = 30;
constexpr double max_bits = 64;  // of one weight, in any format

// A size, or bits for each of the weights, in bytes.
std::uint64_t parse_budget(const std::string& text, std::uint64_t weights) {
  double bits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (error == std::errc() && unit.empty())
    throw Error(Errc::usage,
                fmt::format("--advise '{}': has no unit: {}a size such as {}MB or {}GB?", printable(text),
                            bits <= max_bits ? fmt::format("{}bits per weight, or ", text) : "", text, text));
  if (unit != "bits" && unit != "bpw") {
    try {
      return parse_size("--advise", text);
    } catch (const Error&) {
      throw Error(Errc::usage,
                  fmt::format("--advise '{}': neither bits per weight such as 4.5bits nor a size such as 5GB or 5GiB",
                              printable(text)));
    }
  }
  if (error != std::errc() || !(bits > 0 && bits <= max_bits))
    throw Error(Errc::usage,
                fmt::format("--advise '{}': not between 0 and {} bits per weight", printable(text), max_bits));
  return static_cast<std::uint64_t>(bits * static_cast<double>(weights) / 8);
}

// The options of `convert` for what an advice's recipe sets.
std::vector<std::string> options_for(const Recipe& recipe) {
  std::vector<std::string> options{"--to", recipe.to.text()};
  const auto add = [&](const char* option, std::string value) {
    options.emplace_back(option);
    options.push_back(std::move(value));
  };
  if (!recipe.embeddings.keeps()) add("--embeddings", recipe.embeddings.text());
  for (const std::string& skip : recipe.skips) add("--skip", skip);
  for (const Rule& rule : recipe.rules) add("--tensor", fmt::format("{}={}", rule.pattern, rule.codec.text()));
  if (recipe.allow_nibble_only) options.emplace_back("--allow-nibble-only");
  if (!recipe.calibration.empty()) add("--calibration", recipe.calibration.string());
  return options;
}

std::string command_for(const std::string& path, const Reader& reference, const Advice& advice) {
  // The container that is written has the extension of an output file.
  const auto written = std::ranges::find_if(containers(), &ContainerTraits::writes);
  return fmt::format("nibble convert {} OUT{} {}", quoted_path(path),
                     reference.is_directory() ? "" : written->extension, advised_options(advice));
}

std::map<std::string, std::uint64_t> tensors_by_codec(const Advice& advice) {
  std::map<std::string, std::uint64_t> counts;
  for (const AdvisedTensor& tensor : advice.tensors) ++counts[tensor.codec.text()];
  return counts;
}

Json describe(const Advice& advice, const AdvicePoint& point) {
  return {{"bytes", point.bytes},
          {"bits_per_weight", advice.bits_per_weight(point.bytes)},
          {"cost", point.cost},
          {"sqnr_db", number(point.sqnr_db)}};
}

// Some points of the curve; the chosen one is among them.
std::vector<AdvicePoint> rows_of(const Advice& advice) {
  std::vector<AdvicePoint> rows;
  const std::size_t points = advice.curve.size();
  const std::size_t shown = std::min(points, max_curve_rows);
  for (std::size_t i = 0; i < shown; ++i) rows.push_back(advice.curve[shown == 1 ? 0 : i * (points - 1) / (shown - 1)]);
  std::erase_if(rows, [&](const AdvicePoint& row) { return row.bytes == advice.chosen.bytes; });
  rows.insert(
      std::find_if(rows.begin(), rows.end(), [&](const AdvicePoint& row) { return row.bytes > advice.chosen.bytes; }),
      advice.chosen);
  return rows;
}

}  // namespace

std::string advised_options(const Advice& advice) {
  std::vector<std::string> options = options_for(advice.recipe);
  std::ranges::transform(options, options.begin(), shell_quoted);
  return fmt::format("{}", fmt::join(options, " "));
}

Json advice_json(const Reader& reference, const SizedAdvice& found) {
  const auto& [max_bytes, advice] = found;
  Json json;
  json["reference"] = {{"name", reference.path().string()}, {"weights", advice.weights}};
  json["max_bytes"] = max_bytes;
  json["base"] = advice.recipe.to.text();
  json["chosen"] = describe(advice, advice.chosen);
  json["tensors_by_codec"] = tensors_by_codec(advice);
  json["nibble_only"] = advice.recipe.allow_nibble_only;
  json["options"] = options_for(advice.recipe);
  Json& tensors = json["tensors"] = Json::array();
  for (const AdvisedTensor& tensor : advice.tensors)
    tensors.push_back({{"name", reference.tensors().name(tensor.source)}, {"codec", tensor.codec.text()}});
  Json& curve = json["curve"] = Json::array();
  for (const AdvicePoint& point : advice.curve) curve.push_back(describe(advice, point));
  return json;
}

std::string advice_text(const AdviseArguments& arguments, const Reader& reference, const SizedAdvice& found) {
  const auto& [max_bytes, advice] = found;
  std::string counts;
  for (const auto& [codec, count] : tensors_by_codec(advice))
    counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, codec);
  std::uint64_t source = 0;
  for (std::size_t t = 0; t < reference.tensors().size(); ++t) source += reference.tensors().bytes(t);
  std::string text = fmt::format("{} -> {} of {}, {:.2f} bits per weight, SQNR {}; tensors: {}\n", size_both(source),
                                 size_both(advice.chosen.bytes), size_both(max_bytes),
                                 advice.bits_per_weight(advice.chosen.bytes), with_unit(advice.chosen.sqnr_db), counts);
  if (advice.chosen.bytes == source && std::isinf(advice.chosen.sqnr_db))
    text += "Everything fits as it is: nothing has to be converted.\n";
  if (!arguments.allow_nibble_only)
    text += "Casts of the whole model (convert --to bf16, --to fp16) are not among the choices.\n";
  if (advice.recipe.allow_nibble_only) text += "Only nibble's own loader will read the result.\n";
  if (advice.by_sensitivity)
    text += "Errors count by the sensitivities of the layers.\n";
  else if (advice.by_outputs)
    text += "Errors are those of the layers' outputs.\n";

  // The error is that of the weights of all tensors, or of their outputs, each relative to its own tensor and counted
  // by weights or sensitivity: sqrt(cost / weights).
  const auto error = [&advice = advice](const AdvicePoint& point) {
    return advice.weights == 0 ? 0 : std::sqrt(point.cost / static_cast<double>(advice.weights));
  };
  const std::vector<AdvicePoint> rows = rows_of(advice);
  double largest = 0;
  for (const AdvicePoint& row : rows) largest = std::max(largest, error(row));
  text += fmt::format("\n  {:>10}  {:>6}  {:>8}  {:>8}\n", "size", "bits", "SQNR dB", "error");
  std::vector<std::pair<bool, std::string>> lines;  // a line and whether it is the chosen one; no two lines are equal
  for (const AdvicePoint& row : rows) {
    const auto length = largest > 0 ? static_cast<std::size_t>(std::lround(error_bar_width * error(row) / largest)) : 0;
    const std::string line =
        fmt::format("{:>10}  {:>6.2f}  {:>8}  {:>8}  {}", size_short(row.bytes), advice.bits_per_weight(row.bytes),
                    decibels(row.sqnr_db), fmt::format("{:.3g} %", 100 * error(row)), std::string(length, '#'));
    if (lines.empty() || lines.back().second != line) lines.emplace_back(false, line);
    lines.back().first |= row.bytes == advice.chosen.bytes;
  }
  for (const auto& [is_chosen, line] : lines)
    text += fmt::format("{} {}\n", is_chosen ? '>' : ' ', line.substr(0, line.find_last_not_of(' ') + 1));
  return text;
}

SizedAdvice find_advice(Terminal& terminal, const AdviseArguments& arguments, const Reader& reference) {
  if (!arguments.allow_nibble_only)
    for (const CodecSpec& codec : arguments.codecs)
      if (!make_codec(codec)->quantizes())
        throw Error(Errc::usage,
                    fmt::format("--to {}: --advise chooses casts only with --allow-nibble-only", codec.text()));
  const std::vector<Candidate> formats =
      advice_formats(reference, arguments.allow_nibble_only, arguments.codecs, arguments.calibration);
  std::uint64_t weights = 0;
  for (const PlannedTensor& tensor : formats.front().plan->tensors) weights += tensor.info.elements();
  const std::uint64_t max_bytes = parse_budget(arguments.size, weights);
  ProgressDisplay progress(terminal, arguments.progress);
  const Measurement measurement =
      measure(reference, formats, {false, arguments.resources, arguments.calibration}, progress);
  progress.close();
  SizedAdvice found{max_bytes, advise(reference, formats, measurement,
                                      {max_bytes, arguments.allow_nibble_only, arguments.calibration,
                                       arguments.resources.max_memory})};
  for (const std::string& warning : found.advice.warnings) terminal.note("warning: " + warning);
  return found;
}

void run_advise(Terminal& terminal, const AdviseArguments& arguments) {
  const std::unique_ptr<Reader> reference =
      open_checkpoint(arguments.reference, {.max_memory = arguments.resources.max_memory});
  const SizedAdvice found = find_advice(terminal, arguments, *reference);
  const std::string command = command_for(arguments.reference, *reference, found.advice);
  if (!arguments.json) return terminal.print("{}\n\n{}", command, advice_text(arguments, *reference, found));
  Json json = {{"schema_version", advice_schema}, {"generator", fmt::format("nibble {}", version())}};
  json.update(advice_json(*reference, found));
  json["command"] = command;
  terminal.print("{}\n", dump(json));
}

}  // namespace nibble::cli
