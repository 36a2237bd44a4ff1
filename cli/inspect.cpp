// nibble inspect CHECKPOINT: names, types, shapes and sizes. Reads headers, and for quantized weights also their
// quantization state. People see weights, as they were before they were quantized; programs get the tensors of the
// files, part by part.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.hpp"
#include "cli/options/options.hpp"
#include "cli/terminal/figures.hpp"
#include "cli/terminal/json.hpp"
#include "cli/terminal/sizes.hpp"
#include "cli/terminal/terminal.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/codec.hpp"
#include "nibble/error.hpp"
#include "quant/stream/stored_weights.hpp"

namespace nibble::cli {
namespace {

struct InspectOptions {
  std::string path;
  bool json = false;
  ResourceOptions resource_options;
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
void print_json(Terminal& terminal, const Reader& checkpoint, std::uint64_t bytes) {
  const auto& config = checkpoint.config();
  const Json json = {{"architecture", config ? Json(config->architecture) : Json()},
                     {"model_type", config ? Json(config->model_type) : Json()},
                     {"files", checkpoint.files()},
                     {"bytes", bytes},
                     {"tensors", Json::array()}};
  constexpr std::string_view empty_list = "[]\n}";
  const std::string text = dump_lines(json);
  if (checkpoint.tensors().empty()) return terminal.print("{}\n", text);
  terminal.print("{}[", std::string_view(text).substr(0, text.size() - empty_list.size()));
  for (std::size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const std::string list = dump_lines(Json::array({describe(checkpoint, i)}));  // "[\n {...}\n]"
    std::string tensor;
    for (const char c : std::string_view(list).substr(1, list.size() - 3)) {
      tensor += c;
      if (c == '\n') tensor += ' ';
    }
    terminal.print("{}{}", i == 0 ? "" : ",", tensor);
  }
  terminal.print("\n ]\n}}\n");
}

// A weight as a row of the table.
struct WeightRow {
  std::string name;
  std::string type;  // as it is stored: "F32", "int8", "nf4:double-quant=no"
  std::string shape;
  std::uint64_t bytes = 0;
};

std::string type_of(const StoredWeights::Tensor& weight) {
  if (!weight.quantized()) return std::string(traits(weight.stored.info.dtype).name);
  return weight.stored.codec.text();
}

// Layer 2 comes before layer 10: digits are compared as numbers.
bool is_before(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  // Skip what both names begin with, but do not cut a number in two.
  auto i = static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  while (i > 0 && is_digit(a[i - 1])) --i;
  std::size_t j = i;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const auto number = [&](std::string_view text, std::size_t& at) {
      while (at < text.size() && text[at] == '0') ++at;
      const std::size_t begin = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string_view left = number(a, i), right = number(b, j);
    if (left.size() != right.size()) return left.size() < right.size();
    if (left != right) return left < right;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;  // 07 and 7
}

void print_table(Terminal& terminal, const Reader& checkpoint, std::uint64_t bytes) {
  const StoredWeights weights(checkpoint);
  std::vector<WeightRow> rows;
  std::map<std::string, std::uint64_t> bytes_of_type;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const StoredWeights::Tensor weight = weights[i];
    rows.push_back({weight.stored.info.name, type_of(weight), to_string(weight.stored.info.shape), weight.bytes});
    bytes_of_type[rows.back().type] += weight.bytes;
  }
  const auto row_is_before = [](const WeightRow& a, const WeightRow& b) { return is_before(a.name, b.name); };
  if (!std::is_sorted(rows.begin(), rows.end(), row_is_before)) std::sort(rows.begin(), rows.end(), row_is_before);
  std::size_t name_width = 6, type_width = 5;
  for (WeightRow& row : rows) {
    row.name = printable(row.name);
    name_width = std::max(name_width, row.name.size());
    type_width = std::max(type_width, row.type.size());
  }
  for (const WeightRow& row : rows)
    terminal.print("{:<{}}  {:<{}} {:>18}  {:>10}\n", row.name, name_width, row.type, type_width, row.shape,
                   size_short(row.bytes));
  std::string types;
  for (const auto& [type, size] : bytes_of_type) types += fmt::format("; {} {}", type, size_short(size));
  const std::size_t parts = checkpoint.tensors().size(), files = checkpoint.files().size();
  terminal.print("\n{}{} in {}, {}{}\n",
                 parts == weights.size() ? "" : counted(weights.size(), "weight") + ", stored as ",
                 counted(parts, "tensor"), counted(files, "file"), size_both(bytes), types);
}

void run(const InspectOptions& options, Terminal& terminal) {
  const std::unique_ptr<Reader> checkpoint = open_checkpoint(
      options.path, {.accept_quantized = true, .max_memory = options.resource_options.resources().max_memory});
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : checkpoint->tensors()) bytes += tensor.bytes();
  options.json ? print_json(terminal, *checkpoint, bytes) : print_table(terminal, *checkpoint, bytes);
}

}  // namespace

void add_inspect(CLI::App& app, Terminal& terminal) {
  CLI::App* const command =
      app.add_subcommand("inspect", "List the weights of a checkpoint, quantized or not; reads headers only");
  const auto options = std::make_shared<InspectOptions>();
  command
      ->add_option("CHECKPOINT", options->path,
                   "A file, a model directory, or the name of a model in the local Hugging Face cache (org/model)")
      ->required()
      ->type_name("");
  add_json(*command, options->json);
  add_max_memory(*command, options->resource_options);
  command->footer(
      "A quantized weight is listed with its original shape, and with the options of its codec that differ from the\n"
      "defaults. --json lists the stored tensors instead, part by part.\n\n"
      "Examples:\n"
      "  nibble inspect Llama-3.1-8B\n"
      "  nibble inspect model.safetensors --json");
  command->callback([options, &terminal] { run(*options, terminal); });
}

}  // namespace nibble::cli
