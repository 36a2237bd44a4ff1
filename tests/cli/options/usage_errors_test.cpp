// What someone reads who typed something wrong: which words there are, which was probably meant, and what to do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/quant/codecs/codec_support.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"

namespace nibble::cli::usage_errors_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

std::string matrix(const std::string& name) {
  return test::safetensors_file("{\"" + name + R"(":{"dtype":"F32","shape":[4,64],"data_offsets":[0,1024]}})",
                                std::string(1024, '\x3f'));
}

class UsageErrors : public testing::Test {
 protected:
  UsageErrors() {
    root_.write("w.safetensors", matrix("up.weight"));
    root_.write("m/model.safetensors", matrix("model.layers.0.up_proj.weight"));
    root_.write("m/config.json", "{}");
  }

  // The one line of an error.
  std::string error_of(const std::string& arguments, int code = 2) const {
    const test::Outcome outcome = test::run_program(root_.path(), arguments);
    EXPECT_EQ(outcome.code, code) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    for (const char* const out : {"out", "out.safetensors"}) EXPECT_FALSE(fs::exists(root_.path() / out)) << arguments;
    EXPECT_THAT(outcome.err, StartsWith("error: ")) << arguments;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;
    return outcome.err.substr(7, outcome.err.size() - 8);
  }

  test::TempDir root_;
};

// The next option must not be taken for the value: a limit would be lost, and a file be named after it.
TEST_F(UsageErrors, AnEmptyValueIsNotTheNextOption) {
  EXPECT_EQ(error_of("measure w.safetensors w.safetensors --html= --max-rmse=1"),
            "--html needs a value: FILE (see nibble measure --help)");
  EXPECT_EQ(error_of("convert w.safetensors out.safetensors --skip= --to nf4"),
            "--skip needs a value: RE (see nibble convert --help)");
  EXPECT_EQ(error_of("convert w.safetensors -- --to="), "--to is required (see nibble convert --help)");
  // A flag needs none, an unknown option is unknown, and a value may end so.
  EXPECT_EQ(error_of("convert w.safetensors out.safetensors --overwrite="),
            "--to is required (see nibble convert --help)");
  EXPECT_THAT(error_of("convert w.safetensors out.safetensors --to nf4 --htm="),
              StartsWith("convert has no option '--htm'"));
  EXPECT_THAT(error_of("convert w.safetensors out.safetensors --to nf4 --tensor=a="), StartsWith("--tensor 'a='"));
}

TEST_F(UsageErrors, AWrongChoiceListsThoseThatThereAre) {
  const std::string convert = "convert w.safetensors out.safetensors --to ";
  EXPECT_EQ(error_of(convert + "fp16 --on-overflow saturate"),
            "--on-overflow: 'saturate' is not one of error, clamp, keep");
  EXPECT_EQ(error_of(convert + "nf4 --nonfinite kepe"),
            "--nonfinite: 'kepe' is not one of keep, error, quantize: did you mean keep?");
  const std::string targets = "is not one of " + test::listed_codecs(", ", false);
  const std::string all = "is not one of " + test::listed_codecs();
  EXPECT_EQ(error_of(convert + "NF4"), "--to: 'NF4' " + targets + ": did you mean nf4?");
  EXPECT_EQ(error_of(convert + "int4"), "--to: 'int4' " + targets + ": did you mean nf4?");
  EXPECT_EQ(error_of(convert + "keep"), "--to: 'keep' " + targets);
  EXPECT_EQ(error_of(convert + "nf4 --embeddings bfloat16"),
            "--embeddings: 'bfloat16' " + all + ": did you mean bf16?");
  EXPECT_EQ(error_of(convert + "nf4 --tensor 'up.*=nf5'"), "--tensor 'up.*=nf5': codec 'nf5' " + all);
  EXPECT_EQ(error_of(convert + "nf4 --compute-dtype int8"),
            "--compute-dtype: 'int8' is not one of float32, bfloat16, float16");
  EXPECT_EQ(error_of(convert + "nf4 --compute-dtype half"),
            "--compute-dtype: 'half' is not one of float32, bfloat16, float16: did you mean float16?");
  EXPECT_EQ(error_of(convert + "nf4 --nonfinite none"),
            "--nonfinite: 'none' is not one of keep, error, quantize: did you mean keep?");
  EXPECT_EQ(error_of(convert + "nf4 --on-overflow none"),
            "--on-overflow: 'none' is not one of error, clamp, keep: did you mean keep?");
  EXPECT_EQ(error_of(convert + "nf4 --tensor 'up.*=half'"),
            "--tensor 'up.*=half': codec 'half' " + all + ": did you mean fp16?");
  EXPECT_EQ(error_of(convert + "nf4 --progress loud"), "--progress: 'loud' is not one of auto, bar, plain, json, none");
  EXPECT_EQ(error_of("completion tcsh"), "SHELL: 'tcsh' is not one of bash, zsh, fish");
  EXPECT_EQ(error_of("measure w.safetensors --to nf5"), "--to: 'nf5' " + targets);
}

// What one command takes, the other does, and rules do.
TEST_F(UsageErrors, CodecsAreRefusedForTheSameReasonEverywhere) {
  for (const auto& [codec, fact] :
       {std::pair<std::string, std::string>{"nf4:block-size=33", "block-size of codec nf4: '33' is not one of 32, 64"},
        {"fp16:block-size=32", "codec fp16 has no options"},
        {"nf4:blocksize=32", "did you mean block-size?"}}) {
    EXPECT_THAT(error_of("measure w.safetensors --to " + codec), HasSubstr(fact));
    EXPECT_THAT(error_of("measure w.safetensors --advise 5bits --to " + codec), HasSubstr(fact));
    for (const std::string option : {"--embeddings ", "--lm-head ", "--experts ", "--tensor .*="})
      EXPECT_THAT(error_of("convert m out --to nf4 " + option + codec), HasSubstr(fact)) << option;
    EXPECT_THAT(error_of("convert m out --to " + codec), HasSubstr(fact));
  }
}

TEST_F(UsageErrors, AnOptionOfACodecIsNotSaidTwice) {
  EXPECT_EQ(error_of("convert m out --to nf4:block-size=32 --block-size 64"),
            "--block-size cannot be combined with 'nf4:block-size=32', which sets the same option");
  EXPECT_EQ(error_of("convert m out --to nf4:block_size=32 --block-size 64"),
            "--block-size cannot be combined with 'nf4:block_size=32', which sets the same option");
  EXPECT_EQ(error_of("convert m out --to nf4:double_quant=yes --no-double-quant"),
            "--no-double-quant cannot be combined with 'nf4:double_quant=yes', which sets the same option");
  EXPECT_EQ(error_of("convert m out --to int8 --tensor '.*=nf4:double-quant=yes' --no-double-quant"),
            "--no-double-quant cannot be combined with 'nf4:double-quant=yes', which sets the same option");
}

TEST_F(UsageErrors, ShortNamesOfComputeTypesAreTaken) {
  for (const auto& [typed, written] : {std::pair{"bf16", "bfloat16"}, {"fp16", "float16"}, {"fp32", "float32"}}) {
    EXPECT_EQ(
        test::run_program(root_.path(), std::string("convert m o --overwrite --to nf4 --compute-dtype ") + typed).code,
        0);
    EXPECT_THAT(test::read_file(root_.path() / "o/config.json"),
                HasSubstr(std::string("\"bnb_4bit_compute_dtype\": \"") + written));
  }
}

TEST_F(UsageErrors, TyposGetASuggestion) {
  const std::string all = "is not one of convert, dequantize, merge, inspect, measure, formats, completion";
  EXPECT_EQ(error_of("convrt w.safetensors out"),
            "command 'convrt' " + all + ": did you mean convert? (see nibble --help)");
  EXPECT_EQ(error_of("x"), "command 'x' " + all + " (see nibble --help)");
  EXPECT_EQ(error_of("help x"), "command 'x' " + all + " (see nibble --help)");
  EXPECT_EQ(error_of("convert w.safetensors out.safetensors --to nf4 --blocksize 32"),
            "convert has no option '--blocksize': did you mean --block-size? (see nibble convert --help)");
  EXPECT_EQ(error_of("convert w.safetensors out.safetensors --too=nf4"),  // and not that --to is missing
            "convert has no option '--too': did you mean --to? (see nibble convert --help)");
  EXPECT_EQ(error_of("convert w.safetensors out.safetensors -to nf4"),
            "convert has no option '-to': did you mean --to? (see nibble convert --help)");
  EXPECT_EQ(error_of("inspect w.safetensors --wonderful"),
            "inspect has no option '--wonderful' (see nibble inspect --help)");
  EXPECT_EQ(error_of("convert w.safetensors out.safetensors --to nf4 --double-quant"),
            "convert has no option '--double-quant': that is the default, which --no-double-quant turns off "
            "(see nibble convert --help)");
  EXPECT_THAT(error_of("convert w.safetensors out.safetensors"),
              HasSubstr("--to is required (see nibble convert --help)"));
  for (const char* const word : {"conv", "quantize"})
    EXPECT_EQ(error_of(word),
              std::string("command '") + word + "' " + all + ": did you mean convert? (see nibble --help)");
  EXPECT_EQ(error_of(""),
            "no command is given: the commands are convert, dequantize, merge, inspect, measure, formats, completion "
            "(see nibble --help)");
}

// In our words, not in those of the library that parses the command line.
TEST_F(UsageErrors, WhatIsGivenTooOftenOrWithoutAValue) {
  const auto message = [&](const std::string& arguments) {
    const std::string text = error_of(arguments);
    const std::string help = " (see nibble " + arguments.substr(0, arguments.find(' ')) + " --help)";
    EXPECT_THAT(text, testing::EndsWith(help));
    return text.substr(0, text.size() - help.size());
  };
  EXPECT_EQ(message("convert m out extra --to nf4"), "unexpected argument 'extra'");
  EXPECT_EQ(message("formats x y"), "unexpected argument 'x'");
  EXPECT_EQ(message("convert m out --to nf4 -- --x"), "unexpected argument '--x'");
  EXPECT_EQ(message("convert m out --to"), "--to needs a value: " + test::listed_codecs("|", false));
  EXPECT_EQ(message("convert m out --to nf4 --max-memory="), "--max-memory needs a value: SIZE");
  EXPECT_EQ(message("convert m out --to nf4 --to fp16"), "--to is given 2 times, without --advise");
  EXPECT_EQ(message("measure m m --worst 3 --worst 4 --worst 5"), "--worst is given 3 times");
  EXPECT_EQ(message("inspect m --json=maybe"), "--json takes no value");
  EXPECT_EQ(message("measure m m --csv --json"), "--json cannot be combined with --csv");
  EXPECT_EQ(message("convert m out --to nf4 --keep-shards --max-shard-size 1GB"),
            "--max-shard-size cannot be combined with --keep-shards");
}

TEST_F(UsageErrors, NumbersHaveBounds) {
  for (const char* const number : {"0", "1025", "x", "-1", "1.5", "1e2", "99999999999999999999"})
    EXPECT_EQ(error_of(std::string("convert m out --to nf4 --threads ") + number),
              std::string("--threads: '") + number + "' is not a whole number from 1 to 1024");
  EXPECT_EQ(error_of("measure m m --worst many"), "--worst: 'many' is not a whole number from 0 to 1000000000");
  EXPECT_EQ(error_of("convert m out --to nf4 --block-size 33"),
            "--block-size: block-size of codec nf4: '33' is not one of 32, 64, 128, 256, 512, 1024, 2048, 4096");
}

TEST_F(UsageErrors, HelpIsACommand) {
  const auto out = [&](const char* arguments) {
    const test::Outcome outcome = test::run_program(root_.path(), arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(out("help"), out("--help"));
  EXPECT_EQ(out("help convert"), out("convert --help"));
}

TEST_F(UsageErrors, ChoicesAreExplainedInTheirOrder) {
  const std::string help = test::run_program(root_.path(), "convert --help").out;
  EXPECT_THAT(help, HasSubstr("--on-overflow error|clamp|keep"));
  EXPECT_THAT(help, HasSubstr("stop, store the largest value, or store infinity [error for fp16, keep for bf16 and"));
  EXPECT_THAT(help, HasSubstr("--nonfinite keep|error|quantize"));
  EXPECT_THAT(help, HasSubstr("or quantize it without these values [keep]"));
}

// Patterns have to match whole names.
TEST_F(UsageErrors, APatternThatMatchesPartsSaysWhatWouldMatch) {
  const auto message = [&](const std::string& option) { return error_of("convert m out --to nf4 " + option); };
  EXPECT_EQ(message("--skip up_proj"),
            "skip pattern 'up_proj' matches no tensor as a whole name; '.*up_proj.*' matches 1");
  EXPECT_EQ(message("--skip 'model\\.layers'"),
            "skip pattern 'model\\.layers' matches no tensor as a whole name; 'model\\.layers.*' matches 1");
  // As it can be pasted, however long.
  const std::string longer = "(" + std::string(100, 'x') + "|up_proj)";
  EXPECT_EQ(message("--skip '" + longer + "'"),
            "skip pattern '" + longer + "' matches no tensor as a whole name; '.*(" + longer + ").*' matches 1");
  EXPECT_EQ(message("--tensor 'proj.weight=fp4'"),
            "tensor pattern 'proj.weight' matches no tensor as a whole name; '.*proj.weight' matches 1");
  EXPECT_EQ(message("--skip 'q_proj|up_proj'"),
            "skip pattern 'q_proj|up_proj' matches no tensor as a whole name; '.*(q_proj|up_proj).*' matches 1");
  EXPECT_EQ(message("--skip q_proj"), "skip pattern 'q_proj' matches no tensor");
}

TEST_F(UsageErrors, OptionsThatDoNotGoTogether) {
  const auto message = [&](const std::string& options) { return error_of("convert m out --to " + options); };
  EXPECT_EQ(message("fp16 --block-size 32"),
            "--block-size cannot be combined with --to fp16: only nf4 and fp4 have this option");
  EXPECT_EQ(message("int8 --no-double-quant"),
            "--no-double-quant cannot be combined with --to int8: only nf4 and fp4 have double quantization");
  EXPECT_EQ(message("fp16 --absmax search"),
            "--absmax cannot be combined with --to fp16: only int8, nf4 and fp4 have this option");
  EXPECT_EQ(message("nf4 --absmax least"),
            "--absmax: absmax of codec nf4: 'least' is not one of max, search, search-positive");
  EXPECT_EQ(message("nf4:absmax=max --absmax search"),
            "--absmax cannot be combined with 'nf4:absmax=max', which sets the same option");
  EXPECT_EQ(message("int8 --compute-dtype bf16"),
            "--compute-dtype cannot be combined with --to int8: only nf4 and fp4 layers have a compute type");
  EXPECT_EQ(message("nf4 --on-overflow clamp"),
            "--on-overflow applies to no tensor: it applies to casts only (--nonfinite applies to quantized tensors)");
  EXPECT_EQ(
      message("bf16 --nonfinite quantize"),
      "--nonfinite cannot be combined with --to bf16: casts store NaN and infinity as they are, so there is nothing to "
      "quantize");
  for (const char* const option : {"--no-default-skips", "--embeddings nf4", "--lm-head nf4", "--experts nf4"})
    EXPECT_THAT(message(std::string("fp16 ") + option),
                HasSubstr(" cannot be combined with --to fp16: a cast converts all"));
  EXPECT_THAT(message("nf4 --keep-shards --max-shard-size 1GB"),
              testing::AllOf(HasSubstr("--keep-shards"), HasSubstr("--max-shard-size")));
  EXPECT_EQ(message("fp16 --allow-nibble-only"),
            "--allow-nibble-only cannot be combined with --to fp16: transformers can load every cast");
  // Or with what a rule makes of the tensors.
  EXPECT_EQ(message("nf4 --tensor '.*=int8' --block-size 32"),
            "--block-size applies to no tensor: only nf4 and fp4 have this option");
  for (const std::string option : {"--max-shard-size 1GB", "--keep-shards"})
    EXPECT_EQ(
        error_of("convert w.safetensors out.safetensors --to nf4 " + option),
        option.substr(0, option.find(' ')) + " has no effect on 'w.safetensors': a file is converted to a single file");
  // A rule may bring the codec that an option is for.
  const auto code = [&](const std::string& options) {
    return test::run_program(root_.path(), "convert m o --overwrite --to " + options).code;
  };
  EXPECT_EQ(code("int8 --tensor '.*=nf4' --block-size 32 --no-double-quant --compute-dtype bf16"), 0);
  // Nothing to do is a warning, for models that have nothing for it.
  EXPECT_EQ(code("nf4 --skip '.*' --no-double-quant --block-size 32 --allow-nibble-only"), 0);
  EXPECT_EQ(code("nf4 --tensor '.*=fp16' --on-overflow clamp"), 0);
  EXPECT_EQ(code("nf4 --tensor '.*=bf16' --on-overflow clamp"), 0);
  EXPECT_EQ(code("fp32 --on-overflow error"), 0);
  EXPECT_EQ(code("fp16 --nonfinite error"), 0);
  EXPECT_EQ(code("fp16 --tensor '.*=nf4' --allow-nibble-only"), 0);
  EXPECT_EQ(code("nf4 --keep-shards"), 0);
}

TEST_F(UsageErrors, OutputIsOfTheKindOfTheInput) {
  const auto message = [&](const std::string& arguments) { return error_of("convert " + arguments + " --to nf4"); };
  EXPECT_EQ(
      message("m out.safetensors"),
      "output 'out.safetensors': the input 'm' is a directory, so the output is a directory, too: its name must not "
      "end in "
      ".safetensors");
  EXPECT_EQ(
      message("w.safetensors out/"),
      "output 'out/': the input 'w.safetensors' is a file, so the output is a file, too: its name must not end in /");
  for (const char* const in : {"m", "w.safetensors"})
    for (const std::string ending : {".gguf", ".bin", ".pt", ".pth", ".zip", ".json", ".txt"})
      EXPECT_EQ(message(std::string(in) + " out" + ending),
                "output 'out" + ending + "': nibble writes safetensors, not " + ending);
  EXPECT_EQ(message("m out.GGUF/"), "output 'out.GGUF/': nibble writes safetensors, not .gguf");
  EXPECT_EQ(message("m ''"), "output '': is empty");
  for (const char* const option : {"", " --overwrite", " --dry-run"})
    EXPECT_EQ(error_of(std::string("convert w.safetensors m --to nf4") + option),
              "output 'm': is a directory, but the input 'w.safetensors' is a file: name a file for the output");
}

// A dot in a name makes no extension.
TEST_F(UsageErrors, ModelsAreNamedWithDots) {
  for (const char* const out : {"Llama-3.1-8B", "v0.1", "a.b"})
    EXPECT_EQ(test::run_program(root_.path(), std::string("convert m ") + out + " --to nf4").code, 0) << out;
}

// What is printed of the plan is right in any case; the exit code and the error are those of the run.
TEST_F(UsageErrors, DryRunEndsAsTheRunWould) {
  root_.write("text/note.txt", "mine");
  root_.write("file", "mine");
  root_.write(".theirs.nibble/note.txt", "mine");
  fs::permissions(root_.path() / ".theirs.nibble", fs::perms::owner_all);
  EXPECT_EQ(test::run_program(root_.path(), "convert m model --to nf4").code, 0);
  EXPECT_EQ(test::run_program(root_.path(), "convert w.safetensors w2.safetensors --to nf4").code, 0);
  for (const std::string rest : {"m model", "m text", "m text --overwrite", "w.safetensors w2.safetensors",
                                 "w.safetensors file --overwrite", "m file/x", "m no/out", "m m", "m theirs",
                                 "w.safetensors w.safetensors --overwrite", "w.safetensors /dev/null"}) {
    const test::Outcome dry = test::run_program(root_.path(), "convert " + rest + " --to int8 --dry-run");
    const test::Outcome real = test::run_program(root_.path(), "convert " + rest + " --to int8");
    EXPECT_NE(real.code, 0) << rest;
    EXPECT_EQ(dry.code, real.code) << rest;
    EXPECT_THAT(dry.err, testing::EndsWith(real.err)) << rest;  // after the warnings of the plan
    EXPECT_THAT(dry.out, HasSubstr("up")) << rest;
  }
  for (const std::string rest : {"m model --overwrite", "w.safetensors w2.safetensors --overwrite", "m new"})
    EXPECT_EQ(test::run_program(root_.path(), "convert " + rest + " --to int8 --dry-run").code, 0) << rest;
  EXPECT_THAT(test::read_file(root_.path() / "model/config.json"), HasSubstr("nf4"));
}

TEST_F(UsageErrors, PathsAreNamedAsTheyWereGiven) {
  root_.write("d/bad.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  root_.write("d/config.json", "[");
  root_.write("d/model.safetensors", matrix("w"));
  EXPECT_THAT(error_of("convert d/bad.safetensors out.safetensors --to nf4", 3), StartsWith("d/bad.safetensors: "));
  EXPECT_THAT(error_of("inspect ./d/../d/bad.safetensors", 3), StartsWith("./d/../d/bad.safetensors: "));
  EXPECT_THAT(error_of("convert d out --to nf4", 3), StartsWith("d/config.json: "));
  EXPECT_EQ(error_of("inspect d/none.safetensors", 3), "d/none.safetensors: No such file or directory");
  EXPECT_EQ(error_of("convert '' out --to nf4", 3), "'': the path is empty");
  // The tensor whose values are refused lies in a file, too.
  std::string infinite(1024, '\0');
  infinite[2] = '\x80', infinite[3] = '\x7f';
  root_.write(
      "i/model.safetensors",
      test::safetensors_file(R"({"u.weight":{"dtype":"F32","shape":[4,64],"data_offsets":[0,1024]}})", infinite));
  for (const char* const files : {"i out", "i/model.safetensors out.safetensors"})
    EXPECT_THAT(error_of(std::string("convert ") + files + " --to nf4 --nonfinite error", 3),
                StartsWith("i/model.safetensors: tensor 'u.weight': "));
}

// What cannot be resolved is not said to lie in the input.
TEST_F(UsageErrors, OutputsThatAreNoFiles) {
  for (const char* const in : {"m", "w.safetensors"})
    for (const char* const option : {"", " --overwrite"}) {
      const std::string message = error_of(std::string("convert ") + in + " /dev/null --to nf4" + option, 6);
      EXPECT_EQ(message, std::string("/dev/null: exists and is not a ") + (*in == 'm' ? "directory" : "regular file"));
    }
  EXPECT_EQ(error_of("convert m no/such/out --to nf4"), "no/such/out: the folder 'no/such' does not exist");
  EXPECT_EQ(error_of("convert m w.safetensors/out --to nf4"), "w.safetensors/out: 'w.safetensors' is not a directory");
  EXPECT_EQ(error_of("convert m w.safetensors/a/out --to nf4"),
            "w.safetensors/a/out: 'w.safetensors' is not a directory");
  EXPECT_EQ(error_of("convert m m/out --to nf4"), "m/out: the output is inside the input 'm'");
  EXPECT_EQ(error_of("convert m ../\"${PWD##*/}\" --to nf4").substr(3 + root_.path().filename().string().size()),
            ": the output contains the input 'm'");
  EXPECT_EQ(error_of("convert m m/ --to nf4"), "m/: the output is the input 'm'");
  EXPECT_EQ(error_of("convert w.safetensors w.safetensors --to nf4 --overwrite"),
            "w.safetensors: the output is the input 'w.safetensors'");
  // What --overwrite would not help with is not said to want it.
  root_.write("file", "mine");
  for (const char* const option : {"", " --overwrite"})
    EXPECT_EQ(error_of(std::string("convert m file --to nf4") + option, 6), "file: exists and is not a directory");
}

TEST_F(UsageErrors, DirectoriesThatAreNoModels) {
  root_.write("lora/adapter_config.json", "{}");
  root_.write("lora/adapter_model.safetensors", matrix("w"));
  EXPECT_EQ(
      error_of("convert lora out --to nf4", 3),
      "lora: is an adapter, not a model: it has to be merged into its base model first; `nibble merge` does that");
  root_.write("pipe/model_index.json", "{}");
  root_.write("pipe/scheduler/config.json", "{}");
  root_.write("pipe/unet/diffusion_pytorch_model.safetensors", matrix("w"));
  root_.write("pipe/text_encoder/model.safetensors", matrix("w"));
  EXPECT_EQ(error_of("convert pipe out --to nf4", 3),
            "pipe: is a pipeline of diffusers: convert its parts one by one: text_encoder/, unet/");
}

// Not by accident: whoever wants that is told the command that decodes first.
TEST_F(UsageErrors, QuantizedInputIsRefused) {
  EXPECT_EQ(test::run_program(root_.path(), "convert m quantized --to nf4").code, 0);
  EXPECT_EQ(error_of("convert quantized out --to nf4", 3),
            "quantized/config.json: quantized already by bitsandbytes; plain weights are needed, such as the original "
            "model's; `nibble dequantize` makes plain weights of it");
}

// Whoever loads the result compiles the names of skipped modules as regular expressions.
TEST_F(UsageErrors, ModulesMayBeNamedLikeBrokenPatterns) {
  const std::string header = R"({"a.up[proj.weight":{"dtype":"F32","shape":[64],"data_offsets":[0,256]},)"
                             R"("b.c(.weight":{"dtype":"F32","shape":[4,64],"data_offsets":[256,1280]},)"
                             R"("b.x*y.weight":{"dtype":"F32","shape":[4,64],"data_offsets":[1280,2304]}})";
  root_.write("odd/model.safetensors", test::safetensors_file(header, std::string(2304, '\x3f')));
  root_.write("odd/config.json", "{}");
  const test::Outcome outcome = test::run_program(root_.path(), "convert odd o --to nf4 --skip 'b\\.c.*'");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(test::read_file(root_.path() / "o/config.json"), HasSubstr(R"("^b\\.c\\($")"));
}

}  // namespace
}  // namespace nibble::cli::usage_errors_test
