// nibble convert IN OUT --to TYPE: options into a recipe, a plan, one call into the library, a summary.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>

#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/json.hpp"
#include "cli/options.hpp"
#include "cli/progress.hpp"
#include "cli/sizes.hpp"
#include "nibble/convert.hpp"
#include "nibble/device.hpp"
#include "nibble/error.hpp"

namespace nibble::cli {
namespace {

struct ConvertOptions {
  std::string in;
  std::string out;
  Recipe recipe;
  bool no_double_quant = false;
  bool no_default_skips = false;
  std::string compute_dtype;
  std::vector<std::string> rules;
  std::string max_shard_size = "5GB";
  DeviceChoice device = DeviceChoice::cpu;
  ResourceOptions resource_options;
  Resources resources;  // what those come to
  bool dry_run = false;
  bool overwrite = false;
  bool json = false;
  std::string progress;
};

void finish_recipe(ConvertOptions& options) {
  Recipe& recipe = options.recipe;
  recipe.options.double_quant = !options.no_double_quant;
  recipe.default_skips = !options.no_default_skips;
  recipe.max_shard_bytes = parse_size("--max-shard-size", options.max_shard_size);
  options.resources = options.resource_options.resources();
  for (const DTypeTraits& dtype : dtypes)
    if (dtype.torch_name == options.compute_dtype) recipe.compute_dtype = dtype.dtype;
  for (const std::string& rule : options.rules) {
    const std::size_t equals = rule.rfind('=');
    if (equals == std::string::npos)
      throw Error(Errc::usage, fmt::format("--tensor '{}': not of the form RE=TYPE", printable(rule)));
    recipe.rules.push_back({rule.substr(0, equals), rule.substr(equals + 1)});
  }
}

double bits_per_weight(const Plan& plan) {
  std::uint64_t weights = 0;
  for (const PlannedTensor& tensor : plan.tensors) weights += tensor.info.elements();
  return weights == 0 ? 0 : 8 * static_cast<double>(plan.stored_bytes()) / static_cast<double>(weights);
}

Json summary(const Plan& plan, const std::vector<std::string>& warnings) {
  std::map<std::string, std::uint64_t> codecs;
  for (const PlannedTensor& tensor : plan.tensors) ++codecs[std::string(tensor.codec)];
  return {{"architecture", plan.architecture.empty() ? Json() : Json(plan.architecture)},
          {"tensors_by_codec", codecs},
          {"source_bytes", plan.source_bytes()},
          {"stored_bytes", plan.stored_bytes()},
          {"bits_per_weight", bits_per_weight(plan)},
          {"quantized_share", plan.quantized_share()},
          {"shards", plan.shard_ends.size()},
          {"warnings", warnings}};
}

void print_warnings(const std::vector<std::string>& warnings) {
  // Not through fmt, which throws where nobody listens to stderr.
  for (const std::string& warning : warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
}

void print_plan(const ConvertOptions& options, const Plan& plan) {
  const MemoryPlan memory = plan_memory(plan, options.resources);
  if (options.json) {
    Json json = summary(plan, plan.warnings);
    json["memory_bytes"] = memory.total_bytes;
    json["threads"] = memory.threads;
    json["chunk_bytes"] = memory.chunk_bytes;
    json["batch_bytes"] = memory.batch_bytes;
    Json& tensors = json["tensors"] = Json::array();
    for (const PlannedTensor& tensor : plan.tensors)
      tensors.push_back({{"name", tensor.info.name},
                         {"dtype", traits(tensor.info.dtype).name},
                         {"shape", tensor.info.shape},
                         {"codec", tensor.codec},
                         {"reason", tensor.reason},
                         {"source_bytes", tensor.info.bytes()},
                         {"stored_bytes", tensor.stored_bytes}});
    fmt::print("{}\n", dump_lines(json));
    return;
  }
  std::size_t width = 6;
  for (const PlannedTensor& tensor : plan.tensors) width = std::max(width, printable(tensor.info.name).size());
  fmt::print("{:<{}}  {:<5} {:>18}  {:<5}  {:>10}  {}\n", "tensor", width, "type", "shape", "codec", "stored", "why");
  for (const PlannedTensor& tensor : plan.tensors)
    fmt::print("{:<{}}  {:<5} {:>18}  {:<5}  {:>10}  {}\n", printable(tensor.info.name), width,
               traits(tensor.info.dtype).name, to_string(tensor.info.shape), tensor.codec,
               size_short(tensor.stored_bytes), tensor.reason);
  fmt::print("\n{} tensors, {} -> {} in {} file{}, {:.2f} bits per weight; {} of memory with {} thread{}\n",
             plan.tensors.size(), size_both(plan.source_bytes()), size_both(plan.stored_bytes()),
             plan.shard_ends.size(), plan.shard_ends.size() == 1 ? "" : "s", bits_per_weight(plan),
             size_short(memory.total_bytes), memory.threads, memory.threads == 1 ? "" : "s");
  print_warnings(plan.warnings);
}

// Starting a device takes a while, whatever there is to do: little work is left to the CPU.
constexpr std::uint64_t least_for_device = 256 << 20;

std::unique_ptr<Device> open_device(DeviceChoice choice, const Plan& plan) {
  std::uint64_t quantized = 0;
  for (const PlannedTensor& tensor : plan.tensors) quantized += tensor.quantized ? tensor.info.bytes() : 0;
  if (choice == DeviceChoice::automatic && quantized < least_for_device) return nullptr;
  return Device::open(choice);
}

std::string text_of(const ConvertOptions& options, const Report& report, double seconds) {
  const Plan& plan = report.plan;
  const Device* const device = options.resources.device;
  const bool on_device = device != nullptr && device->chunks() > 0;
  if (options.json) {
    const Findings& found = report.findings;
    Json json = summary(plan, report.warnings);
    json["findings"] = {{"nan", found.nan},
                        {"inf", found.inf},
                        {"overflow", found.overflow},
                        {"underflow", found.underflow},
                        {"subnormal", found.subnormal}};
    json["output"] = options.out;
    json["device"] = on_device ? device->name() : "cpu";
    json["seconds"] = seconds;
    return dump_lines(json) + '\n';
  }
  std::map<std::string, std::uint64_t> codecs;
  for (const PlannedTensor& tensor : plan.tensors) ++codecs[std::string(tensor.codec)];
  std::string counts;
  for (const auto& [codec, count] : codecs) counts += fmt::format("{}{} {}", counts.empty() ? "" : ", ", count, codec);
  return fmt::format(
      "{}: {} -> {}, {:.2f} bits per weight, {:.2f} s ({}/s) on {}; tensors: {}\n", options.out,
      size_both(plan.source_bytes()), size_both(plan.stored_bytes()), bits_per_weight(plan), seconds,
      size_short(static_cast<std::uint64_t>(static_cast<double>(plan.source_bytes()) / std::max(seconds, 1e-9))),
      on_device ? device->name() : "the CPU", counts);
}

// Makes the text before the output appears: afterwards nothing may fail, not even for want of memory.
class ReportingDisplay final : public ProgressDisplay {
 public:
  ReportingDisplay(ProgressStyle style, const ConvertOptions& options) : ProgressDisplay(style), options_(options) {}

  void ready(const Report& report) override {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    text_ = text_of(options_, report, seconds.count());
    for (const std::string& warning : report.warnings) warnings_ += fmt::format("warning: {}\n", warning);
  }

  // Throws Error(io) if the report is lost.
  void print(const std::string& remains) {
    close();
    (void)std::fwrite(text_.data(), 1, text_.size(), stdout);
    (void)std::fwrite(warnings_.data(), 1, warnings_.size(), stderr);
    if (!remains.empty()) std::fprintf(stderr, "warning: %s\n", remains.c_str());
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      throw Error(Errc::io, fmt::format("{} is complete, but the report cannot be written to standard output",
                                        escaped(options_.out)));
  }

 private:
  const ConvertOptions& options_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::string text_, warnings_;
};

void run(ConvertOptions& options) {
  catch_interrupts();
  finish_recipe(options);
  ReportingDisplay display(progress_style(options.progress), options);
  const std::unique_ptr<Reader> in = open_checkpoint(options.in, {.max_memory = options.resources.max_memory});
  Plan plan = make_plan(*in, options.recipe);
  const std::unique_ptr<Device> device = open_device(options.device, plan);
  options.resources.device = device.get();
  if (options.dry_run) return print_plan(options, plan);
  const std::unique_ptr<Writer> out =
      create_checkpoint(options.out, *in,
                        {.shards = plan.shard_ends.size(),
                         .bytes = plan.stored_bytes() + plan_memory(plan, options.resources).spilled_bytes,
                         .overwrite = options.overwrite,
                         .memory = chunk_memory(device.get())});
  convert(*in, std::move(plan), *out, options.resources, display);
  display.print(out->remains());
}

template <class Enum>
CLI::Option* add_choice(CLI::App& command, const std::string& name, Enum& value,
                        const std::map<std::string, Enum>& choices, const std::string& help) {
  std::string shown;
  for (const auto& [choice, unused] : choices) shown += (shown.empty() ? "" : "|") + choice;
  return command.add_option(name, value, help)
      ->transform(CLI::CheckedTransformer(choices, CLI::ignore_case).description(""))
      ->type_name(shown);
}

}  // namespace

void add_convert(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("convert", "Convert a checkpoint to fp16, bf16, int8, NF4 or FP4");
  const auto options = std::make_shared<ConvertOptions>();
  Recipe& recipe = options->recipe;

  std::vector<std::string> codecs;
  std::vector<std::string> targets;
  std::string shown;
  for (const std::string_view name : codec_names()) {
    codecs.emplace_back(name);
    if (name == "keep") continue;
    targets.emplace_back(name);
    shown += (shown.empty() ? "" : "|") + std::string(name);
  }
  const auto codec = [codecs](CLI::Option* option) {
    return option->check(CLI::IsMember(codecs).description(""))->type_name("TYPE");
  };

  command->add_option("IN", options->in, "A .safetensors file, a model directory, or org/model in the local hub cache")
      ->required()
      ->type_name("");
  command->add_option("OUT", options->out, "What to write: a file for a file, a directory for a directory")
      ->required()
      ->type_name("");
  command
      ->add_option("--to", recipe.to,
                   "Target: linear layers are quantized as transformers would; casts take all weights")
      ->required()
      ->check(CLI::IsMember(targets).description(""))
      ->type_name(shown);

  const std::string format = "Format";
  command->add_option("--block-size", recipe.options.blocksize, "Weights per absmax: 32, 64, ..., 4096 (nf4, fp4)")
      ->capture_default_str()
      ->type_name("N")
      ->group(format);
  command->add_flag("--no-double-quant", options->no_double_quant, "Keep absmax in fp32 (nf4, fp4)")->group(format);
  command
      ->add_option("--compute-dtype", options->compute_dtype,
                   "bnb_4bit_compute_dtype [the source's 16-bit type; float32 for an fp32 source]")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}).description(""))
      ->type_name("float32|bfloat16|float16")
      ->group(format);
  add_choice<OnOverflow>(*command, "--on-overflow", recipe.options.on_overflow,
                         {{"error", OnOverflow::error}, {"clamp", OnOverflow::clamp}, {"keep", OnOverflow::keep}},
                         "Values beyond 65504 (fp16 only): stop, store 65504, or store infinity [error]")
      ->group(format);
  add_choice<Nonfinite>(*command, "--nonfinite", recipe.nonfinite,
                        {{"keep", Nonfinite::keep}, {"error", Nonfinite::error}, {"quantize", Nonfinite::quantize}},
                        "Tensors with NaN or infinity: leave them as they are, stop, or quantize around them [keep]")
      ->group(format);

  add_choice<ErrorReport>(*command, "--error-report", recipe.error_report,
                          {{"none", ErrorReport::none}, {"basic", ErrorReport::basic}, {"full", ErrorReport::full}},
                          "Error of every tensor in the manifest: from sums made on the way, or of `nibble measure`, "
                          "which reads the input once more [basic]")
      ->group(format);

  const std::string selection = "Which tensors";
  add_repeatable(*command, "--tensor", options->rules,
                 "Codec for tensors whose whole name matches; the last match wins; repeatable")
      ->type_name("RE=TYPE")
      ->group(selection);
  add_repeatable(*command, "--skip", recipe.skips,
                 "Leave matching tensors as they are, beside those that transformers leaves; repeatable")
      ->type_name("RE")
      ->group(selection);
  command
      ->add_flag("--no-default-skips", options->no_default_skips, "Quantize what transformers leaves, such as lm_head")
      ->group(selection);
  codec(command->add_option("--embeddings", recipe.embeddings, "Codec for embeddings"))
      ->capture_default_str()
      ->group(selection);
  codec(command->add_option("--lm-head", recipe.lm_head, "Codec for the output layer"))
      ->capture_default_str()
      ->group(selection);
  codec(command->add_option("--experts", recipe.experts, "Codec for fused experts"))
      ->capture_default_str()
      ->group(selection);
  command
      ->add_flag("--allow-nibble-only", recipe.allow_nibble_only, "Accept a result that only nibble's own loader reads")
      ->group(selection);

  command
      ->add_option("--max-shard-size", options->max_shard_size,
                   "Start a new file beyond this size (GB = 1e9, GiB = 2^30)")
      ->capture_default_str()
      ->type_name("SIZE")
      ->group(output_group);
  command->add_flag("--keep-shards", recipe.keep_shards, "One output file per input file")->group(output_group);
  command->add_flag("--overwrite", options->overwrite, "Replace an output that exists, once the new one is complete")
      ->group(output_group);
  command
      ->add_flag("--dry-run", options->dry_run, "Print every tensor's codec and why, sizes and memory; write nothing")
      ->group(output_group);
  add_json(*command, options->json)->group(output_group);
  add_progress(*command, options->progress);

  add_max_memory(*command, options->resource_options);
  add_choice<DeviceChoice>(
      *command, "--device", options->device,
      {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}},
      "Where codecs run; all write the same bytes. auto: a GPU if there is one, for 256 MiB or more [cpu]")
      ->group(resources_group);
  add_threads(*command, options->resource_options);

  command->footer(
      "Examples:\n"
      "  nibble convert Llama-3.1-8B Llama-3.1-8B-nf4 --to nf4\n"
      "  nibble convert meta-llama/Llama-3.1-8B out --to int8 --dry-run\n"
      "  nibble convert model.safetensors model-fp16.safetensors --to fp16 --on-overflow clamp\n"
      "  nibble convert IN OUT --to nf4 --skip '.*\\.layers\\.0\\..*' --tensor '.*down_proj.*=fp4'");
  command->callback([options] { run(*options); });
}

}  // namespace nibble::cli
