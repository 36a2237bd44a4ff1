// --calibration of nibble convert and nibble measure, by the program itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/calibration.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::calibration_option_test {
namespace {

using testing::HasSubstr;
using testing::Not;

class CalibrationOption : public testing::Test {
 protected:
  CalibrationOption() {
    test::WeightsFile model;
    for (const char* const name : {"layers.0.q_proj", "layers.0.o_proj"})
      model.add(std::string(name) + ".weight", DType::f32, {256, 640}, test::normal_weights(256 * 640, 1));
    root.write("in.safetensors", model.bytes());
    maker.add("layers.0.q_proj", squares(1));
    maker.add("layers.0.o_proj", squares(2));
  }
  static std::vector<float> squares(unsigned seed) {
    std::vector<float> values = test::normal_weights(640, seed);
    for (float& value : values) value = std::exp(2 * value);
    return values;
  }
  [[nodiscard]] test::Outcome convert(const std::string& rest) const {
    return test::run_program(root.path(), "convert in.safetensors " + rest);
  }
  [[nodiscard]] test::Outcome measure(const std::string& rest) const {
    return test::run_program(root.path(), "measure in.safetensors " + rest);
  }
  [[nodiscard]] nlohmann::json measured(const std::string& rest) const {
    const test::Outcome done = measure(rest + " --json");
    EXPECT_EQ(done.code, 0) << done.err;
    return nlohmann::json::parse(done.out).at("tests");
  }
  [[nodiscard]] std::string bytes_of(const std::string& options) const {
    const test::Outcome done = convert("out.safetensors --overwrite " + options);
    EXPECT_EQ(done.code, 0) << done.err;
    return test::read_file(root.path() / "out.safetensors");
  }
  [[nodiscard]] nlohmann::json manifest() const {
    return nlohmann::json::parse(test::read_file(root.path() / "out.safetensors.nibble.json"));
  }

  test::TempDir root;
  test::StatisticsMaker maker;
};

TEST_F(CalibrationOption, WeighsErrorsOfSearches) {
  maker.write(root);
  for (const std::string to : {"nf4", "fp4 --no-double-quant", "int8"}) {
    const std::string search = "--to " + to + " --absmax search";
    const std::string weighted = bytes_of(search + " --calibration stats --threads 1");
    EXPECT_EQ(manifest().at("calibration").at("tensors"), 2);
    EXPECT_THAT(manifest().at("warnings").dump(), Not(HasSubstr("statistics")));
    EXPECT_THAT(manifest().dump(), Not(HasSubstr("stats")));  // no path
    EXPECT_NE(bytes_of(search), weighted) << to;
    EXPECT_FALSE(manifest().contains("calibration"));
    EXPECT_EQ(bytes_of(search + " --calibration=stats/ --threads 2 --max-memory 40MB"), weighted) << to;
  }
}

TEST_F(CalibrationOption, IsRefusedWhereNothingIsSearched) {
  maker.write(root);
  for (const auto& [options, reason] :
       {std::pair("--to nf4", "cannot be combined with --to nf4"),
        {"--to bf16", "cannot be combined with --to bf16"},
        {"--to nf4:absmax=search --skip 'layers.0.o.*' --tensor 'layers.0.q.*=int8' --allow-nibble-only",
         "the absmax of no tensor is searched"}}) {
    const test::Outcome done = convert("out.safetensors --calibration stats " + std::string(options));
    EXPECT_EQ(done.code, 2) << options;
    EXPECT_THAT(done.err, HasSubstr(reason)) << options;
  }
  EXPECT_THAT(convert("out.safetensors --calibration stats --to nf4").err,
              HasSubstr("only searches of absmax (--absmax search) and compensation (--compensate) use statistics"));
  EXPECT_FALSE(std::filesystem::exists(root.path() / "out.safetensors"));
}

TEST_F(CalibrationOption, IsRefusedWithoutAValue) {
  for (const char* const option : {"--calibration ''", "--calibration="}) {
    const test::Outcome done = convert("out.safetensors --to nf4 --absmax search " + std::string(option));
    EXPECT_EQ(done.code, 2) << option;
    EXPECT_EQ(done.err, "error: --calibration needs a value: DIR (see nibble convert --help)\n") << option;
  }
  EXPECT_FALSE(std::filesystem::exists(root.path() / "out.safetensors"));
}

// The statistics are part of what is needed: the limit is the one that was given, and what is suggested is enough.
TEST_F(CalibrationOption, SaysHowMuchMemoryItNeeds) {
  maker.write(root);
  const std::string search = "out.safetensors --to nf4 --absmax search --calibration stats --threads 1 --max-memory ";
  for (const char* const how : {" --dry-run", ""}) {
    const test::Outcome refused = convert(search + "14800000" + how);
    EXPECT_EQ(refused.code, 5) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("the limit is 14.80 MB"));
    const std::string remedy = "raise --max-memory to ";
    const std::size_t at = refused.err.find(remedy);
    ASSERT_NE(at, std::string::npos) << refused.err;
    const std::string enough =
        refused.err.substr(at + remedy.size(), refused.err.find(" or more", at) - at - remedy.size());
    const test::Outcome done = convert(search + enough + how);
    EXPECT_EQ(done.code, 0) << enough << ": " << done.err;
  }
}

TEST_F(CalibrationOption, TellsOfTensorsWithoutStatistics) {
  maker.manifest["weights"].erase("layers.0.o_proj.weight");
  maker.write(root);
  constexpr const char* text = "1 of 2 tensors whose absmax is searched have no statistics";
  for (const char* const how : {"--dry-run", ""}) {
    const test::Outcome done =
        convert("out.safetensors --to nf4 --absmax search --calibration stats " + std::string(how));
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_THAT(done.err, HasSubstr(std::string("warning: ") + text));
  }
  EXPECT_THAT(manifest().at("warnings").dump(), HasSubstr(text));
}

TEST_F(CalibrationOption, RefusesWhatIsNotCalibration) {
  const auto refusal = [&] {
    const test::Outcome done = convert("out.safetensors --to nf4 --absmax search --calibration stats --dry-run");
    EXPECT_EQ(done.code, 3) << done.err;
    return done.err;
  };
  EXPECT_THAT(refusal(), HasSubstr("stats: "));
  maker.manifest["version"] = 2;
  maker.write(root);
  EXPECT_EQ(refusal(), "error: stats/calibration.json: has version 2, this nibble reads 1\n");
}

// A search goes by the statistics, as in a conversion with them: the error of outputs falls, that of weights rises.
TEST_F(CalibrationOption, MeasuresTheErrorsOfOutputs) {
  maker.write(root);
  (void)bytes_of("--to nf4 --absmax search --calibration stats");
  const nlohmann::json tests = measured("out.safetensors --to nf4:absmax=search --to nf4 --calibration stats"),
                       plain = measured("--to nf4:absmax=search")[0];
  const auto of = [](const nlohmann::json& test, const char* figure) { return test.at("quantized").at(figure); };
  for (const char* const figure : {"sqnr_db", "output_sqnr_db"}) EXPECT_EQ(of(tests[0], figure), of(tests[1], figure));
  EXPECT_GT(of(tests[1], "output_sqnr_db"), of(tests[1], "sqnr_db"));
  EXPECT_GT(of(tests[1], "output_sqnr_db"), of(tests[2], "output_sqnr_db"));
  EXPECT_LT(of(tests[1], "sqnr_db"), of(plain, "sqnr_db"));
  for (const nlohmann::json& test : tests) {
    EXPECT_EQ(of(test, "output_tensors"), 2);
    for (const nlohmann::json& tensor : test.at("tensors")) EXPECT_TRUE(tensor.at("output_rel_rmse").is_number());
  }
  EXPECT_TRUE(of(plain, "output_sqnr_db").is_null());
  EXPECT_THAT(measure("--to nf4 --calibration stats").out, HasSubstr("\noutputs of 2 quantized tensors: SQNR "));
  EXPECT_THAT(measure("--to nf4").out, Not(HasSubstr("output")));
}

TEST_F(CalibrationOption, OfMeasureIsInTheReportsCommand) {
  const std::filesystem::path stats = maker.write(root, "it's");
  ASSERT_EQ(measure("--to nf4 --calibration \"it's\" --html page.html").code, 0);
  EXPECT_THAT(test::read_file(root.path() / "page.html"),
              HasSubstr(R"(nibble measure in.safetensors --to nf4 --calibration 'it'\\''s'")"));
}

// Before anything is measured.
TEST_F(CalibrationOption, OfMeasureIsRefused) {
  const auto expect_refusal = [&](const std::string& arguments, int code, const std::string& text) {
    const test::Outcome done = measure(arguments);
    EXPECT_EQ(done.code, code) << arguments;
    EXPECT_EQ(done.out, "");
    EXPECT_THAT(done.err, HasSubstr(text));
  };
  expect_refusal("--to nf4 --calibration ''", 2, "--calibration needs a value: DIR (see nibble measure --help)");
  expect_refusal("--to nf4 --calibration stats", 3, "stats: ");
  maker.write(root);
  expect_refusal("--calibration stats", 2, "nothing to measure");
  maker.manifest["weights"] = {{"other.weight", {"layers.0.q_proj"}}};
  maker.write(root);
  expect_refusal("--to nf4 --calibration stats", 3, "lists no tensor of 'in.safetensors': is it of another model?");
}

}  // namespace
}  // namespace nibble::calibration_option_test
