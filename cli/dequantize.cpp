// nibble dequantize IN OUT --to TYPE: a conversion that takes what `convert` refuses, to plain weights.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.hpp"
#include "cli/conversion.hpp"
#include "cli/options/codec_option.hpp"
#include "nibble/codec.hpp"
#include "nibble/dequantize.hpp"

namespace nibble::cli {
namespace {

struct DequantizeOptions : ConversionCommand {
  std::string to;
};

std::vector<std::string_view> plain_types() {
  std::vector<std::string_view> names;
  std::ranges::copy_if(codec_names(), std::back_inserter(names),
                       [](std::string_view name) { return make_codec(name)->cast_type().has_value(); });
  return names;
}

void run(const CLI::App& command, DequantizeOptions& options, Terminal& terminal) {
  options.recipe.to = parse_codec("--to", options.to, plain_types());
  run_conversion(command, options, terminal);
}

}  // namespace

void add_dequantize(CLI::App& app, Terminal& terminal) {
  CLI::App* const command = app.add_subcommand("dequantize", "Turn a quantized checkpoint back into plain weights");
  const auto options = std::make_shared<DequantizeOptions>();
  options->recipe = dequantization("fp32");  // or what --to says

  add_paths(*command, *options);
  command->add_option("--to", options->to, "The type of all weights of the result")
      ->type_name(fmt::format("{}", fmt::join(plain_types(), "|")))
      ->required();
  add_on_overflow(*command, options->recipe);
  add_output(*command, *options);
  add_max_memory(*command, options->resources);
  add_threads(*command, options->resources);
  command->footer(
      "Takes what convert, bitsandbytes and transformers write in NF4, FP4, int8 and FP8, also in directories that "
      "only\n"
      "nibble reads. config.json says afterwards that the model is plain.\n\n"
      "Examples:\n"
      "  nibble dequantize Llama-3.1-8B-nf4 Llama-3.1-8B-bf16 --to bf16\n"
      "  nibble dequantize model-int8.safetensors model.safetensors --to fp32");
  command->callback([command, options, &terminal] { run(*command, *options, terminal); });
}

}  // namespace nibble::cli
