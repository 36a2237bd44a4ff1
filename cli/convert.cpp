// nibble convert IN OUT --to TYPE: options into a recipe, a plan, one call into the library, a summary.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "cli/advise.hpp"
#include "cli/commands.hpp"
#include "cli/conversion.hpp"
#include "cli/convert.hpp"
#include "cli/options/codec_option.hpp"
#include "cli/options/options.hpp"
#include "cli/summary.hpp"
#include "cli/terminal/json.hpp"
#include "cli/terminal/progress.hpp"
#include "cli/terminal/remedies.hpp"
#include "cli/terminal/sizes.hpp"
#include "cli/terminal/terminal.hpp"
#include "core/text/suggest.hpp"
#include "formats/commit/output_name.hpp"
#include "formats/commit/writer.hpp"
#include "nibble/checkpoint.hpp"
#include "nibble/convert.hpp"
#include "nibble/device.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/codecs.hpp"
#include "quant/quantizers/compensation/compensated_quantizer.hpp"
#include "quant/schemes/scheme.hpp"
#include "quant/stream/weighing.hpp"

namespace nibble::cli {
namespace {

// What others call the types; errors suggest the word.
const std::vector<Synonym> type_synonyms{{"bf16", "bfloat16"}, {"fp16", "float16"}, {"f16", "float16"},
                                         {"half", "float16"},  {"fp32", "float32"}, {"f32", "float32"},
                                         {"float", "float32"}};

// Options such as --block-size apply to all codecs that have this option, unless it is given to the codec.
class Shorthand {
 public:
  Shorthand(std::string_view flag, std::string_view option, std::optional<std::string_view> value)
      : flag_(flag), option_(option), value_(value) {}

  void apply(std::string_view text, CodecSpec& codec) const {
    if (!value_ || !codec.has(option_)) return;
    if (const auto given = given_options(text); std::ranges::find(given, option_) != given.end())
      throw Error(Errc::usage, fmt::format("{} cannot be combined with '{}', which sets the same option", flag_,
                                           printable(std::string(text))));
    try {
      codec = codec.with(option_, *value_);
    } catch (const Error& error) {
      throw Error(Errc::usage, fmt::format("{}: {}", flag_, error.what()));
    }
  }

 private:
  std::string_view flag_, option_;
  std::optional<std::string_view> value_;  // none if the user did not give the flag; an empty one is an error
};

void finish_recipe(const CLI::App& command, ConvertOptions& options) {
  Recipe& recipe = options.recipe;
  const std::vector<std::string_view> targets = target_names();
  recipe.to = parse_codec("--to", options.to, targets);
  recipe.embeddings = parse_codec("--embeddings", options.embeddings, codec_names());
  recipe.lm_head = parse_codec("--lm-head", options.lm_head, codec_names());
  recipe.experts = parse_codec("--experts", options.experts, codec_names());
  for (const std::string& rule : options.rules) recipe.rules.push_back(parse_rule(rule));
  using Value = std::optional<std::string_view>;
  for (const Shorthand& shorthand :
       {Shorthand("--block-size", "block-size", command.count("--block-size") > 0 ? Value(options.blocksize) : Value()),
        Shorthand("--no-double-quant", "double-quant", options.no_double_quant ? Value("no") : Value()),
        Shorthand("--absmax", "absmax", command.count("--absmax") > 0 ? Value(options.absmax) : Value())}) {
    shorthand.apply(options.to, recipe.to);
    shorthand.apply(options.embeddings, recipe.embeddings);
    shorthand.apply(options.lm_head, recipe.lm_head);
    shorthand.apply(options.experts, recipe.experts);
    for (std::size_t r = 0; r < recipe.rules.size(); ++r)
      shorthand.apply(std::string_view(options.rules[r]).substr(recipe.rules[r].pattern.size() + 1),
                      recipe.rules[r].codec);
  }
  recipe.default_skips = !options.no_default_skips;
  check_calibration(command, recipe.calibration);
  if (recipe.compensate && recipe.calibration.empty())
    throw Error(Errc::usage,
                "--compensate needs --calibration DIR, where DIR is what `python -m nibble.calibrate MODEL --text FILE "
                "--out DIR --second-moments` writes");
}

bool chooses_compute_type(const CodecSpec& spec) { return has_compute_dtype(*make_codec(spec)); }

std::string only_compute_types() {
  return fmt::format("only {} layers have a compute type", codecs_where(chooses_compute_type));
}

// Refuses options that have no effect: the user expects something that will not happen. `codecs` are those that were
// asked for or, once there is a plan, those that tensors get; `fact` says what is wrong with such an option.
void check_applicable(const CLI::App& command, const Recipe& recipe, const std::set<CodecSpec>& codecs,
                      std::string_view fact) {
  bool has_blocks = false, has_double_quant = false, has_absmax = false, has_compute_type = false, quantizes = false,
       casts_any = false, searches = false, compensates = false;
  for (const CodecSpec& spec : codecs) {
    const auto codec = make_codec(spec);
    quantizes = quantizes || codec->quantizes();
    casts_any = casts_any || codec->cast_type();
    has_blocks = has_blocks || spec.has("block-size");
    has_double_quant = has_double_quant || spec.has("double-quant");
    has_absmax = has_absmax || spec.has("absmax");
    searches = searches || searches_absmax(spec);
    compensates = compensates || compensated_columns(*codec);
    has_compute_type = has_compute_type || chooses_compute_type(spec);
  }
  const bool casts = !make_codec(recipe.to)->quantizes();
  const auto refuse_if = [&](bool wrong, const char* option, std::string_view why) {
    if (wrong && command.count(option) > 0) throw Error(Errc::usage, fmt::format("{} {}: {}", option, fact, why));
  };
  refuse_if(!has_blocks, "--block-size", fmt::format("only {} have this option", codecs_with("block-size")));
  refuse_if(!has_double_quant, "--no-double-quant",
            fmt::format("only {} have double quantization", codecs_with("double-quant")));
  const auto is_compensated = [](const CodecSpec& spec) { return compensated_columns(*make_codec(spec)).has_value(); };
  refuse_if(!compensates, "--compensate", fmt::format("only {} have it", codecs_where(is_compensated)));
  if (!searches && !recipe.compensate && !recipe.calibration.empty())
    throw Error(Errc::usage, fmt::format("--calibration {}: only searches of absmax (--absmax search) and compensation "
                                         "(--compensate) use statistics",
                                         fact));
  refuse_if(!has_absmax, "--absmax", fmt::format("only {} have this option", codecs_with("absmax")));
  refuse_if(!has_compute_type, "--compute-dtype", only_compute_types());
  refuse_if(!casts_any, "--on-overflow", "it applies to casts only (--nonfinite applies to quantized tensors)");
  refuse_if(!quantizes && recipe.nonfinite == Nonfinite::quantize, "--nonfinite",
            "casts store NaN and infinity as they are, so there is nothing to quantize");
  refuse_if(!quantizes, "--allow-nibble-only", "transformers can load every cast");
  for (const char* const option : {"--no-default-skips", "--embeddings", "--lm-head", "--experts"})
    refuse_if(casts, option, "a cast converts all weights; --tensor and --skip choose among them");
}

std::set<CodecSpec> codecs_of(const Recipe& recipe) {
  std::set<CodecSpec> codecs{recipe.to, recipe.embeddings, recipe.lm_head, recipe.experts};
  for (const Rule& rule : recipe.rules) codecs.insert(rule.codec);
  return codecs;
}

void check_applicable(const CLI::App& command, const Recipe& recipe) {
  std::set<CodecSpec> codecs = codecs_of(recipe);
  // Tensors in F64 are cast to F32 beside those that are quantized. Only the plan knows whether there are any.
  codecs.insert(cast_codec(DType::f32));
  check_applicable(command, recipe, codecs, fmt::format("cannot be combined with --to {}", recipe.to.text()));
}

void check_applicable(const CLI::App& command, const Plan& plan) {
  // If nothing is quantized, a warning says so, and that is enough. Options for casts are rules for values that may
  // come up, so they may also be given if all tensors have the type already.
  if (std::none_of(plan.tensors.begin(), plan.tensors.end(), [](const auto& tensor) { return tensor.quantized; }))
    return;
  std::set<CodecSpec> codecs;
  for (const CodecSpec& spec : codecs_of(plan.recipe))
    if (!make_codec(spec)->quantizes()) codecs.insert(spec);
  for (const PlannedTensor& tensor : plan.tensors) codecs.insert(tensor.codec);
  check_applicable(command, plan.recipe, codecs, "applies to no tensor");
}

// What an advice decides, and options that would change what was measured. The options of codecs are given to them.
constexpr std::array advised{"--tensor",  "--skip",       "--no-default-skips", "--embeddings",
                             "--lm-head", "--experts",    "--block-size",       "--no-double-quant",
                             "--absmax",  "--compensate", "--nonfinite",        "--on-overflow"};

// Measures, and takes over what is advised.
void advise(const CLI::App& command, ConvertOptions& options, Terminal& terminal) {
  for (const char* const option : advised)
    if (command.count(option) > 0)
      throw Error(Errc::usage, fmt::format("{} cannot be combined with --advise (see nibble convert --help)", option));
  check_calibration(command, options.recipe.calibration);
  std::vector<CodecSpec> codecs;
  for (const std::string& codec : command.get_option("--to")->results())
    codecs.push_back(parse_codec("--to", codec, target_names()));
  // Whether a codec is chosen that has a compute type is known only once everything is measured.
  const bool gives_compute_type = command.count("--compute-dtype") > 0;
  if (gives_compute_type && !codecs.empty() && std::ranges::none_of(codecs, chooses_compute_type))
    throw Error(Errc::usage, fmt::format("--compute-dtype cannot be combined with --to {}: {}", codecs.front().text(),
                                         only_compute_types()));
  const AdviseArguments arguments{options.in,
                                  *options.advise,
                                  std::move(codecs),
                                  options.recipe.allow_nibble_only,
                                  options.recipe.calibration,
                                  options.json,
                                  progress_style(options.progress),
                                  options.resources.resources()};
  const std::unique_ptr<Reader> in = open_checkpoint(options.in, {.max_memory = arguments.resources.max_memory});
  // What the conversion would refuse is found before hours of measuring. The size of the output is not known yet.
  check_conversion_options(command, options, *in);
  check_output_name(options.out, *in);
  if (!options.dry_run) check_output(options.out, *in, {.overwrite = options.conversion.overwrite});
  const SizedAdvice found = find_advice(terminal, arguments, *in);
  const Recipe& chosen = found.advice.recipe;
  Recipe& recipe = options.recipe;
  recipe.to = chosen.to;
  recipe.embeddings = chosen.embeddings;
  recipe.skips = chosen.skips;
  recipe.rules = chosen.rules;
  recipe.allow_nibble_only = chosen.allow_nibble_only;
  recipe.calibration = chosen.calibration;
  if (gives_compute_type && std::ranges::none_of(found.advice.tensors, chooses_compute_type, &AdvisedTensor::codec))
    terminal.note("warning: --compute-dtype applies to no tensor: " + only_compute_types());
  if (options.json)
    options.advice = advice_json(*in, found);
  else
    terminal.print("{}: {}\n{}\n", printable(*options.advise), advised_options(found.advice),
                   advice_text(arguments, *in, found));
}

void run(const CLI::App& command, ConvertOptions& options, Terminal& terminal) {
  if (!options.advise) {
    if (const std::size_t given = command.count("--to"); given != 1)
      throw Error(Errc::usage,
                  fmt::format("--to is {} (see nibble convert --help)",
                              given == 0 ? "required" : fmt::format("given {} times, without --advise", given)));
    return run_recipe(command, options, terminal);
  }
  terminal.catch_interrupts();
  advise(command, options, terminal);
  run_conversion(command, options, terminal);
}

}  // namespace

void run_recipe(const CLI::App& command, ConvertOptions& options, Terminal& terminal) {
  finish_recipe(command, options);
  check_applicable(command, options.recipe);
  run_conversion(command, options, terminal, [&](const Plan& plan) { check_applicable(command, plan); });
}

void add_recipe(CLI::App& command, ConvertOptions& options) {
  Recipe& recipe = options.recipe;
  command
      .add_option("--to", options.to,
                  "The target. A codec that quantizes is applied to the linear layers that transformers would "
                  "quantize, a cast to all weights")
      ->type_name(codec_type)
      ->required();

  const std::string format = "Format";
  command
      .add_option("--block-size", options.blocksize, "Shorthand for block-size=N in every codec that has this option")
      ->type_name("N")
      ->group(format);
  command
      .add_flag("--no-double-quant", options.no_double_quant,
                "Shorthand for double-quant=no in every codec that has this option")
      ->group(format);
  command.add_option("--absmax", options.absmax, "Shorthand for absmax=CHOICE in every codec that has this option")
      ->type_name("CHOICE")
      ->group(format);
  add_calibration(command, recipe.calibration,
                  "Statistics that `python -m nibble.calibrate` wrote: searches of absmax minimize the error of the "
                  "layers' outputs, not that of the weights")
      ->group(format);
  command
      .add_flag(
          "--compensate", recipe.compensate,
          "Make up for the rounding errors of a column in the columns after it (GPTQ's idea), which takes seconds for "
          "each layer. Needs --calibration with second moments (`python -m nibble.calibrate --second-moments`)")
      ->group(format);
  add_choice<DType>(command, "--compute-dtype", recipe.compute_dtype,
                    {{"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}},
                    "The type in which transformers computes with 4-bit layers, bnb_4bit_compute_dtype [the 16-bit "
                    "type of the source; float32 if the source is fp32]",
                    {{"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}}, type_synonyms)
      ->group(format);
  add_on_overflow(command, recipe)->group(format);
  add_choice<Nonfinite>(command, "--nonfinite", recipe.nonfinite,
                        {{"keep", Nonfinite::keep}, {"error", Nonfinite::error}, {"quantize", Nonfinite::quantize}},
                        "What to do with a tensor that contains NaN or infinity: leave it as it is, stop (also if a "
                        "cast would produce infinity), or quantize it without these values [keep]",
                        {}, {{"none", "keep"}})
      ->group(format);

  add_choice<ErrorReport>(
      command, "--error-report", recipe.error_report,
      {{"none", ErrorReport::none}, {"basic", ErrorReport::basic}, {"full", ErrorReport::full}},
      "What nibble.json says about the error of each tensor: nothing, figures from sums that are computed during the "
      "conversion, or the figures of `nibble measure`, which reads the input a second time [basic]")
      ->group(format);

  const std::string selection = "Which tensors";
  add_repeatable(
      command, "--tensor", options.rules,
      "Use this codec for tensors whose whole name matches RE; if several rules match, the last one wins; repeatable")
      ->type_name("RE=CODEC")
      ->group(selection);
  add_repeatable(command, "--skip", recipe.skips,
                 "Keep tensors whose whole name matches RE as they are, in addition to those that transformers "
                 "keeps; repeatable")
      ->type_name("RE")
      ->group(selection);
  command
      .add_flag("--no-default-skips", options.no_default_skips,
                "Also quantize the layers that transformers keeps by default, such as lm_head")
      ->group(selection);
  const auto add_codec = [&](const char* name, std::string& codec, const char* help) {
    command.add_option(name, codec, help)->capture_default_str()->type_name(codec_type)->group(selection);
  };
  add_codec("--embeddings", options.embeddings, "Codec for the embeddings");
  add_codec("--lm-head", options.lm_head, "Codec for the output layer");
  add_codec("--experts", options.experts, "Codec for experts that are stored as one tensor");
  command
      .add_flag("--allow-nibble-only", recipe.allow_nibble_only,
                "Write the result even if transformers cannot load it and only nibble can read it")
      ->group(selection);
}

void add_convert(CLI::App& app, Terminal& terminal) {
  CLI::App* const command =
      app.add_subcommand("convert", "Convert a checkpoint: quantize its linear layers, or cast all weights");
  const auto options = std::make_shared<ConvertOptions>();

  add_paths(*command, *options);
  add_recipe(*command, *options);
  command->get_option("--to")->required(false)->take_all()->allow_extra_args(false);
  command
      ->add_option(
          "--advise", options->advise,
          "Choose, instead of one target, what has the smallest error for a given size, or for a number of bits "
          "per weight of IN (5GB, 4.5bits): measures as `nibble measure --advise` does, and converts. --to may "
          "be repeated, to choose among these codecs [all that quantize]. With --calibration, it goes by the "
          "sensitivities that `python -m nibble.calibrate --sensitivities` measured or, without any, by the errors of "
          "the layers' outputs")
      ->type_name("SIZE");
  add_output(*command, *options);

  add_max_memory(*command, options->resources);
  add_choice<DeviceChoice>(
      *command, "--device", options->conversion.device,
      {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}},
      "Where to encode; the bytes written are the same everywhere. auto uses a GPU, if there is one, for 256 MiB of "
      "weights or more [cpu]")
      ->group(resources_group);
  add_threads(*command, options->resources);

  command->footer(
      codec_help() +
      "\nExamples:\n"
      "  nibble convert Llama-3.1-8B Llama-3.1-8B-nf4 --to nf4\n"
      "  nibble convert meta-llama/Llama-3.1-8B out --to int8 --dry-run\n"
      "  nibble convert model.safetensors model-fp16.safetensors --to fp16 --on-overflow clamp\n"
      "  nibble convert IN OUT --to nf4 --skip '.*\\.layers\\.0\\..*' --tensor '.*down_proj.*=nf4:block-size=32'\n"
      "  nibble convert IN OUT --to nf4 --absmax search --calibration STATS --compensate\n"
      "  nibble convert IN OUT --advise 5.5bits --to nf4:absmax=search --calibration STATS");
  command->callback([command, options, &terminal] { run(*command, *options, terminal); });
}

}  // namespace nibble::cli
