// nibble measure REF --advise SIZE as its users meet it: what it prints, and that it can be followed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <tuple>

#include "cli/terminal/shell.hpp"
#include "tests/support/calibration.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::cli::advise_test {
namespace {

using test::Outcome;
using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::json;

class MeasureAdvise : public testing::Test {
 protected:
  // In an empty directory: w.safetensors, one matrix of 4 x 64 equal weights.
  MeasureAdvise() {
    test::WeightsFile file;
    file.add_bytes("layer.weight", DType::f32, {4, 64}, test::Bytes(1024, std::byte{0x3f}));
    root_.write("w.safetensors", file.bytes());
  }

  Outcome run(const std::string& arguments) const { return test::run_program(root_.path(), arguments); }

  // A command line that begins with "nibble", by a shell that knows the program by this name.
  Outcome run_as_printed(const std::string& command) const {
    return test::run_command(root_.path(), "nibble() { '" + test::program() + "' \"$@\"; }\n" + command);
  }

  // What such a command line hands to the program.
  std::vector<std::string> words_of(const std::string& command) const {
    const std::string out = test::run_command(root_.path(), "nibble() { printf '%s\\0' \"$@\"; }\n" + command).out;
    std::vector<std::string> words;
    std::istringstream in(out);
    for (std::string word; std::getline(in, word, '\0');) words.push_back(word);
    return words;
  }

  test::TempDir root_;
};

// By tensor, of a plan or of advice.
std::map<std::string, std::string> codecs_of(const Json& report) {
  std::map<std::string, std::string> codecs;
  for (const Json& tensor : report.at("tensors")) codecs[tensor.at("name")] = tensor.at("codec");
  return codecs;
}

// The command that is printed makes what was promised.
TEST_F(MeasureAdvise, CanBeFollowed) {
  const Outcome advice = run("measure w.safetensors --advise 600B --to int8 --to nf4");
  EXPECT_EQ(advice.code, 0) << advice.err;
  EXPECT_THAT(advice.out,
              StartsWith("nibble convert w.safetensors OUT.safetensors --to int8\n\n1.02 kB (1.00 KiB) -> "));
  EXPECT_THAT(advice.out, HasSubstr("\n>  273 bytes    8.53 "));
  const std::string casts = "\nCasts of the whole model (convert --to bf16, --to fp16) are not among the choices.\n";
  EXPECT_THAT(advice.out, HasSubstr(casts));
  EXPECT_THAT(run("measure w.safetensors --advise 600B --to int8 --to nf4 --allow-nibble-only").out,
              testing::Not(HasSubstr(casts)));
  EXPECT_THAT(advice.out, HasSubstr("\n     1.02 kB   32.00     exact       0 %\n"));

  test::WeightsFile file;
  for (const unsigned layer : {0, 1})
    file.add("l$x." + std::to_string(layer) + ".w'eight.weight", DType::f32, {64, 64},
             test::normal_weights(64 * 64, layer));
  root_.write("it's.safetensors", file.bytes());
  for (const char* const size : {"24bits", "24bpw", "24.6kB", "24KiB", "24 KiB"}) {
    const Outcome json = run(std::string("measure \"it's.safetensors\" --json --advise '") + size + "'");
    EXPECT_EQ(json.code, 0) << json.err;
    const auto told = Json::parse(json.out);
    EXPECT_EQ(told.at("tensors_by_codec").at("keep"), 1) << size;
    EXPECT_LE(told.at("chosen").at("bytes"), told.at("max_bytes"));
    std::string command = told.at("command");
    ASSERT_THAT(command, StartsWith("nibble convert 'it'\\''s.safetensors' OUT.safetensors "));
    const auto converted = Json::parse(run(command.substr(7) + " --overwrite --json").out);
    EXPECT_EQ(converted.at("stored_bytes"), told.at("chosen").at("bytes"));
    EXPECT_EQ(converted.at("bits_per_weight"), told.at("chosen").at("bits_per_weight"));
    EXPECT_EQ(converted.at("tensors_by_codec"), told.at("tensors_by_codec"));
  }
}

// Names that a regular expression or a shell would take for something else. The commands are run as they are printed.
TEST_F(MeasureAdvise, OfHostileNamesCanBePasted) {
  const std::vector<std::string> names{"model.embed_tokens.weight",
                                       "l.0.up[proj.weight",
                                       "l.1.up[proj.weight",
                                       "m(a|b)+$HOME`id`.weight",
                                       "it's=1.weight",
                                       "{x}.weight",
                                       "-lead.weight",
                                       "--to.weight",
                                       "*.weight",
                                       "[a,b].weight",
                                       "two words.weight",
                                       "\"q\".weight",
                                       "new\nline.0.weight",
                                       "\\d+.weight",
                                       "x=nf4.weight",
                                       "x=nf4:y.weight",
                                       "!~#;&<>.weight",
                                       "\u00fc.0.weight"};
  test::WeightsFile file;
  for (unsigned i = 0; i < names.size(); ++i) {
    std::vector<float> weights = test::normal_weights(4096, i);
    if (i % 3 == 1) weights[5] = 300;
    file.add(names[i], DType::f32, {64, 64}, weights);
  }
  const std::string as_file = "-h[x's \"$HOME\"\n.safetensors", as_directory = "it's a\nmodel";
  root_.write(as_file, file.bytes());
  root_.write(as_directory + "/model.safetensors", file.bytes());
  root_.write(as_directory + "/config.json", "{}");

  std::set<std::string> seen;
  for (const std::string& model : {as_file, as_directory})
    for (const std::string size : {"10bits", "13bits", "17bits", "24bits"})
      for (const std::string mode : {"", " --allow-nibble-only"}) {
        const std::string arguments = "measure " + quoted_path(model) + " --advise " + size + mode;
        const Outcome text = run(arguments), json = run(arguments + " --json");
        ASSERT_EQ(text.code, 0) << text.err;
        ASSERT_EQ(json.code, 0) << json.err;
        const Json told = Json::parse(json.out);
        const std::string command = told.at("command");
        EXPECT_THAT(text.out, StartsWith(command + "\n\n"));

        std::vector<std::string> words{"convert", model == as_file ? "./" + model : model,
                                       model == as_file ? "OUT.safetensors" : "OUT"};
        for (const std::string option : told.at("options")) {
          words.push_back(option);
          if (option.starts_with("--")) seen.insert(option);
        }
        EXPECT_EQ(words_of(command), words);

        const Outcome done = run_as_printed(command + " --dry-run --json");
        ASSERT_EQ(done.code, 0) << done.err << command;
        const Json plan = Json::parse(done.out);
        EXPECT_EQ(plan.at("stored_bytes"), told.at("chosen").at("bytes"));
        EXPECT_EQ(codecs_of(plan), codecs_of(told)) << command;
        EXPECT_EQ(codecs_of(plan).size(), names.size());
      }
  EXPECT_THAT(seen, testing::ElementsAre("--allow-nibble-only", "--embeddings", "--skip", "--tensor", "--to"));
}

// Tensors so small that they change no figure that is shown.
TEST_F(MeasureAdvise, HasNoTwoRowsThatLookAlike) {
  test::WeightsFile file;
  file.add("big.weight", DType::f32, {1024, 1024}, test::normal_weights(1024 * 1024, 1));
  for (const char* const name : {"a.weight", "b.weight", "c.weight"})
    file.add(name, DType::f32, {4, 4}, test::normal_weights(4 * 4, 2));
  root_.write("uneven.safetensors", file.bytes());
  const Outcome outcome = run("measure uneven.safetensors --advise 20bits");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  std::set<std::string> rows;
  std::istringstream lines(outcome.out.substr(outcome.out.find(" error\n")));
  std::size_t chosen = 0;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.size() < 2 || rows.insert(line.substr(2)).second) << outcome.out;
    chosen += line.starts_with('>') ? 1 : 0;
  }
  EXPECT_EQ(chosen, 1U);
}

// Two layers that differ in what they are fed with.
class AdviseWithStatistics : public MeasureAdvise {
 protected:
  AdviseWithStatistics() {
    test::WeightsFile file;
    std::vector<float> weights = test::normal_weights(64 * 256, 1);
    for (std::size_t i = 0; i < weights.size(); i += 256) weights[i] = 40;  // of an input that is always small
    file.add("l.0.weight", DType::f32, {64, 256}, weights);
    file.add("l.1.weight", DType::f32, {64, 256}, test::normal_weights(64 * 256, 2));
    root_.write("in.safetensors", file.bytes());
    std::vector<float> squares(256, 1.0f), even(256, 1.0f);
    squares[0] = 1e-6f;
    for (std::size_t i = 1; i < 64; ++i) squares[i] = 50;  // the block of the large weight
    maker_.add("l.0", squares);
    maker_.add("l.1", even);
    maker_.write(root_);
  }
  test::StatisticsMaker maker_;
};

TEST_F(AdviseWithStatistics, TakesTheErrorsOfOutputs) {
  const std::string advise = "measure in.safetensors --to nf4 --advise 20bits --json";
  const Json by_weights = Json::parse(run(advise).out),
             by_outputs = Json::parse(run(advise + " --calibration stats").out);
  EXPECT_EQ(codecs_of(by_outputs).at("l.0.weight"), "keep");
  EXPECT_LT(by_weights.at("curve").at(0).at("cost"), by_outputs.at("curve").at(0).at("cost"));
  const std::string text = "Errors are those of the layers' outputs.\n";
  EXPECT_THAT(run("measure in.safetensors --to nf4 --advise 20bits --calibration stats").out, HasSubstr(text));
  EXPECT_THAT(run("measure in.safetensors --to nf4 --advise 20bits").out, testing::Not(HasSubstr(text)));
}

// Against what the outputs' errors say.
TEST_F(AdviseWithStatistics, TakesSensitivities) {
  maker_.manifest["sensitivities"] = {{"l.0.weight", 0.001}, {"l.1.weight", 1}};
  maker_.write(root_);
  const std::string options = " --to nf4 --advise 20bits --calibration stats";
  const Json advice = Json::parse(run("measure in.safetensors --json" + options).out);
  EXPECT_EQ(codecs_of(advice).at("l.1.weight"), "keep");
  EXPECT_NE(codecs_of(advice).at("l.0.weight"), "keep");
  EXPECT_THAT(run("measure in.safetensors" + options).out,
              HasSubstr("Errors count by the sensitivities of the layers.\n"));
  const Json converted = Json::parse(run("convert in.safetensors out.safetensors --json" + options).out);
  EXPECT_EQ(converted.at("advice").at("chosen"), advice.at("chosen"));
}

TEST_F(AdviseWithStatistics, OfSearchesCanBeFollowed) {
  const Outcome advice = run("measure in.safetensors --to nf4:absmax=search --advise 5bits --calibration stats");
  EXPECT_THAT(advice.out,
              StartsWith("nibble convert in.safetensors OUT.safetensors --to nf4:absmax=search --calibration "
                         "stats\n\n"));
  EXPECT_EQ(run_as_printed(advice.out.substr(0, advice.out.find('\n'))).code, 0);
}

TEST_F(AdviseWithStatistics, WarnsOfTensorsWithoutThem) {
  maker_.manifest["weights"].erase("l.1.weight");
  maker_.write(root_);
  for (const char* const command : {"measure in.safetensors", "convert in.safetensors out.safetensors"}) {
    const Outcome outcome = run(std::string(command) + " --to nf4 --advise 5bits --calibration stats");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("warning: 1 of 2 tensors have no statistics, so the error of their weights is "
                                       "taken: 'l.1.weight'\n"));
  }
}

TEST_F(AdviseWithStatistics, AreRefusedWhereTheyHaveNoEffect) {
  for (const auto& [arguments, code, text] :
       {std::tuple("--advise 5bits --calibration ''", 2,
                   "--calibration needs a value: DIR (see nibble measure --help)"),
        {"--advise 5bits --calibration none", 3, "none"}}) {
    const Outcome outcome = run(std::string("measure in.safetensors ") + arguments);
    EXPECT_EQ(outcome.code, code) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(text));
  }
}

// Both steps at once: the same bytes and the same figures as by the command that `measure` prints.
TEST_F(AdviseWithStatistics, IsFollowedByConvert) {
  const std::string asked = "--advise 20bits --to nf4:absmax=search --to int8 --calibration stats";
  const Json advice = Json::parse(run("measure in.safetensors --json " + asked).out);
  const std::string command = advice.at("command");
  EXPECT_EQ(run_as_printed(command).code, 0);
  const Json planned = Json::parse(run("convert in.safetensors out.safetensors --dry-run --json " + asked).out);
  EXPECT_FALSE(std::filesystem::exists(root_.path() / "out.safetensors"));
  const Outcome done = run("convert in.safetensors out.safetensors " + asked);
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(test::read_file(root_.path() / "out.safetensors"), test::read_file(root_.path() / "OUT.safetensors"));
  EXPECT_EQ(test::read_file(root_.path() / "out.safetensors.nibble.json"),
            test::read_file(root_.path() / "OUT.safetensors.nibble.json"));
  const std::string options = command.substr(command.find("--to "));
  EXPECT_THAT(done.out, StartsWith("20bits: " + options + "\n"));
  EXPECT_THAT(done.out, HasSubstr("\nErrors are those of the layers' outputs.\n"));
  const Json converted = Json::parse(run("convert in.safetensors out.safetensors --overwrite --json " + asked).out);
  for (const Json& report : {planned, converted}) {
    Json expected = advice;
    for (const char* const of_measure : {"schema_version", "generator", "command"}) expected.erase(of_measure);
    EXPECT_EQ(report.at("advice"), expected);
    EXPECT_EQ(report.at("stored_bytes"), advice.at("chosen").at("bytes"));
  }
  EXPECT_EQ(codecs_of(planned), codecs_of(advice));
  const Json plain = Json::parse(run("convert in.safetensors out.safetensors --overwrite --json --to nf4").out);
  EXPECT_FALSE(plain.contains("advice"));
}

// Statistics, embeddings, rules for tensors, and formats that only nibble reads.
TEST_F(AdviseWithStatistics, ConvertTakesAllOfTheAdvice) {
  test::WeightsFile file;
  file.add("model.embed_tokens.weight", DType::f32, {64, 256}, test::normal_weights(64 * 256, 3));
  for (const char* const name : {"l.0.weight", "l.1.weight"})
    file.add(name, DType::f32, {64, 256}, test::normal_weights(64 * 256, 4));
  root_.write("in.safetensors", file.bytes());
  std::set<std::string> seen;
  for (const char* const rest :
       {"12bits --to nf4:absmax=search --calibration stats", "10bits --to nf4", "10bits --to nf4 --calibration stats",
        "10bits --to nf4 --to bf16 --allow-nibble-only", "6bits --to nf4 --to int8 --allow-nibble-only"}) {
    const std::string asked = std::string("--advise ") + rest;
    const Json advice = Json::parse(run("measure in.safetensors --json " + asked).out);
    for (const std::string option : advice.at("options")) seen.insert(option);
    const std::string command = advice.at("command");
    EXPECT_EQ(run_as_printed(command + " --overwrite").code, 0);
    EXPECT_EQ(run("convert in.safetensors out.safetensors --overwrite " + asked).code, 0);
    for (const std::string file_name : {"safetensors", "safetensors.nibble.json"})
      EXPECT_TRUE(test::read_file(root_.path() / ("out." + file_name)) ==
                  test::read_file(root_.path() / ("OUT." + file_name)))
          << asked << file_name;
  }
  for (const char* const option : {"--calibration", "--embeddings", "--tensor", "--allow-nibble-only"})
    EXPECT_TRUE(seen.contains(option)) << option;
}

// What measure --advise refuses, what would change the choice, and outputs that are found to be wrong in time.
TEST_F(AdviseWithStatistics, ConvertRefuses) {
  const std::string into = "convert in.safetensors out.safetensors ";
  for (const char* const rest :
       {"--advise 1bits", "--advise 22", "--advise ''", "--advise 9bits --to bf16", "--advise 9bits --compensate",
        "--advise 9bits --skip x", "--advise 9bits --tensor x=nf4", "--advise 9bits --absmax search",
        "--advise 9bits --block-size 32", "--advise 9bits --no-double-quant", "--advise 9bits --no-default-skips",
        "--advise 9bits --embeddings bf16", "--advise 9bits --lm-head nf4", "--advise 9bits --experts nf4",
        "--advise 9bits --nonfinite error", "--advise 9bits --on-overflow clamp", "--advise 9bits --calibration ''",
        "--to nf4 --to fp4"}) {
    const Outcome outcome = run(into + rest);
    EXPECT_EQ(outcome.code, 2) << rest;
    EXPECT_EQ(outcome.out, "") << rest;
    EXPECT_THAT(outcome.err, StartsWith("error: ")) << rest;
  }
  EXPECT_EQ(run(into).err, "error: --to is required (see nibble convert --help)\n");
  EXPECT_EQ(run(into + "--to nf4 --to fp4").err,
            "error: --to is given 2 times, without --advise (see nibble convert --help)\n");
  const Outcome name = run("convert in.safetensors out.pt --advise 9bits");
  EXPECT_EQ(name.code, 2);
  EXPECT_EQ(name.out, "");
  EXPECT_EQ(run(into + "--advise 9bits --to int8").code, 0);
  const Outcome exists = run(into + "--advise 9bits");
  EXPECT_EQ(exists.code, 6);
  EXPECT_EQ(exists.out, "");  // not even the advice: nothing was measured
  const Outcome dry = run(into + "--advise 9bits --to int8 --dry-run");
  EXPECT_EQ(dry.code, 6);
  EXPECT_THAT(dry.out, StartsWith("9bits: --to int8\n"));
  EXPECT_EQ(run("convert out.safetensors again.safetensors --advise 9bits").code, 3);  // quantized already
  EXPECT_EQ(run("convert in.safetensors new.safetensors --advise 9bits --allow-nibble-only").code, 0);
}

// A size that no choice reaches is refused after everything was measured: these are refused before.
TEST_F(AdviseWithStatistics, ConvertRefusesBeforeItMeasures) {
  root_.write("model/model.safetensors", test::read_file(root_.path() / "in.safetensors"));
  root_.write("model/config.json", "{}");
  const std::string file = "convert in.safetensors out.safetensors --advise 1bits ",
                    directory = "convert model out --advise 1bits ", no_device = "NIBBLE_CUDA_LIBRARY=/no/such.so";
  for (const auto& [arguments, environment, text] :
       {std::tuple(directory + "--max-shard-size 5XB", std::string(), "--max-shard-size '5XB': not a size"),
        {file + "--max-shard-size 5GB", "", "--max-shard-size has no effect on 'in.safetensors'"},
        {file + "--keep-shards", "", "--keep-shards has no effect on 'in.safetensors'"},
        {file + "--to int8 --to fp8 --compute-dtype fp16", "",
         "--compute-dtype cannot be combined with --to int8: only nf4 and fp4 layers have a compute type"},
        {file + "--device cuda", no_device, "cannot use CUDA: "},
        {file + "--device cpu", no_device, "cannot become smaller than"},
        {directory + "--max-shard-size 5GB", "", "cannot become smaller than"},
        {file + "--compute-dtype fp16", "", "cannot become smaller than"}}) {
    const Outcome outcome = test::run_program(root_.path(), arguments, environment);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(text)) << arguments;
  }
}

// Only the choice tells whether a codec that was asked for is one of those that have a compute type.
TEST_F(AdviseWithStatistics, ConvertWarnsOfAComputeTypeWithoutEffect) {
  const std::string warning =
      "warning: --compute-dtype applies to no tensor: only nf4 and fp4 layers have a compute type\n";
  for (const auto& [size, chosen] : {std::pair("9bits", "int8"), {"5bits", "nf4"}}) {
    const Outcome outcome = run(std::string("convert in.safetensors out.safetensors --overwrite --to nf4 --to int8 "
                                            "--compute-dtype fp16 --advise ") +
                                size);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, StartsWith(std::string(size) + ": --to " + chosen));
    if (std::string_view(chosen) == "int8")
      EXPECT_THAT(outcome.err, HasSubstr(warning));
    else
      EXPECT_THAT(outcome.err, testing::Not(HasSubstr("compute")));
  }
}

// A Conv1D is [in, out] in the original and [out, in] in FP8, and its inputs are found in both.
TEST_F(AdviseWithStatistics, OfFp8Conv1d) {
  const std::string name = "transformer.h.0.attn.c_attn";
  test::WeightsFile file;
  file.add(name + ".weight", DType::f32, {96, 320}, test::normal_weights(96 * 320, 3));
  root_.write("gpt2/model.safetensors", file.bytes());
  root_.write("gpt2/config.json", R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"})");
  maker_.add(name, std::vector<float>(96, 1.0f));
  maker_.write(root_);
  ASSERT_EQ(run("convert gpt2 fp8 --to fp8 --allow-nibble-only").code, 0);
  for (const char* const model : {"gpt2", "fp8"}) {
    const Outcome searched =
        run(std::string("convert ") + model + " out --overwrite --to nf4:absmax=search --calibration stats");
    EXPECT_EQ(searched.code, 0) << searched.err;
    const Outcome advice = run(std::string("measure ") + model + " --to nf4 --advise 9bits --calibration stats");
    EXPECT_EQ(advice.code, 0) << advice.err;
  }
}

TEST_F(MeasureAdvise, Refuses) {
  for (const char* const rest :
       {"--advise 1bits", "--advise 100B", "--advise 22", "--advise many", "--advise ''", "--advise 0bits",
        "--advise -1bits", "--advise nanbits", "--advise 65bits", "--advise 4.5bit", "w.safetensors --advise 9bits",
        "--advise 9bits --to nf4", "--advise 9bits --csv", "--advise 9bits --html x.html",
        "--advise 9bits --min-sqnr 3", "--advise 9bits --max-rmse 1", "--advise 9bits --min-cosine 0.9"}) {
    const Outcome outcome = run(std::string("measure w.safetensors ") + rest);
    EXPECT_EQ(outcome.code, 2) << rest;
    EXPECT_EQ(outcome.out, "") << rest;
    EXPECT_THAT(outcome.err, StartsWith("error: ")) << rest;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  EXPECT_THAT(run("measure w.safetensors --advise 22").err,
              HasSubstr("--advise '22': has no unit: 22bits per weight, or a size such as 22MB or 22GB?\n"));
  EXPECT_THAT(run("measure w.safetensors --advise 300").err,
              HasSubstr("--advise '300': has no unit: a size such as 300MB or 300GB?\n"));
  // A "b" alone is a byte, as a "B" is.
  for (const char* const size : {"22b", "22B"})
    EXPECT_THAT(
        run(std::string("measure w.safetensors --advise ") + size).err,
        testing::MatchesRegex("error: w\\.safetensors: cannot become smaller than [0-9]+ bytes, [0-9.]+ bits per "
                              "weight; 22 bytes is allowed; --allow-nibble-only allows more formats\n"));
  EXPECT_EQ(run("measure w.safetensors --advise 9bits --allow-nibble-only").code, 0);
  const Outcome nothing = run("measure w.safetensors --advise 9bits --allow-nibble-only --to fp32");
  EXPECT_EQ(nothing.code, 2);
  EXPECT_EQ(nothing.err, "error: w.safetensors: no tensor is wider than fp32: nothing to choose\n");
  EXPECT_EQ(run("convert w.safetensors out.safetensors --to int8").code, 0);
  EXPECT_EQ(run("measure out.safetensors --advise 9bits").code, 3);  // quantized already
}

}  // namespace
}  // namespace nibble::cli::advise_test
