// nibble convert --compensate, by the program itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/quant/quantizers/compensation/reference.hpp"
#include "tests/support/calibration.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::compensate_option_test {
namespace {

using testing::HasSubstr;

class CompensateOption : public testing::Test {
 protected:
  CompensateOption() {
    test::WeightsFile model;
    for (const char* const name : {"q_proj", "k_proj"})
      model.add("layers.0." + std::string(name) + ".weight", DType::f32, {96, k}, test::normal_weights(96 * k, 1));
    root.write("in.safetensors", model.bytes());
    const test::Numbers moment = test::second_moment(k, k, 1);
    std::vector<float> squares(k);
    for (std::size_t i = 0; i < k; ++i) squares[i] = static_cast<float>(moment[i * k + i]);
    maker.add("layers.0.q_proj", squares, {moment.begin(), moment.end()});
    maker.manifest["weights"]["layers.0.k_proj.weight"] = {"layers.0.q_proj"};
  }
  [[nodiscard]] test::Outcome convert(const std::string& rest) const {
    return test::run_program(root.path(), "convert in.safetensors out.safetensors " + rest);
  }
  [[nodiscard]] std::string bytes_of(const std::string& options) const {
    const test::Outcome done = convert("--overwrite " + options);
    EXPECT_EQ(done.code, 0) << done.err;
    return test::read_file(root.path() / "out.safetensors");
  }
  void expect_refusal(const std::string& options, int code, const std::string& text) const {
    const test::Outcome done = convert(options);
    EXPECT_EQ(done.code, code) << options;
    EXPECT_EQ(done.err, "error: " + text + "\n") << options;
    EXPECT_FALSE(std::filesystem::exists(root.path() / "out.safetensors"));
  }

  static constexpr std::size_t k = 128;
  test::TempDir root;
  test::StatisticsMaker maker;
};

TEST_F(CompensateOption, CompensatesAndSaysSo) {
  maker.write(root);
  for (const std::string to : {"nf4", "fp4 --absmax search", "int8"}) {
    const std::string bytes = bytes_of("--to " + to + " --calibration stats --compensate --threads 1");
    const auto manifest = nlohmann::json::parse(test::read_file(root.path() / "out.safetensors.nibble.json"));
    EXPECT_EQ(manifest.at("recipe").at("compensate"), true);
    for (const auto& tensor : manifest.at("tensors")) EXPECT_TRUE(tensor.contains("compensation"));
    EXPECT_NE(bytes, bytes_of("--to " + to)) << to;
    EXPECT_EQ(bytes, bytes_of("--to " + to + " --compensate --calibration stats --threads 2 --max-memory 40MB")) << to;
    EXPECT_EQ(test::run_program(root.path(), "measure in.safetensors out.safetensors").code, 0);
    EXPECT_EQ(test::run_program(root.path(), "inspect out.safetensors").code, 0);
  }
}

// Compensation takes the second moments alone.
TEST_F(CompensateOption, DoesNotReadMeanSquares) {
  maker.write(root);
  for (const std::string to : {"nf4", "fp4 --absmax search"}) {
    const std::string options = "--to " + to + " --calibration stats --compensate", bytes = bytes_of(options);
    const auto manifest = nlohmann::json::parse(test::read_file(root.path() / "out.safetensors.nibble.json"));
    EXPECT_EQ(manifest.at("calibration").at("tensors"), 2);
    EXPECT_FALSE(manifest.at("calibration").contains("mean_squares_xxh3_128"));
    test::StatisticsMaker damaged;
    const test::Numbers moment = test::second_moment(k, k, 1);
    damaged.add("layers.0.q_proj", std::vector<float>(k, NAN), {moment.begin(), moment.end()});
    damaged.manifest = maker.manifest;
    damaged.write(root);
    EXPECT_EQ(bytes_of(options), bytes) << to;
    const test::Outcome searched = convert("--overwrite --to nf4 --absmax search --calibration stats");
    EXPECT_EQ(searched.code, 3);
    EXPECT_THAT(searched.err, HasSubstr("tensor 'layers.0.q_proj.mean_square': value 0 is nan"));
    maker.write(root);
  }
}

TEST_F(CompensateOption, NeedsStatistics) {
  expect_refusal(
      "--to nf4 --compensate", 2,
      "--compensate needs --calibration DIR, where DIR is what `python -m nibble.calibrate MODEL --text FILE "
      "--out DIR --second-moments` writes");
  maker.manifest["second_moments"] = false;
  maker.write(root);
  expect_refusal("--to nf4 --compensate --calibration stats", 3,
                 "stats/calibration.json: has no second moments, which compensation needs: nibble.calibrate writes "
                 "them when told to");
}

TEST_F(CompensateOption, IsRefusedWhereNothingIsCompensated) {
  maker.write(root);
  expect_refusal("--to bf16 --compensate --calibration stats", 2,
                 "--compensate cannot be combined with --to bf16: only int8, nf4 and fp4 have it");
  expect_refusal("--to nf4 --block-size 256 --compensate --calibration stats", 2,
                 "compensation has no effect: 2 of 2 tensors are not compensated, because their rows are not whole "
                 "blocks: 'layers.0.q_proj.weight', ...");
}

// Before anything is written, and with a limit that is enough.
TEST_F(CompensateOption, SaysHowMuchMemoryItNeeds) {
  maker.write(root);
  const std::string compensated = "--to nf4 --compensate --calibration stats --threads 1 --max-memory ";
  for (const char* const how : {" --dry-run", ""}) {
    const test::Outcome refused = convert(compensated + "14800000" + how);
    EXPECT_EQ(refused.code, 5) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("the limit is 14.80 MB"));
    EXPECT_FALSE(std::filesystem::exists(root.path() / "out.safetensors"));
    const std::string remedy = "raise --max-memory to ";
    const std::size_t at = refused.err.find(remedy);
    ASSERT_NE(at, std::string::npos) << refused.err;
    const std::string enough =
        refused.err.substr(at + remedy.size(), refused.err.find(" or more", at) - at - remedy.size());
    const test::Outcome done = convert(compensated + enough + how);
    EXPECT_EQ(done.code, 0) << enough << ": " << done.err;
  }
}

TEST_F(CompensateOption, TellsOfTensorsThatAreNot) {
  maker.manifest["weights"].erase("layers.0.k_proj.weight");
  maker.write(root);
  for (const char* const how : {"--dry-run", ""}) {
    const test::Outcome done = convert("--to nf4 --compensate --calibration stats " + std::string(how));
    EXPECT_EQ(done.code, 0) << done.err;
    EXPECT_THAT(done.err, HasSubstr("warning: 1 of 2 tensors are not compensated, because they have no statistics: "
                                    "'layers.0.k_proj.weight'"));
  }
}

}  // namespace
}  // namespace nibble::compensate_option_test
