// nibble measure as its users meet it: what it prints, its limits, its exit codes. One file, because all forms of the
// output are of one small model, and are held against each other.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/quant/codecs/codec_support.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::cli::measure_test {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using test::WeightsFile;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

constexpr const char* hostile = "a,\"b\"\n</script>\x1b[31m.weight";
constexpr const char* q_proj = "model.layers.0.self_attn.q_proj.weight";
constexpr const char* k_proj = "model.layers.1.self_attn.k_proj.weight";

class MeasureProgram : public testing::Test {
 protected:
  // In an empty directory: w.safetensors, of two layers and what is no matrix.
  MeasureProgram() {
    file_.add(q_proj, DType::bf16, {96, 64}, test::normal_weights(96 * 64, 1, 0.02f));
    file_.add(k_proj, DType::bf16, {33, 65}, test::normal_weights(33 * 65, 2, 0.02f));
    file_.add(hostile, DType::f32, {8, 64}, test::normal_weights(512, 3));
    file_.add("model.norm.weight", DType::f32, {64}, std::vector<float>(64, 1.0f));
    file_.add("empty.weight", DType::f32, {0, 64}, {});
    write("w.safetensors", file_);
  }

  void write(const std::string& name, const WeightsFile& file) const { root_.write(name, file.bytes()); }

  Outcome run(const std::string& arguments, const std::string& environment = {}) const {
    return test::run_program(root_.path(), arguments, environment);
  }

  Json json(const std::string& arguments) const {
    const Outcome outcome = run("measure " + arguments + " --json");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out);
  }

  // What `nibble ARGUMENTS` shows on a terminal.
  std::string on_terminal(const std::string& environment, const std::string& arguments) const {
    int terminal = -1;
    const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
    if (child == 0) {
      const std::string command = "cd '" + root_.path().string() + "' && " + environment + " '" + test::program() +
                                  "' " + arguments + " --progress none";
      ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      ::_exit(127);
    }
    std::string out;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(terminal, buffer, sizeof(buffer))) > 0;)
      out.append(buffer, static_cast<std::size_t>(n));
    ::close(terminal);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 0) << out;
    return out;
  }

  std::vector<std::string> files() const { return test::entries_of(root_.path()); }

  test::TempDir root_;
  WeightsFile file_;  // what w.safetensors is
};

std::vector<std::string> keys(const Json& object) {
  std::vector<std::string> result;
  for (const auto& [key, value] : object.items()) result.push_back(key);
  return result;
}

// ---- JSON ------------------------------------------------------------------------------------------------------

const std::vector<std::string> figures{"mae", "rmse", "max_abs", "rel_rmse", "sqnr_db", "cosine", "mean_rel"};

std::vector<std::string> with_figures(std::vector<std::string> before, const std::vector<std::string>& after) {
  before.insert(before.end(), figures.begin(), figures.end());
  before.insert(before.end(), after.begin(), after.end());
  return before;
}

// Each takes 7 MB while it is opened, and 1 MB from then on.
TEST_F(MeasureProgram, EveryCheckpointIsOpenedWithinTheMemoryThatIsLeft) {
  WeightsFile file;
  file.add(std::string(1'000'000, 'n'), DType::f32, {64}, std::vector<float>(64, 1.0f));
  write("r.safetensors", file);
  write("t.safetensors", file);
  EXPECT_THAT(run("measure r.safetensors t.safetensors --max-memory 21MB").err,
              StartsWith("error: r.safetensors: opening it needs at least "));
  const Outcome second = run("measure r.safetensors t.safetensors --max-memory 22.4MB");
  EXPECT_EQ(second.code, 5);
  EXPECT_THAT(second.err, StartsWith("error: t.safetensors: opening it needs at least "));
  EXPECT_EQ(run("measure r.safetensors t.safetensors").code, 0);
}

TEST_F(MeasureProgram, JsonHasTheDocumentedFields) {
  const Json found = json("w.safetensors --to nf4 --to int8");
  EXPECT_THAT(keys(found), ElementsAre("schema_version", "generator", "reference", "tests"));
  EXPECT_EQ(found["schema_version"], 1);
  EXPECT_THAT(found["generator"], StartsWith("nibble "));
  const Json& reference = found["reference"];
  EXPECT_THAT(keys(reference), ElementsAre("name", "bytes", "weights", "tensors"));
  EXPECT_EQ(reference["bytes"], 96 * 64 * 2 + 33 * 65 * 2 + 512 * 4 + 64 * 4);
  EXPECT_EQ(reference["weights"], 96 * 64 + 33 * 65 + 512 + 64);
  ASSERT_EQ(reference["tensors"].size(), 5U);
  for (const Json& tensor : reference["tensors"]) {
    EXPECT_THAT(keys(tensor),
                ElementsAre("name", "kind", "layer", "dtype", "codec", "shape", "weights", "bytes", "nan", "inf",
                            "beyond_fp32", "mean", "rms", "kurtosis", "absmax", "outlier_columns", "outlier_energy"));
    EXPECT_THAT(keys(tensor["absmax"]), ElementsAre("min", "mean", "max", "std"));
  }
  ASSERT_EQ(found["tests"].size(), 2U);
  for (const Json& test : found["tests"]) {
    EXPECT_THAT(keys(test), ElementsAre("name", "bytes", "verdicts", "headline", "quantized", "cast", "kept",
                                        "converted", "total", "kinds", "layers", "worst", "missing", "tensors"));
    for (const char* const group : {"quantized", "cast", "kept", "converted", "total"})
      EXPECT_EQ(keys(test[group]),
                with_figures({"tensors", "weights", "lost", "exact"},
                             {"output_tensors", "output_rel_rmse", "output_sqnr_db", "bits_per_weight"}))
          << group;
    for (const Json& verdict : test["verdicts"])
      EXPECT_THAT(keys(verdict),
                  ElementsAre("codec", "tensors", "exact", "worse_than_expected", "broken", "min_sqnr_db",
                              "max_sqnr_db", "min_normal_sqnr_db", "max_normal_sqnr_db", "worst", "text"));
    for (const Json& kind : test["kinds"])
      EXPECT_EQ(keys(kind), with_figures({"kind", "headline", "quantized", "cast", "kept", "converted", "tensors",
                                          "weights", "lost", "exact"},
                                         {"output_tensors", "output_rel_rmse", "output_sqnr_db", "bits_per_weight"}));
    for (const Json& layer : test["layers"])
      EXPECT_EQ(keys(layer), with_figures({"layer", "headline", "quantized", "cast", "kept", "converted", "tensors",
                                           "weights", "lost", "exact"},
                                          {"output_tensors", "output_rel_rmse", "output_sqnr_db", "bits_per_weight"}));
    ASSERT_EQ(test["tensors"].size(), 5U);
    for (const Json& tensor : test["tensors"]) {
      EXPECT_EQ(keys(tensor), with_figures({"codec", "outcome", "converted", "bytes", "bits_per_weight", "nan", "inf",
                                            "lost", "exact"},
                                           {"output_rel_rmse", "output_sqnr_db", "max_abs_at", "worst_block", "entropy",
                                            "code_use", "error_histogram"}));
      const Json& worst = tensor["worst_block"];
      EXPECT_TRUE(worst.is_null() || keys(worst) == (std::vector<std::string>{"at", "rmse", "absmax"}));
    }
  }
  EXPECT_EQ(found["tests"][0]["name"], "nf4");
  EXPECT_EQ(found["tests"][1]["name"], "int8");
}

const Json& of_name(const Json& found, std::size_t test, const std::string& name) {
  const Json& tensors = found["reference"]["tensors"];
  for (std::size_t t = 0; t < tensors.size(); ++t)
    if (tensors[t]["name"] == name) return found["tests"][test]["tensors"][t];
  throw std::runtime_error(name + " is not there");
}

TEST_F(MeasureProgram, JsonIsConsistent) {
  const Json found = json("w.safetensors --to nf4");
  const Json& test = found["tests"][0];
  const Json& quantized = of_name(found, 0, q_proj);
  EXPECT_EQ(quantized["codec"], "nf4");
  EXPECT_NEAR(quantized["sqnr_db"].get<double>(), 20.7, 0.3);
  EXPECT_NEAR(quantized["bits_per_weight"].get<double>(), 8.0 * quantized["bytes"].get<double>() / (96 * 64), 1e-12);
  EXPECT_NEAR(quantized["sqnr_db"].get<double>(), -20 * std::log10(quantized["rel_rmse"].get<double>()), 1e-9);
  std::uint64_t codes = 0;
  for (const Json& count : quantized["code_use"]) codes += count.get<std::uint64_t>();
  EXPECT_EQ(codes, 96U * 64);
  std::uint64_t errors = 0;
  for (const Json& bin : quantized["error_histogram"]) errors += bin[1].get<std::uint64_t>();
  EXPECT_EQ(errors, 96U * 64);
  EXPECT_EQ(quantized["error_histogram"][0][0], "zero");
  EXPECT_LT(quantized["max_abs_at"], 96 * 64);
  EXPECT_EQ(quantized["worst_block"]["at"].get<int>() % 64, 0);
  EXPECT_GT(quantized["worst_block"]["absmax"], 0.02);

  // Layers, kinds and all: sums over their tensors.
  EXPECT_EQ(test["layers"].size(), 2U);
  EXPECT_EQ(test["layers"][0]["layer"], 0);
  EXPECT_EQ(test["layers"][0]["rmse"], quantized["rmse"]);
  EXPECT_EQ(test["total"]["tensors"], 5);
  EXPECT_EQ(test["total"]["weights"], found["reference"]["weights"]);
  EXPECT_EQ(test["converted"]["tensors"].get<int>() + test["kept"]["tensors"].get<int>(), 5);
  EXPECT_EQ(test["converted"]["tensors"], 3);  // the empty one is kept
  EXPECT_EQ(test["worst"].size(), 3U);         // neither what was kept nor what is empty has an error
  double last = INFINITY;
  for (const Json& t : test["worst"]) {
    const Json& value = test["tensors"][t.get<std::size_t>()]["rel_rmse"];
    EXPECT_LE(value.is_null() ? -1 : value.get<double>(), last);
    last = value.is_null() ? -1 : value.get<double>();
  }
  EXPECT_THAT(test["missing"], Json::array());
}

TEST_F(MeasureProgram, JsonHasNullWhereThereIsNothing) {
  const Json found = json("w.safetensors w.safetensors");
  const Json& exact = of_name(found, 0, q_proj);
  EXPECT_EQ(exact["rmse"], 0);
  EXPECT_EQ(exact["cosine"], 1);
  for (const char* const field : {"sqnr_db", "max_abs_at", "worst_block", "entropy", "code_use"})
    EXPECT_TRUE(exact[field].is_null()) << field;
  EXPECT_EQ(exact["error_histogram"], (Json::array({Json::array({"zero", 96 * 64})})));
  const Json& empty = of_name(found, 0, "empty.weight");
  for (const std::string& figure : figures) EXPECT_TRUE(empty[figure].is_null()) << figure;
  EXPECT_TRUE(empty["bits_per_weight"].is_null());
  for (const Json& tensor : found["reference"]["tensors"]) {
    if (tensor["name"] == "model.norm.weight") {
      EXPECT_TRUE(tensor["kurtosis"].is_null());
      EXPECT_TRUE(tensor["outlier_columns"].is_null());
      EXPECT_TRUE(tensor["layer"].is_null());
      EXPECT_EQ(tensor["mean"], 1);
    }
    EXPECT_EQ(tensor["absmax"]["min"].is_null(), tensor["name"] == "empty.weight");
  }
}

TEST_F(MeasureProgram, JsonNamesWhatIsMissing) {
  file_.add("model.layers.2.more.weight", DType::f32, {4}, {1, 2, 3, 4});
  write("more.safetensors", file_);
  const Json found = json("more.safetensors w.safetensors more.safetensors");
  EXPECT_EQ(found["tests"][0]["missing"], (Json::array({"model.layers.2.more.weight"})));
  EXPECT_TRUE(of_name(found, 0, "model.layers.2.more.weight").is_null());
  EXPECT_FALSE(of_name(found, 1, "model.layers.2.more.weight").is_null());
}

// Neither names nor figures depend on how it is done, down to the last digit.
TEST_F(MeasureProgram, OutputDoesNotDependOnThreadsMemoryOrProcessor) {
  file_.add("large.weight", DType::f32, {700, 700}, test::normal_weights(490'000, 5));
  write("w.safetensors", file_);
  const std::string command = "measure w.safetensors --to nf4 --to int8 --to fp16 --json ";
  const std::string expected = run(command + "--threads 1").out;
  EXPECT_THAT(expected, HasSubstr("large.weight"));
  for (const char* const how : {"--threads 2", "--threads 7", "--threads 2 --max-memory 30MB"})
    EXPECT_TRUE(run(command + how).out == expected) << how;
  const Json targets = Json::parse(run("formats --json").out)["cpu_targets"];
  for (const std::string target : targets)
    EXPECT_TRUE(run(command, "NIBBLE_CPU_TARGET=" + target).out == expected) << target;
}

// ---- CSV -------------------------------------------------------------------------------------------------------

// As RFC 4180 has it, with \n at the end of lines.
std::vector<std::vector<std::string>> rows_of(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row(1);
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '"' && i + 1 < text.size() && text[i + 1] == '"')
      row.back() += text[++i];
    else if (c == '"')
      quoted = !quoted;
    else if (!quoted && c == ',')
      row.emplace_back();
    else if (!quoted && c == '\n')
      rows.push_back(std::exchange(row, std::vector<std::string>(1)));
    else
      row.back() += c;
  }
  EXPECT_FALSE(quoted);
  return rows;
}

// The sums of a conversion, and what double quantization does to them afterwards, against measuring its output.
TEST_F(MeasureProgram, ManifestsHaveTheSameFigures) {
  std::vector<CodecSpec> codecs;
  for (const std::string_view name : codec_names())
    if (name != "keep") std::ranges::copy(test::variants(name), std::back_inserter(codecs));
  for (const CodecSpec& to : codecs)
    for (const std::string report : {"basic", "full", "none"}) {
      const std::string consent = make_codec(to)->quantizes() ? " --allow-nibble-only" : "";
      const std::string what = to.text() + consent + " --error-report " + report;
      const auto converted = run("convert w.safetensors out.safetensors --overwrite --progress none --to " + what);
      ASSERT_EQ(converted.code, 0) << what << ": " << converted.err;
      const Json measured = json("w.safetensors out.safetensors");
      const Json manifest = Json::parse(test::read_file(root_.path() / "out.safetensors.nibble.json"));
      std::map<std::string, Json> errors;
      for (const Json& tensor : manifest.at("tensors"))
        if (tensor.contains("error")) errors[tensor.at("name")] = tensor.at("error");
      EXPECT_EQ(errors.empty(), report == "none") << what;
      const Json& tests = measured.at("tests").at(0).at("tensors");
      for (std::size_t t = 0; t < tests.size(); ++t) {
        const auto error = errors.find(measured.at("reference").at("tensors").at(t).at("name"));
        if (error == errors.end()) continue;
        for (const std::string figure : {"rmse", "rel_rmse", "sqnr_db", "cosine", "mae", "max_abs", "mean_rel"}) {
          if (report == "basic" && !error->second.contains(figure)) continue;
          const Json& expected = tests.at(t).at(figure);
          const Json& found = error->second.at(figure);
          ASSERT_EQ(found.is_null(), expected.is_null()) << what << ": " << error->first << ' ' << figure;
          if (expected.is_null()) continue;
          EXPECT_NEAR(found.get<double>(), expected.get<double>(), 1e-6 * std::abs(expected.get<double>()))
              << what << ": " << error->first << ' ' << figure;
        }
        const bool has_absmax = make_codec(to)->quantizes() && error->first != "empty.weight";
        EXPECT_EQ(error->second.contains("absmax"), has_absmax) << what << ": " << error->first;
      }
    }
}

// What cannot be quantized is kept, fp64 as fp32: that is a cast, and costs what casts cost.
TEST_F(MeasureProgram, FullReportsOfFp64ThatIsKept) {
  const auto normal = test::normal_weights(64 * 96, 4);
  std::vector<double> weights;
  for (const float w : normal) weights.push_back(w / 3.0);
  weights[5] = std::nan("");
  WeightsFile file;
  file.add_bytes("a.weight", DType::f64, {64, 96}, test::bytes_of(weights));
  write("wide.safetensors", file);
  std::vector<Json> errors;
  for (const std::string report : {"basic", "full"}) {
    const std::string options = "--overwrite --progress none --to nf4 --error-report " + report;
    ASSERT_EQ(run("convert wide.safetensors out.safetensors " + options).code, 0);
    errors.push_back(Json::parse(test::read_file(root_.path() / "out.safetensors.nibble.json")).at("tensors").at(0));
  }
  const double basic = errors[0].at("error").at("sqnr_db");
  EXPECT_NEAR(basic, 152, 2);
  EXPECT_NEAR(errors[1].at("error").at("sqnr_db"), basic, 0.01);
  EXPECT_EQ(json("wide.safetensors --to nf4").at("tests").at(0).at("bytes"), 64 * 96 * 4);
}

TEST_F(MeasureProgram, CsvHasARowForEveryTensor) {
  const Outcome outcome = run("measure w.safetensors --to nf4 --to fp16 --csv");
  EXPECT_EQ(outcome.code, 0);
  const auto rows = rows_of(outcome.out);
  ASSERT_EQ(rows.size(), 1U + 2 * 5);
  EXPECT_EQ(rows[0].size(), 37U);
  EXPECT_EQ(rows[0][1], "name");
  const auto column = [&](const std::string& name) {
    return static_cast<std::size_t>(std::find(rows[0].begin(), rows[0].end(), name) - rows[0].begin());
  };
  const Json found = json("w.safetensors --to nf4 --to fp16");
  for (std::size_t r = 1; r < rows.size(); ++r) {
    ASSERT_EQ(rows[r].size(), 37U);
    const std::size_t test = (r - 1) / 5, t = (r - 1) % 5;
    const Json& tensor = found["tests"][test]["tensors"][t];
    EXPECT_EQ(rows[r][0], test == 0 ? "nf4" : "fp16");
    EXPECT_EQ(rows[r][1], found["reference"]["tensors"][t]["name"]);
    for (const char* const figure : {"rmse", "max_abs", "mean_rel", "cosine", "bits_per_weight"}) {
      const std::string& field = rows[r][column(figure)];
      EXPECT_EQ(field.empty(), tensor[figure].is_null()) << figure;
      if (!field.empty()) {
        EXPECT_EQ(std::stod(field), tensor[figure].get<double>()) << figure;
      }
    }
    if (rows[r][1] == "model.norm.weight") {
      EXPECT_EQ(rows[r][column("sqnr_db")], "inf");
    }
    if (rows[r][1] == q_proj) {
      EXPECT_EQ(rows[r][column("shape")], "96x64");
    }
  }
}

// ---- the table -------------------------------------------------------------------------------------------------

TEST_F(MeasureProgram, TableNamesTheWorstFirst) {
  const Outcome outcome = run("measure w.safetensors --to nf4");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, StartsWith("nf4: 3 tensors at "));
  EXPECT_THAT(outcome.out, HasSubstr(q_proj));
  EXPECT_THAT(outcome.out, HasSubstr("  nf4  "));
  EXPECT_THAT(outcome.out, Not(HasSubstr("model.norm.weight")));  // has no error
  EXPECT_THAT(outcome.out, HasSubstr(" as in the reference\n"));
  // What names hold does not reach the terminal.
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(outcome.out, HasSubstr("\\x1b[31m"));

  const std::string one = run("measure w.safetensors --to nf4 --worst 1").out;
  EXPECT_THAT(one, HasSubstr("the worst tensor of 5"));
  EXPECT_THAT(one, Not(HasSubstr("model.norm.weight")));
  EXPECT_THAT(run("measure w.safetensors --to nf4 --worst 0").out, HasSubstr("model.norm.weight"));
}

TEST_F(MeasureProgram, ColoursAreForTerminalsThatWantThem) {
  const std::string command = "measure w.safetensors --to nf4";
  EXPECT_THAT(on_terminal("NO_COLOR= TERM=xterm", command), HasSubstr("\x1b[1m"));
  EXPECT_THAT(on_terminal("NO_COLOR=1 TERM=xterm", command), Not(HasSubstr("\x1b")));
  EXPECT_THAT(on_terminal("NO_COLOR= TERM=dumb", command), Not(HasSubstr("\x1b")));
  EXPECT_THAT(run(command, "NO_COLOR= TERM=xterm").out, Not(HasSubstr("\x1b")));
}

// ---- --to ------------------------------------------------------------------------------------------------------

TEST_F(MeasureProgram, FormatsAreThoseOfConvert) {
  const std::vector<std::pair<std::string, std::string>> same{
      {"nf4", "nf4"},
      {"nf4:block-size=128", "nf4 --block-size 128"},
      {"fp4:double-quant=no", "fp4 --no-double-quant"},
      {"nf4:block-size=32,double-quant=no", "nf4 --block-size 32 --no-double-quant"},
      {"nf4:double-quant=yes", "nf4"},
      {"int8", "int8"},
      {"bf16", "bf16"},
      {"fp16", "fp16"}};
  for (const auto& [format, options] : same) {
    EXPECT_EQ(run("convert w.safetensors out.safetensors --overwrite --to " + options).code, 0) << options;
    const Json found = json("w.safetensors out.safetensors --to " + format);
    if (format != options) {
      EXPECT_EQ(run("convert w.safetensors same.safetensors --overwrite --to " + format).code, 0);
      EXPECT_EQ(test::read_file(root_.path() / "same.safetensors"), test::read_file(root_.path() / "out.safetensors"));
    }
    Json written = found["tests"][0], planned = found["tests"][1];
    EXPECT_EQ(planned["name"], format);
    written.erase("name");
    planned.erase("name");
    EXPECT_EQ(written, planned) << format;
  }
}

TEST_F(MeasureProgram, NothingIsWritten) {
  const std::vector<std::string> before = files();
  EXPECT_EQ(run("measure w.safetensors --to nf4 --to int8").code, 0);
  EXPECT_EQ(files(), before);
}

// One line on stderr and a documented exit code, whatever is wrong.
TEST_F(MeasureProgram, ErrorsAreOneLine) {
  EXPECT_EQ(run("convert w.safetensors q.safetensors --to nf4").code, 0);
  std::ofstream(root_.path() / "bad.safetensors") << "version https://git-lfs.github.com/spec/v1\n";
  const std::vector<std::pair<std::string, int>> cases{
      {"", 2},
      {"w.safetensors", 2},
      {"w.safetensors --to nf5", 2},
      {"w.safetensors --to ''", 2},
      {"w.safetensors --to nf4:", 2},
      {"w.safetensors --to nf4:block-size=", 2},
      {"w.safetensors --to nf4:block-size=100", 2},
      {"w.safetensors --to nf4:block-size=64x", 2},
      {"w.safetensors --to nf4:block-size=99999999999", 2},
      {"w.safetensors --to nf4:block-size=64,", 2},
      {"w.safetensors --to nf4:double-quant=maybe", 2},
      {"w.safetensors --to nf4:blocksize=64", 2},
      {"w.safetensors --to nf4 --json --csv", 2},
      {"w.safetensors --to nf4 --worst many", 2},
      {"w.safetensors --to nf4 --worst -1", 2},
      {"w.safetensors --to nf4 --threads 0", 2},
      {"w.safetensors --to nf4 --max-memory much", 2},
      {"w.safetensors --to nf4 --progress loud", 2},
      {"w.safetensors --to nf4 --max-rmse big", 2},
      {"w.safetensors --to nf4 --min-sqnr '(=1'", 2},
      {"w.safetensors --to nf4 --min-cosine 'no.such.tensor=1'", 2},
      {"w.safetensors q.safetensors --to nf4 --max-memory 1MB", 5},
      {"q.safetensors --to nf4", 3},
      {"bad.safetensors w.safetensors", 3},
      {"w.safetensors bad.safetensors", 3},
      {"w.safetensors no_such_model", 3},
      {"w.safetensors --to nf4 --html no/such/folder/r.html", 2},
      {"w.safetensors --to nf4 --html .", 2},
  };
  const std::vector<std::string> before = files();
  for (const auto& [arguments, code] : cases) {
    const Outcome outcome = run("measure " + arguments);
    EXPECT_EQ(outcome.code, code) << arguments << ": " << outcome.err;
    EXPECT_THAT(outcome.err, StartsWith("error: ")) << arguments;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << arguments << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_EQ(files(), before) << arguments;
  }
  EXPECT_EQ(run("measure w.safetensors --to nf4 >/dev/full").code, 4);
}

// ---- limits ----------------------------------------------------------------------------------------------------

// FP8 without scales cannot be decoded, on either side.
TEST_F(MeasureProgram, TensorsThatCannotBeCompared) {
  WeightsFile codes, other;
  codes.add_bytes("w.weight", DType::f8_e4m3, {2, 2}, std::vector<std::byte>(4));
  write("codes.safetensors", codes);
  other.add("w.weight", DType::f32, {2, 2}, {1, 2, 3, 4});
  write("other.safetensors", other);
  const std::string fact =
      "error: codes.safetensors: no tensor can be compared: none has a weight type (F64, F32, BF16, F16)\n";
  for (const char* const arguments : {"codes.safetensors codes.safetensors", "other.safetensors codes.safetensors"}) {
    const Outcome outcome = run(std::string("measure ") + arguments);
    EXPECT_EQ(outcome.code, 3) << arguments;
    EXPECT_EQ(outcome.err, fact) << arguments;
  }
  EXPECT_EQ(run("measure w.safetensors other.safetensors").err,
            "error: other.safetensors: has none of the tensors of w.safetensors in the same shape\n");
}

TEST_F(MeasureProgram, LimitsThatAreKept) {
  const Outcome outcome =
      run("measure w.safetensors --to nf4 --max-rmse 0.5 --min-sqnr 10 --min-sqnr '.*q_proj.*=19' --min-cosine 0.9 "
          "--min-cosine 'model[.]norm.*=1'");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
}

// Before the weights are read, of which the test here has none.
TEST_F(MeasureProgram, PatternsAreCheckedBeforeMeasuring) {
  EXPECT_EQ(run("convert w.safetensors q.safetensors --to nf4").code, 0);
  const Outcome outcome =
      run("measure w.safetensors q.safetensors --min-sqnr 'no.such=3' --max-memory 15MB --progress plain");
  EXPECT_EQ(outcome.code, 2);  // 5 if what measuring needs was asked for first
  EXPECT_THAT(outcome.err, HasSubstr("min-sqnr 'no.such' matches no tensor"));
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(run("measure w.safetensors q.safetensors --max-rmse q_proj=3").err,
            "error: max-rmse 'q_proj' matches no tensor as a whole name; '.*q_proj.*' matches 1\n");
}

// REF and TEST often share the name of a file.
TEST_F(MeasureProgram, ErrorsNameThePathThatWasGiven) {
  fs::create_directory(root_.path() / "other");
  std::ofstream(root_.path() / "other" / "w.safetensors") << "version https://git-lfs.github.com/spec/v1\n";
  EXPECT_THAT(run("measure w.safetensors other/w.safetensors").err, StartsWith("error: other/w.safetensors: "));
  EXPECT_THAT(run("measure other/w.safetensors w.safetensors").err, StartsWith("error: other/w.safetensors: "));
}

TEST_F(MeasureProgram, LimitsThatAreBroken) {
  for (const std::string limit : {"--min-sqnr 40", "--max-rmse 1e-6", "--min-cosine 0.9999999",
                                  "--min-sqnr '.*_proj.*=30'", "--max-rmse '[a-z].*weight=1e-4'"}) {
    const Outcome outcome = run("measure w.safetensors --to nf4 " + limit);
    EXPECT_EQ(outcome.code, 8) << limit;
    EXPECT_THAT(outcome.out, StartsWith("nf4: 3 tensors at ")) << limit;  // what was found is shown all the same
    EXPECT_THAT(outcome.err, StartsWith("fails: nf4: tensor 'model.layers.0.self_attn.q_proj.weight': ")) << limit;
    EXPECT_THAT(outcome.err, HasSubstr("fails: nf4: tensor 'model.layers.1.self_attn.k_proj.weight': ")) << limit;
    EXPECT_THAT(outcome.err, Not(HasSubstr("model.norm.weight"))) << limit;
    EXPECT_THAT(outcome.err,
                testing::ContainsRegex("\nerror: nf4: tensor 'model[^ ]*' \\(and [12] more\\) breaks --m"));
  }
  const Outcome one = run("measure w.safetensors --to nf4 --json --min-sqnr '.*q_proj.*=40'");
  EXPECT_EQ(one.code, 8);
  EXPECT_EQ(Json::parse(one.out)["tests"].size(), 1U);
  EXPECT_EQ(std::count(one.err.begin(), one.err.end(), '\n'), 2);
  EXPECT_THAT(one.err, HasSubstr("error: nf4: tensor 'model.layers.0.self_attn.q_proj.weight' breaks --min-sqnr\n"));
}

// ---- HTML ------------------------------------------------------------------------------------------------------

// A page says when it was made; with SOURCE_DATE_EPOCH the same page is made again.
TEST_F(MeasureProgram, HtmlIsReproducible) {
  const auto page = [&](const std::string& epoch) {
    EXPECT_EQ(run("measure w.safetensors --to nf4 --html report.html", "SOURCE_DATE_EPOCH=" + epoch).code, 0);
    return test::read_file(root_.path() / "report.html");
  };
  const std::string first = page("1000000000");
  EXPECT_THAT(first, HasSubstr("2001-09-09 01:46:40 UTC"));
  EXPECT_THAT(first, HasSubstr("nibble measure w.safetensors --to nf4"));
  EXPECT_TRUE(page("1000000000") == first);
  EXPECT_EQ(run("measure w.safetensors --to nf4 --html r.html --worst 3 --max-memory 900MB").code, 0);
  EXPECT_THAT(test::read_file(root_.path() / "r.html"),
              HasSubstr("nibble measure w.safetensors --to nf4 --worst 3 --max-memory 900MB"));
  EXPECT_FALSE(page("1000000001") == first);
  EXPECT_FALSE(page("") == first);
  for (const char* const epoch : {"x", "-1", "1.5", "253402300800"})
    EXPECT_EQ(run("measure w.safetensors --to nf4 --html report.html", std::string("SOURCE_DATE_EPOCH=") + epoch).code,
              2);
}

TEST_F(MeasureProgram, HtmlIsWrittenWhole) {
  EXPECT_EQ(run("measure w.safetensors --to nf4 --html report.html").code, 0);
  const std::string page = test::read_file(root_.path() / "report.html");
  EXPECT_THAT(page, HasSubstr("</html>"));
  EXPECT_THAT(page, HasSubstr(q_proj));
  EXPECT_EQ(files(), (std::vector<std::string>{"report.html", "w.safetensors"}));
  // Over what was there.
  EXPECT_EQ(run("measure w.safetensors --to int8 --html report.html --json").code, 0);
  EXPECT_NE(test::read_file(root_.path() / "report.html"), page);
}

}  // namespace
}  // namespace nibble::cli::measure_test
