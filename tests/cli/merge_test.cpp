#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::merge_command_test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

constexpr const char* layer = "model.layers.0.mlp.up_proj";

class MergeCommand : public testing::Test {
 protected:
  MergeCommand() {
    test::WeightsFile base, adapter;
    base.add(std::string(layer) + ".weight", DType::f32, {64, 64}, test::normal_weights(64 * 64, 1));
    root.write("base.safetensors", base.bytes());
    adapter.add(std::string(layer) + ".lora_A.weight", DType::f32, {2, 64}, test::normal_weights(2 * 64, 2));
    adapter.add(std::string(layer) + ".lora_B.weight", DType::f32, {64, 2}, test::normal_weights(2 * 64, 3));
    root.write("adapter/adapter_model.safetensors", adapter.bytes());
    root.write("adapter/adapter_config.json", R"({"peft_type":"LORA","r":2})");
  }
  [[nodiscard]] test::Outcome merge(const std::string& rest) const {
    return test::run_program(root.path(), "merge base.safetensors adapter " + rest);
  }
  test::TempDir root;
};

TEST_F(MergeCommand, SaysWhatIsLeftOfEachUpdate) {
  const test::Outcome done = merge("out.safetensors --to nf4");
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, ContainsRegex("what is left of each update after quantization, measured in [0-9.]+ s:\n"
                                      "tensor                                 norm     cosine\n"
                                      "model.layers.0.mlp.up_proj.weight  "));
  const test::Outcome told = merge("other.safetensors --to nf4 --json --progress json");
  const auto json = nlohmann::json::parse(told.out);
  EXPECT_GT(json["updates_seconds"], 0);
  // The end of the conversion, and that of the measurement.
  EXPECT_THAT(told.err, ContainsRegex("\"done_bytes\":16384,.*\n.*\"done_bytes\":16384,"));
  ASSERT_EQ(json["updates"].size(), 1u);
  EXPECT_EQ(json["updates"][0]["tensor"], std::string(layer) + ".weight");
  EXPECT_GT(json["updates"][0]["cosine"], 0.9);
  EXPECT_EQ(nlohmann::json::parse(merge("plain.safetensors --to bf16 --json").out)["updates"].size(), 0u);
}

TEST_F(MergeCommand, TakesTheOptionsOfConvert) {
  EXPECT_EQ(merge("out.safetensors --to nf4 --skip '.*' --dry-run").code, 0);
  EXPECT_EQ(merge("out.safetensors --to bf16 --block-size 32").code, 2);
  EXPECT_THAT(merge("out.safetensors").err, HasSubstr("--to is required"));
}

// The sums are rounded to fp32.
TEST_F(MergeCommand, MergedWeightsAreNotUnchanged) {
  EXPECT_THAT(merge("out.safetensors --to fp32").out, HasSubstr("\nno weight was rounded after merging in fp32\n"));
  const test::Outcome json = merge("other.safetensors --to fp32 --json");
  EXPECT_FALSE(nlohmann::json::parse(json.out).contains("exact"));
}

TEST_F(MergeCommand, TheManifestTellsTheAdapter) {
  EXPECT_EQ(merge("out.safetensors --to nf4").code, 0);
  const auto manifest =
      nlohmann::json::parse(test::read_file(root.path() / "out.safetensors.nibble.json")).at("adapter");
  EXPECT_EQ(manifest.at("tensors"), 1);
  EXPECT_EQ(manifest.at("r"), 2);
  EXPECT_EQ(manifest.at("files")[1].at("name"), "adapter_model.safetensors");
  EXPECT_EQ(test::read_file(root.path() / "out.safetensors.nibble.json").find(root.path().string()), std::string::npos);
}

// Such weights are the model's own: --nonfinite decides about them wherever they come from.
TEST_F(MergeCommand, NanInAReplacedTensorIsThatOfTheBase) {
  const std::string weight = std::string(layer) + ".weight";
  std::vector<float> broken = test::normal_weights(64 * 64, 1);
  broken[70] = NAN;
  test::WeightsFile base, replaced;
  base.add(weight, DType::f32, {64, 64}, broken);
  root.write("broken.safetensors", base.bytes());
  replaced.add(weight, DType::f32, {64, 64}, broken);
  root.write("adapter/adapter_model.safetensors", replaced.bytes());
  for (const std::string options :
       {"--to nf4", "--to bf16", "--to fp32", "--to nf4 --nonfinite quantize", "--to nf4 --nonfinite error",
        "--to bf16 --nonfinite error", "--to fp32 --nonfinite error"}) {
    const test::Outcome of_base =
        test::run_program(root.path(), "convert broken.safetensors a.safetensors --overwrite " + options);
    const test::Outcome of_adapter = merge("b.safetensors --overwrite " + options);
    EXPECT_EQ(of_adapter.code, of_base.code) << options;
    const auto fact = [](const std::string& line) { return line.substr(std::min(line.find("tensor '"), line.size())); };
    EXPECT_EQ(fact(of_adapter.err), fact(of_base.err)) << options;
    EXPECT_EQ(of_base.code, options.ends_with("error") ? 3 : 0) << options << of_base.err;
    EXPECT_THAT(of_base.err, HasSubstr("1 NaN")) << options;
    if (of_base.code == 0) {
      EXPECT_EQ(test::read_file(root.path() / "a.safetensors"), test::read_file(root.path() / "b.safetensors"))
          << options;
    }
  }
}

TEST_F(MergeCommand, AnAdapterBesideTheBaseStaysBehind) {
  root.write("base/model.safetensors", test::read_file(root.path() / "base.safetensors"));
  root.write("base/adapter_config.json", test::read_file(root.path() / "adapter/adapter_config.json"));
  const test::Outcome done = test::run_program(root.path(), "merge base adapter out --to bf16");
  EXPECT_EQ(done.code, 0);
  EXPECT_THAT(done.err, HasSubstr("warning: an adapter beside the model is not carried over: adapter_config.json\n"));
  EXPECT_FALSE(std::filesystem::exists(root.path() / "out/adapter_config.json"));
}

TEST_F(MergeCommand, NothingIsWrittenOverTheAdapter) {
  root.write("both/model.safetensors", test::read_file(root.path() / "base.safetensors"));
  root.write("both/adapter_config.json", test::read_file(root.path() / "adapter/adapter_config.json"));
  root.write("both/adapter_model.safetensors", test::read_file(root.path() / "adapter/adapter_model.safetensors"));
  root.write("base/model.safetensors", test::read_file(root.path() / "base.safetensors"));
  const test::Outcome done = test::run_program(root.path(), "merge base both ./both/ --to bf16 --overwrite");
  EXPECT_EQ(done.code, 2);
  EXPECT_EQ(done.err, "error: ./both/: the output is the adapter 'both'\n");
  const test::Outcome file = merge("adapter/adapter_model.safetensors --to bf16 --overwrite");
  EXPECT_EQ(file.code, 2);
  EXPECT_EQ(file.err, "error: adapter/adapter_model.safetensors: the output is a file of the adapter 'adapter'\n");
}

TEST_F(MergeCommand, AnAdapterIsNoModelAndAModelNoAdapter) {
  EXPECT_EQ(test::run_program(root.path(), "merge adapter adapter out --to bf16").err,
            "error: adapter: is an adapter, not a model: it has to be merged into its base model first; `nibble merge` "
            "does that\n");
  const test::Outcome swapped = test::run_program(root.path(), "merge adapter base.safetensors out --to bf16");
  EXPECT_EQ(swapped.code, 3);
  EXPECT_THAT(swapped.err, HasSubstr("error: base.safetensors: "));
}

}  // namespace
}  // namespace nibble::merge_command_test
