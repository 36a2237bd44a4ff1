// The program as its users meet it: exit codes, streams, what is left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "nibble/codec.hpp"
#include "nibble/codec_spec.hpp"
#include "quant/schemes/scheme.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"

namespace nibble::cli::commands_test {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Program : public testing::Test {
 protected:
  // Runs `nibble ARGUMENTS` in an empty directory with checkpoint w.safetensors: one matrix of 4 x 64.
  Program() {
    const std::string header = R"({"layer.weight":{"dtype":"F32","shape":[4,64],"data_offsets":[0,1024]}})";
    std::ofstream(root_.path() / "w.safetensors", std::ios::binary)
        << test::safetensors_file(header, std::string(1024, '\x3f'));
  }

  Outcome run(const std::string& arguments, const std::string& environment = {}) const {
    return test::run_program(root_.path(), arguments, environment);
  }

  test::TempDir root_;
};

TEST_F(Program, ConvertsAndSaysSo) {
  const Outcome outcome = run("convert w.safetensors out.safetensors --to nf4");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith("out.safetensors: 1.02 kB (1.00 KiB) -> "));
  EXPECT_TRUE(fs::exists(root_.path() / "out.safetensors"));
  EXPECT_TRUE(fs::exists(root_.path() / "out.safetensors.nibble.json"));
}

TEST_F(Program, JsonIsOneObject) {
  const auto json =
      nlohmann::json::parse(run("convert w.safetensors out.safetensors --to int8 --json --progress json").out);
  EXPECT_EQ(json.at("source_bytes"), 1024);
  EXPECT_EQ(json.at("tensors_by_codec").at("int8"), 1);
  EXPECT_EQ(json.at("output"), "out.safetensors");
  EXPECT_EQ(json.at("findings").at("overflow"), 0);
}

// A directory that only nibble reads is an input all the same: its weights are those of a cast.
TEST_F(Program, TakesFp8ThatOnlyNibbleReads) {
  const fs::path model = root_.path() / "m";
  fs::create_directory(model);
  fs::copy_file(root_.path() / "w.safetensors", model / "model.safetensors");
  std::ofstream(model / "config.json") << "{}";
  for (const char* const step :
       {"convert m fp8 --to fp8:format=e5m2 --allow-nibble-only", "convert fp8 plain --to fp32",
        "convert plain by-way --to nf4", "convert fp8 direct --to nf4", "measure fp8 direct", "measure fp8 --to int8"})
    ASSERT_EQ(run(step).code, 0) << step << ": " << run(step).err;
  const auto read = [&](const char* directory, const char* name) {
    return test::read_file(root_.path() / directory / name);
  };
  EXPECT_THAT(read("fp8", "config.json"), HasSubstr(R"("quant_method": "nibble")"));
  EXPECT_EQ(read("plain", "config.json").find("quant"), std::string::npos);
  EXPECT_EQ(read("direct", "model.safetensors"), read("by-way", "model.safetensors"));
  EXPECT_EQ(read("direct", "config.json"), read("by-way", "config.json"));
  // bitsandbytes' parts are not taken, whoever reads the rest.
  ASSERT_EQ(run("convert m int8 --to int8").code, 0);
  fs::copy_file(root_.path() / "fp8" / "config.json", root_.path() / "int8" / "config.json",
                fs::copy_options::overwrite_existing);
  const Outcome refused = run("convert int8 out --to nf4");
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, HasSubstr("quantized already by bitsandbytes; plain weights are needed"));
}

TEST_F(Program, DryRunWritesNothing) {
  const Outcome outcome = run("convert w.safetensors out.safetensors --to nf4 --dry-run");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("layer.weight"));
  EXPECT_THAT(outcome.out, HasSubstr("by name and shape"));
  const auto json = nlohmann::json::parse(run("convert w.safetensors out.safetensors --to nf4 --dry-run --json").out);
  EXPECT_EQ(json.at("tensors").at(0).at("codec"), "nf4");
  EXPECT_GT(json.at("memory_bytes"), 0);
  EXPECT_EQ(std::distance(fs::directory_iterator(root_.path()), fs::directory_iterator()), 1);  // w
}

TEST_F(Program, ResourcesAreThoseAskedFor) {
  const auto plan_with = [&](const std::string& options) {
    return nlohmann::json::parse(run("convert w.safetensors out.safetensors --to nf4 --dry-run --json " + options).out);
  };
  EXPECT_EQ(plan_with("--threads 3").at("threads"), 3);
  EXPECT_LT(plan_with("--threads 16 --max-memory 50MB").at("memory_bytes"), 50'000'000);
  EXPECT_GT(plan_with("--threads 16").at("memory_bytes"), 50'000'000);
}

TEST_F(Program, UnderscoresAreDashes) {
  EXPECT_EQ(run("convert w.safetensors out.safetensors --to nf4 --block_size=128 --dry_run").code, 0);
}

// One line on stderr and a documented exit code, whatever is wrong.
TEST_F(Program, ErrorsAreOneLine) {
  std::ofstream(root_.path() / "bad.safetensors") << "version https://git-lfs.github.com/spec/v1\n";
  fs::create_directory(root_.path() / "empty");
  const std::vector<std::pair<std::string, int>> cases{
      {"", 2},
      {"convert", 2},
      {"convert w.safetensors out.safetensors --to nf5", 2},
      {"convert w.safetensors out.safetensors --to nf4 --block-size 100", 2},
      {"convert w.safetensors out.safetensors --to nf4 --block-size ''", 2},
      {"convert w.safetensors out.safetensors --to nf4 --tensor nonsense", 2},
      {"convert w.safetensors out.safetensors --to nf4 --skip no.such.tensor", 2},
      {"convert w.safetensors out.safetensors --to nf4 --max-shard-size many", 2},
      {"convert w.safetensors out.safetensors --to nf4 --progress loud", 2},
      {"convert w.safetensors out.safetensors --to nf4 --threads 0", 2},
      {"convert w.safetensors no/such/folder --to nf4", 2},
      {"convert w.safetensors w.safetensors --to nf4 --overwrite", 2},
      {"convert bad.safetensors out.safetensors --to nf4", 3},
      {"convert empty out --to nf4", 3},
      {"convert no_such_model out --to nf4", 3},
      {"convert org/no_such_model out --to nf4", 3},
      {"inspect bad.safetensors", 3},
      {"convert w.safetensors out.safetensors --to nf4 --max-memory 1MB", 5},
      {"convert w.safetensors empty --to nf4", 2},
  };
  EXPECT_THAT(run("convert w.safetensors out.safetensors --to nf4 --max-memory 1MB").err,
              StartsWith("error: w.safetensors: opening it needs at least "));
  for (const auto& [arguments, code] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << arguments;
    EXPECT_THAT(outcome.err, StartsWith("error: ")) << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << arguments << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_FALSE(fs::exists(root_.path() / "out.safetensors")) << arguments;
  }
}

TEST_F(Program, RepeatedOptionsAllCount) {
  EXPECT_EQ(run("convert w.safetensors a.safetensors --to nf4 --skip 'layer.*' --tensor 'layer.*=fp4' --tensor "
                "'.*weight=keep'")
                .code,
            0);
  EXPECT_THAT(run("convert w.safetensors b.safetensors --to nf4 --tensor 'layer.*=keep' --tensor '.*weight=fp4'").out,
              HasSubstr("1 fp4"));
}

// CLI11 would read a pattern in brackets as a list.
TEST_F(Program, PatternsMayBeginAndEndInBrackets) {
  EXPECT_THAT(run("convert w.safetensors a.safetensors --to nf4 --skip '[l].*[t]'").out, HasSubstr("1 keep"));
  EXPECT_THAT(run("convert w.safetensors b.safetensors --to nf4 --tensor '[a-z].*,?[t]=fp4'").out, HasSubstr("1 fp4"));
}

TEST_F(Program, OptionThatDecidesNothingIsUsage) {
  for (const char* const option : {"--embeddings", "--lm-head", "--experts"})
    EXPECT_EQ(run(std::string("convert w.safetensors out.safetensors --to nf4 ") + option + " nf4").code, 2) << option;
}

// Where nobody can read what is printed, the work is done all the same, and lost output is no success.
TEST_F(Program, StreamsThatCannotBeWritten) {
  const auto code = [&](const std::string& arguments) { return run(arguments).code; };
  EXPECT_EQ(code("convert w.safetensors a.safetensors --to nf4 --progress json 2>/dev/full >/dev/null"), 0);
  EXPECT_EQ(code("convert w.safetensors b.safetensors --to nf4 --progress bar 2>&- >/dev/null"), 0);
  EXPECT_EQ(code("inspect nothing 2>/dev/full"), 3);
  EXPECT_EQ(code("inspect w.safetensors >/dev/full 2>/dev/null"), 4);
}

TEST_F(Program, PathsNeedNotBeUtf8) {
  EXPECT_EQ(run("convert w.safetensors $(printf 'o\\377').safetensors --to nf4 --json").code, 0);
  EXPECT_EQ(run("inspect $(printf 'o\\377').safetensors --json").code, 0);
}

TEST_F(Program, OutputThatExistsIsRefused) {
  EXPECT_EQ(run("convert w.safetensors out.safetensors --to nf4").code, 0);
  const std::string first = test::read_file(root_.path() / "out.safetensors");
  EXPECT_EQ(run("convert w.safetensors out.safetensors --to int8").code, 6);
  EXPECT_EQ(test::read_file(root_.path() / "out.safetensors"), first);
  EXPECT_EQ(run("convert w.safetensors out.safetensors --to int8 --overwrite").code, 0);
  EXPECT_NE(test::read_file(root_.path() / "out.safetensors"), first);
}

TEST_F(Program, QuantizedInputIsRefused) {
  EXPECT_EQ(run("convert w.safetensors out.safetensors --to nf4").code, 0);
  const Outcome again = run("convert out.safetensors again.safetensors --to nf4");
  EXPECT_EQ(again.code, 3);
  EXPECT_THAT(again.err, HasSubstr("quantized already by bitsandbytes"));
  EXPECT_EQ(run("inspect out.safetensors").code, 0);
}

// The one error after which there is an output: it says so.
TEST_F(Program, LostReportsAreErrorsOfACompleteOutput) {
  const Outcome outcome = run("convert w.safetensors out.safetensors --to nf4 >/dev/full");
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, testing::EndsWith("error: out.safetensors is complete, but the report cannot be written to "
                                             "standard output\n"));
  EXPECT_TRUE(fs::exists(root_.path() / "out.safetensors.nibble.json"));
}

// The stacks of 64 threads do not fit: oneTBB would end the process.
TEST_F(Program, FewerThreadsThanWereAskedForDoTheWork) {
  const Outcome outcome = run("convert w.safetensors out.safetensors --to nf4 --threads 64", "ulimit -v 250000 &&");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, testing::ContainsRegex("warning: the system allows only [0-9]+ of 64 threads\n"));
  EXPECT_TRUE(fs::exists(root_.path() / "out.safetensors"));
}

// 1e300, 1: what became infinite is no exact weight.
TEST_F(Program, LostWeightsAreNotExact) {
  const std::string header = R"({"w":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})";
  (void)root_.write(
      "f64.safetensors",
      test::safetensors_file(header, std::string("\x9c\x75\x00\x88\x3c\xe4\x37\x7e\0\0\0\0\0\0\xf0\x3f", 16)));
  const Outcome outcome = run("convert f64.safetensors out.safetensors --to fp32");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, testing::Not(HasSubstr("exact")));
  EXPECT_THAT(outcome.err, HasSubstr("1 beyond fp32"));
}

// A checkpoint large enough to be stopped half-way: 17 GB of holes take seconds.
TEST_F(Program, SignalsLeaveNothing) {
  const std::string header = R"({"layer.weight":{"dtype":"F32","shape":[65536,65536],"data_offsets":[0,17179869184]}})";
  std::ofstream(root_.path() / "big.safetensors", std::ios::binary) << test::safetensors_file(header);
  fs::resize_file(root_.path() / "big.safetensors", 8 + header.size() + (std::uintmax_t{1} << 34U));
  for (const auto& [signal, code] :
       {std::pair{"INT", 130}, std::pair{"TERM", 143}, std::pair{"HUP", 129}, std::pair{"PIPE", 141}}) {
    const Outcome outcome = run("convert big.safetensors out.safetensors --to nf4 --threads 1",
                                "timeout --foreground --preserve-status -s " + std::string(signal) + " 1");
    EXPECT_EQ(outcome.code, code);
    EXPECT_EQ(outcome.err, "error: interrupted: no output was written\n");
    EXPECT_FALSE(fs::exists(root_.path() / "out.safetensors"));
    EXPECT_FALSE(fs::exists(root_.path() / ".out.safetensors.nibble"));
  }
}

TEST_F(Program, FormatsComeFromTheRegistries) {
  const auto json = nlohmann::json::parse(run("formats --json").out);
  EXPECT_THAT(json.dump(), HasSubstr("\"nf4\""));
  EXPECT_THAT(json.dump(), HasSubstr("\"safetensors\""));
  ASSERT_EQ(json.at("codecs").size(), codec_names().size());
  for (const auto& codec : json.at("codecs")) {
    const auto name = codec.at("name").get<std::string>();
    const auto made = make_codec(name);
    EXPECT_EQ(codec.at("quantizes"), made->quantizes()) << name;
    if (made->quantizes())
      EXPECT_EQ(codec.at("quant_method"), scheme_of(*made).quant_method()) << name;
    else
      EXPECT_TRUE(codec.at("quant_method").is_null()) << name;
  }
}

// How codes are stored is said by the scheme; the summary of a codec is about numbers alone.
TEST_F(Program, FormatsSayWhichSchemeStoresACodec) {
  const std::string out = run("formats").out;
  for (const std::string_view name : codec_names()) {
    const auto codec = make_codec(name);
    const std::string summary(codec->spec().info().summary);
    for (const Scheme* const scheme : schemes())
      EXPECT_THAT(summary, Not(HasSubstr(std::string(scheme->quant_method())))) << name;
    const std::string stored =
        codec->quantizes() ? "; stored in the format of " + std::string(scheme_of(*codec).quant_method()) : "";
    EXPECT_THAT(out, HasSubstr(summary + stored + "\n")) << name;
  }
}

TEST_F(Program, CpuTargetIsForcedByTheEnvironment) {
  const auto formats = [&](const std::string& variable) {
    return nlohmann::json::parse(run("formats --json", "NIBBLE_CPU_TARGET=" + variable).out);
  };
  const auto best = formats("");
  ASSERT_GE(best.at("cpu_targets").size(), 2u);
  EXPECT_EQ(best.at("cpu_target"), best.at("cpu_targets").front());
  for (const std::string target : best.at("cpu_targets")) {
    EXPECT_EQ(formats(target).at("cpu_target"), target);
    EXPECT_EQ(formats(target).at("cpu_targets"), best.at("cpu_targets"));
    EXPECT_THAT(run("formats", "NIBBLE_CPU_TARGET=" + target).out, HasSubstr("  " + target + " (in use)\n"));
  }
  const Outcome wrong = run("convert w.safetensors out.safetensors --to nf4", "NIBBLE_CPU_TARGET=6502");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, StartsWith("error: CPU target '6502': this build on this processor has "));
  // Whatever else is wrong: the target would decide what is written, and how fast.
  EXPECT_THAT(run("formatz", "NIBBLE_CPU_TARGET=6502").err, StartsWith("error: CPU target '6502': "));
}

TEST_F(Program, HelpTeachesByExample) {
  for (const char* const command : {"convert", "dequantize", "inspect", "measure", "formats", "completion"}) {
    const Outcome outcome = run(std::string(command) + " --help");
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("Example"));
    EXPECT_THAT(outcome.out, HasSubstr(std::string("  nibble ") + command + " ")) << command;
  }
  EXPECT_THAT(run("--version").out, StartsWith("nibble 0."));
}

}  // namespace
}  // namespace nibble::cli::commands_test
