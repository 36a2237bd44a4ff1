// nibble inspect CHECKPOINT: names, types, shapes and sizes. Reads headers only.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <memory>

#include "cli/commands.hpp"
#include "cli/json.hpp"
#include "cli/options.hpp"
#include "cli/sizes.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/error.hpp"

namespace nibble::cli {
namespace {

struct InspectOptions {
  std::string path;
  bool json = false;
};

Json describe(const Reader& checkpoint, std::size_t i) {
  const TensorInfo tensor = checkpoint.tensors()[i];
  return {{"name", tensor.name},
          {"dtype", traits(tensor.dtype).name},
          {"shape", tensor.shape},
          {"bytes", tensor.bytes()},
          {"file", checkpoint.files()[checkpoint.file_of(i)]}};
}

// One tensor at a time: all of them in one tree would take ten times what the checkpoint takes.
void print_json(const Reader& checkpoint, std::uint64_t bytes) {
  const auto& config = checkpoint.config();
  const Json json = {{"architecture", config ? Json(config->architecture) : Json()},
                     {"model_type", config ? Json(config->model_type) : Json()},
                     {"files", checkpoint.files()},
                     {"bytes", bytes},
                     {"tensors", Json::array()}};
  constexpr std::string_view empty_list = "[]\n}";
  const std::string text = dump_lines(json);
  if (checkpoint.tensors().empty()) return fmt::print("{}\n", text);
  fmt::print("{}[", std::string_view(text).substr(0, text.size() - empty_list.size()));
  for (std::size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const std::string list = dump_lines(Json::array({describe(checkpoint, i)}));  // "[\n {...}\n]"
    std::string tensor;
    for (const char c : std::string_view(list).substr(1, list.size() - 3)) {
      tensor += c;
      if (c == '\n') tensor += ' ';
    }
    fmt::print("{}{}", i == 0 ? "" : ",", tensor);
  }
  fmt::print("\n ]\n}}\n");
}

void run(const InspectOptions& options) {
  const std::unique_ptr<Reader> checkpoint = open_checkpoint(options.path, {.accept_quantized = true});
  std::uint64_t bytes = 0;
  std::size_t width = 6;
  std::map<std::string_view, std::uint64_t> bytes_of_type;
  for (const TensorInfo& tensor : checkpoint->tensors()) {
    bytes += tensor.bytes();
    bytes_of_type[traits(tensor.dtype).name] += tensor.bytes();
    width = std::max(width, printable(tensor.name).size());
  }
  if (options.json) return print_json(*checkpoint, bytes);
  for (const TensorInfo& tensor : checkpoint->tensors())
    fmt::print("{:<{}}  {:<5} {:>18}  {:>10}\n", printable(tensor.name), width, traits(tensor.dtype).name,
               to_string(tensor.shape), size_short(tensor.bytes()));
  std::string types;
  for (const auto& [type, size] : bytes_of_type) types += fmt::format("; {} {}", type, size_short(size));
  fmt::print("\n{} tensors in {} file{}, {}{}\n", checkpoint->tensors().size(), checkpoint->files().size(),
             checkpoint->files().size() == 1 ? "" : "s", size_both(bytes), types);
}

}  // namespace

void add_inspect(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("inspect", "List the tensors of a checkpoint; reads headers only");
  const auto options = std::make_shared<InspectOptions>();
  command->add_option("CHECKPOINT", options->path, "A file, a model directory, or org/model in the local hub cache")
      ->required()
      ->type_name("");
  add_json(*command, options->json);
  command->footer(
      "Examples:\n"
      "  nibble inspect Llama-3.1-8B\n"
      "  nibble inspect model.safetensors --json");
  command->callback([options] { run(*options); });
}

}  // namespace nibble::cli
