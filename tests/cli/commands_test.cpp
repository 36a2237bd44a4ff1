// The program as its users meet it: exit codes, streams, what is left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"

namespace nibble::cli::commands_test {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using testing::HasSubstr;
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

// The command that is printed makes what was promised.
TEST_F(Program, AdviceCanBeFollowed) {
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

  const std::string header = R"({"l$x.0.w'eight.weight":{"dtype":"F32","shape":[64,64],"data_offsets":[0,16384]},)"
                             R"("l$x.1.w'eight.weight":{"dtype":"F32","shape":[64,64],"data_offsets":[16384,32768]}})";
  std::string data;
  for (int i = 0; i < 8192; ++i) data += {'\0', static_cast<char>(i * i % 251), static_cast<char>(i % 127), '\x3e'};
  std::ofstream(root_.path() / "it's.safetensors", std::ios::binary) << test::safetensors_file(header, data);
  for (const char* const size : {"24bits", "24bpw", "24.6kB", "24KiB", "24 KiB"}) {
    const Outcome json = run(std::string("measure \"it's.safetensors\" --json --advise '") + size + "'");
    EXPECT_EQ(json.code, 0) << json.err;
    const auto told = nlohmann::json::parse(json.out);
    EXPECT_EQ(told.at("tensors_by_codec").at("keep"), 1) << size;
    EXPECT_LE(told.at("chosen").at("bytes"), told.at("max_bytes"));
    std::string command = told.at("command");
    ASSERT_THAT(command, StartsWith("nibble convert 'it'\\''s.safetensors' OUT.safetensors "));
    const auto converted = nlohmann::json::parse(run(command.substr(7) + " --overwrite --json").out);
    EXPECT_EQ(converted.at("stored_bytes"), told.at("chosen").at("bytes"));
    EXPECT_EQ(converted.at("bits_per_weight"), told.at("chosen").at("bits_per_weight"));
    EXPECT_EQ(converted.at("tensors_by_codec"), told.at("tensors_by_codec"));
  }
}

// Names that a regular expression or a shell would take for something else.
TEST_F(Program, AdviceOfHostileNamesCanBePasted) {
  const std::vector<std::string> names{"l.0.up[proj.weight", "l.1.up[proj.weight", "m(a|b)+$HOME`x`.weight",
                                       "it's=1.weight",      "{x}.weight",         "-lead.weight",
                                       "*.weight",           "[a,b].weight"};
  nlohmann::ordered_json header;
  std::string data;
  for (std::size_t i = 0; i < names.size(); ++i) {
    header[names[i]] = {{"dtype", "F32"}, {"shape", {64, 64}}, {"data_offsets", {data.size(), data.size() + 16384}}};
    for (std::size_t k = 0; k < 4096; ++k) {
      const float weight = i % 2 == 1 && k == 5 ? 300 : static_cast<float>(k * k % 251) / 100;
      data.append(reinterpret_cast<const char*>(&weight), sizeof weight);
    }
  }
  std::ofstream(root_.path() / "-h[x.safetensors", std::ios::binary) << test::safetensors_file(header.dump(), data);
  const auto told = nlohmann::json::parse(run("measure ./-h[x.safetensors --json --advise 17bits").out);
  EXPECT_GE(told.at("tensors_by_codec").at("keep"), 2);
  const std::string command = told.at("command");
  const Outcome done = run(command.substr(7) + " --json");
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(nlohmann::json::parse(done.out).at("stored_bytes"), told.at("chosen").at("bytes"));
}

// Tensors so small that they change no figure that is shown.
TEST_F(Program, AdviceHasNoTwoRowsThatLookAlike) {
  nlohmann::ordered_json header;
  std::string data;
  const auto add = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    const std::size_t begin = data.size();
    for (std::uint64_t i = 0; i < rows * columns; ++i) {
      const auto weight = static_cast<float>(i * i % 251 + i % 97) / 100 - 1.5f;
      data.append(reinterpret_cast<const char*>(&weight), sizeof weight);
    }
    header[name] = {{"dtype", "F32"}, {"shape", {rows, columns}}, {"data_offsets", {begin, data.size()}}};
  };
  add("big.weight", 1024, 1024);
  for (const char* const name : {"a.weight", "b.weight", "c.weight"}) add(name, 4, 4);
  (void)root_.write("uneven.safetensors", test::safetensors_file(header.dump(), data));
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

TEST_F(Program, AdviceRefuses) {
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
                              "weight; 22 bytes is allowed; --allow-nibble-only permits more formats\n"));
  EXPECT_EQ(run("measure w.safetensors --advise 9bits --allow-nibble-only").code, 0);
  EXPECT_EQ(run("convert w.safetensors out.safetensors --to int8").code, 0);
  EXPECT_EQ(run("measure out.safetensors --advise 9bits").code, 3);  // quantized already
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
  EXPECT_THAT(outcome.err, testing::ContainsRegex("warning: the system allows [0-9]+ of 64 threads\n"));
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
}

TEST_F(Program, HelpTeachesByExample) {
  for (const char* const command : {"convert", "inspect", "measure", "formats", "completion"}) {
    const Outcome outcome = run(std::string(command) + " --help");
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("Example"));
    EXPECT_THAT(outcome.out, HasSubstr(std::string("  nibble ") + command + " ")) << command;
  }
  EXPECT_THAT(run("--version").out, StartsWith("nibble 0."));
}

}  // namespace
}  // namespace nibble::cli::commands_test
