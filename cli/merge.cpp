// nibble merge BASE ADAPTER OUT --to TYPE: a conversion whose input is a base with an adapter merged into it.

#include <fcntl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.hpp"
#include "cli/convert.hpp"
#include "cli/options/codec_option.hpp"
#include "cli/options/options.hpp"
#include "cli/terminal/figures.hpp"
#include "core/files/directory.hpp"
#include "nibble/error.hpp"
#include "nibble/merge.hpp"

namespace nibble::cli {
namespace {

struct MergeOptions : ConvertOptions {
  std::string adapter;
};

std::string survival_text(const std::vector<UpdateSurvival>& tensors, double seconds) {
  if (tensors.empty()) return {};
  std::size_t width = 0;
  for (const UpdateSurvival& tensor : tensors) width = std::max(width, printable(tensor.name).size());
  std::string text =
      fmt::format("what is left of each update after quantization, measured in {:.2f} s:\n{:<{}}  {:>8}  {:>9}\n",
                  seconds, "tensor", width, "norm", "cosine");
  for (const UpdateSurvival& tensor : tensors)
    text += fmt::format("{:<{}}  {:>8}  {:>9}\n", printable(tensor.name), width, percent(tensor.ratio),
                        similarity(tensor.cosine));
  return text;
}

Json survival_json(const std::vector<UpdateSurvival>& tensors) {
  const auto number = [](double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); };
  Json json = Json::array();
  for (const UpdateSurvival& tensor : tensors)
    json.push_back({{"tensor", tensor.name},
                    {"update_norm", number(tensor.update_norm)},
                    {"ratio", number(tensor.ratio)},
                    {"cosine", number(tensor.cosine)}});
  return json;
}

// Nothing is written over an input. The base is checked as that of every conversion.
void check_adapter(const MergeOptions& options) {
  const auto check = [&](const std::filesystem::path& input, const char* what) {
    std::error_code unknown;
    if (std::filesystem::equivalent(options.out, input, unknown))
      throw Error(Errc::usage, escaped(options.out),
                  fmt::format("the output is {} '{}'", what, escaped(options.adapter)));
  };
  check(options.adapter, "the adapter");
  const Descriptor folder = open_directory(AT_FDCWD, options.adapter);
  if (folder.get() < 0) return;  // open_merged() says why
  for (const std::string& file : list_directory(folder.get(), escaped(options.adapter)))
    check(std::filesystem::path(options.adapter) / file, "a file of the adapter");
}

void run(const CLI::App& command, MergeOptions& options, Terminal& terminal) {
  check_adapter(options);
  options.open = [&] { return open_merged(options.in, options.adapter, options.resources.resources().max_memory); };
  options.add_to_report = [&](const Reader& in, const Report& report, Progress& progress, std::string& text,
                              Json& json) {
    const auto start = std::chrono::steady_clock::now();
    const auto tensors = measure_survival(in, report.plan, options.resources.resources(), progress);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (!options.json) {
      text += survival_text(tensors, seconds.count());
      return;
    }
    json["updates"] = survival_json(tensors);
    json["updates_seconds"] = seconds.count();
  };
  run_recipe(command, options, terminal);
}

}  // namespace

void add_merge(CLI::App& app, Terminal& terminal) {
  CLI::App* const command = app.add_subcommand("merge", "Merge a LoRA adapter into its base, quantized or not");
  const auto options = std::make_shared<MergeOptions>();

  command
      ->add_option("BASE", options->in,
                   "The model that the adapter was trained on, plain or quantized: a .safetensors file, a model "
                   "directory, or the name of a model in the local Hugging Face cache (org/model)")
      ->required()
      ->type_name("");
  command
      ->add_option("ADAPTER", options->adapter,
                   "A directory with adapter_config.json and adapter_model.safetensors, as peft saves it")
      ->required()
      ->type_name("");
  command
      ->add_option("OUT", options->out,
                   "Where to write the result: a file (NAME.safetensors) if BASE is a file, a directory if BASE is a "
                   "directory")
      ->required()
      ->type_name("");
  add_recipe(*command, *options);
  add_output(*command, *options);
  add_max_memory(*command, options->resources);
  add_threads(*command, options->resources);
  command->footer(codec_help() +
                  "\nThe sums are computed in fp32. If the result is quantized, two figures for each updated tensor "
                  "say what\nis left of its update: the norm of the change after quantization, in percent of the "
                  "update's, and the\ncosine of the angle between both.\n"
                  "\nExamples:\n"
                  "  nibble merge Llama-3.1-8B adapter merged --to bf16\n"
                  "  nibble merge Llama-3.1-8B-nf4 adapter merged-nf4 --to nf4");
  command->callback([command, options, &terminal] { run(*command, *options, terminal); });
}

}  // namespace nibble::cli
