// nibble formats: what can be read and written, from the registries, and the CPU targets that do it.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cli/commands.hpp"
#include "cli/options/options.hpp"
#include "cli/terminal/json.hpp"
#include "cli/terminal/terminal.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/codec.hpp"
#include "nibble/codec_spec.hpp"
#include "nibble/target.hpp"
#include "quant/schemes/scheme.hpp"

namespace nibble::cli {
namespace {

// quant_method of the scheme that stores what a codec makes; empty if the codec does not quantize.
std::string_view quant_method_of(const Codec& codec) {
  return codec.quantizes() ? scheme_of(codec).quant_method() : std::string_view();
}

void run(bool as_json, Terminal& terminal) {
  Json json = {{"codecs", Json::array()}, {"containers", Json::array()}};
  for (const std::string_view name : codec_names()) {
    const auto codec = make_codec(name);
    const CodecInfo& info = codec->spec().info();
    const std::string_view quant_method = quant_method_of(*codec);
    Json options = Json::array();
    for (const CodecOption& option : info.options)
      options.push_back({{"name", option.name},
                         {"help", option.help},
                         {"values", option.values},
                         {"default", option.values[option.default_value]}});
    json["codecs"].push_back({{"name", name},
                              {"summary", info.summary},
                              {"quantizes", codec->quantizes()},
                              {"quant_method", quant_method.empty() ? Json() : Json(quant_method)},
                              {"options", std::move(options)}});
  }
  for (const ContainerTraits& container : containers())
    json["containers"].push_back(
        {{"name", container.name}, {"summary", container.summary}, {"writes", container.writes}});
  json["cpu_target"] = cpu_target();
  json["cpu_targets"] = cpu_targets();
  if (as_json) {
    terminal.print("{}\n", dump_lines(json));
    return;
  }
  terminal.print("codecs (--to, --tensor RE=CODEC), and their options (nf4:block-size=32):\n");
  for (const std::string_view name : codec_names()) {
    const auto codec = make_codec(name);
    const CodecInfo& info = codec->spec().info();
    const std::string_view quant_method = quant_method_of(*codec);
    terminal.print("  {:<12} {}{}{}\n", name, info.summary, quant_method.empty() ? "" : "; stored in the format of ",
                   quant_method);
    for (const CodecOption& option : info.options)
      terminal.print("    {:<12} {} [{}]: {}\n", option.name, fmt::join(option.values, "|"),
                     option.values[option.default_value], option.help);
  }
  terminal.print("containers:\n");
  for (const Json& container : json["containers"])
    terminal.print("  {:<12} {} ({})\n", container["name"].get<std::string>(), container["summary"].get<std::string>(),
                   container["writes"].get<bool>() ? "reads and writes" : "reads");
  terminal.print("CPU targets of this build on this processor (NIBBLE_CPU_TARGET):\n");
  for (const std::string_view target : cpu_targets())
    terminal.print("  {}{}\n", target, target == cpu_target() ? " (in use)" : "");
}

}  // namespace

void add_formats(CLI::App& app, Terminal& terminal) {
  CLI::App* const command = app.add_subcommand("formats", "List codecs, containers and CPU targets");
  const auto as_json = std::make_shared<bool>(false);
  add_json(*command, *as_json);
  command->footer(
      "In the JSON, \"quantizes\" is true for codecs that store codes with an absmax or a scale; the others cast or "
      "keep\n"
      "the weights. \"quant_method\" is the tool in whose format those codes are stored, as config.json names it.\n\n"
      "Example:\n  nibble formats --json");
  command->callback([as_json, &terminal] { run(*as_json, terminal); });
}

}  // namespace nibble::cli
