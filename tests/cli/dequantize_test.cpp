// nibble dequantize as its users meet it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::cli::dequantize_test {
namespace {

namespace fs = std::filesystem;
using test::Outcome;
using testing::HasSubstr;
using testing::Not;

class DequantizeCommand : public testing::Test {
 protected:
  DequantizeCommand() {
    test::WeightsFile file;
    for (const char* const layer : {"0", "1"})
      file.add("model.layers." + std::string(layer) + ".mlp.up_proj.weight", DType::bf16, {64, 64},
               test::normal_weights(64 * 64, 1));
    fs::create_directory(root_.path() / "m");
    root_.write("m/model.safetensors", file.bytes());
    root_.write("m/config.json", R"({"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": false})");
    root_.write("m/tokenizer.json", "tokens");
    EXPECT_EQ(run("convert m nf4 --to nf4").code, 0);
  }

  Outcome run(const std::string& arguments) const { return test::run_program(root_.path(), arguments); }
  std::string read(const char* name) const { return test::read_file(root_.path() / name); }

  test::TempDir root_;
};

TEST_F(DequantizeCommand, WritesAPlainModel) {
  const Outcome outcome = run("dequantize nf4 out --to bf16");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("2 tensors: 2 bf16\n"));
  EXPECT_THAT(outcome.out, HasSubstr("load: transformers.LlamaForCausalLM.from_pretrained(\"out\")"));
  EXPECT_EQ(read("out/config.json"),
            R"({"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": false, "dtype": "bfloat16", )"
            R"("torch_dtype": "bfloat16"})");
  EXPECT_EQ(read("out/tokenizer.json"), "tokens");
  EXPECT_EQ(run("convert out again --to nf4").code, 0);
  EXPECT_EQ(run("measure out again").code, 0);
}

// All that holds for conversions: the bytes, the output that is there, what is asked without writing.
TEST_F(DequantizeCommand, IsAConversion) {
  ASSERT_EQ(run("dequantize nf4 out --to fp32 --max-shard-size 20kB --threads 1").code, 0);
  EXPECT_TRUE(fs::exists(root_.path() / "out/model-00002-of-00002.safetensors"));
  EXPECT_THAT(read("out/model.safetensors.index.json"), HasSubstr("\"total_parameters\": 8192"));
  const std::string before = read("out/model-00001-of-00002.safetensors");
  EXPECT_EQ(run("dequantize nf4 out --to bf16").code, 6);
  EXPECT_EQ(run("dequantize nf4 nf4 --to bf16 --overwrite").code, 2);
  EXPECT_EQ(run("dequantize nf4 other --to bf16 --max-memory 1MB").code, 5);
  EXPECT_EQ(read("out/model-00001-of-00002.safetensors"), before);
  ASSERT_EQ(run("dequantize nf4 out --to fp32 --max-shard-size 20kB --threads 3 --max-memory 40MB --overwrite").code,
            0);
  EXPECT_EQ(read("out/model-00001-of-00002.safetensors"), before);
  const auto plan = nlohmann::json::parse(run("dequantize nf4 dry --to fp16 --dry-run --json").out);
  EXPECT_EQ(plan.at("tensors").at(0).at("codec"), "fp16");
  EXPECT_FALSE(fs::exists(root_.path() / "dry"));
  const auto report = nlohmann::json::parse(run("dequantize nf4 exact --to fp32 --json").out);
  EXPECT_EQ(report.at("exact"), true);
}

TEST_F(DequantizeCommand, FilesBecomeFiles) {
  fs::copy_file(root_.path() / "nf4/model.safetensors", root_.path() / "alone.safetensors");
  ASSERT_EQ(run("dequantize alone.safetensors out.safetensors --to fp32").code, 0);
  ASSERT_EQ(run("dequantize nf4 out --to fp32").code, 0);
  EXPECT_EQ(read("out.safetensors"), read("out/model.safetensors"));
  EXPECT_TRUE(fs::exists(root_.path() / "out.safetensors.nibble.json"));
}

TEST_F(DequantizeCommand, ErrorsAreOneLine) {
  const auto error_of = [this](const std::string& arguments, int code) {
    const Outcome outcome = run("dequantize " + arguments);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    return outcome.err;
  };
  EXPECT_EQ(error_of("m out --to bf16", 3), "error: m: has no quantized tensor: there is nothing to dequantize\n");
  EXPECT_EQ(error_of("nf4 out --to bfloat16", 2),
            "error: --to: 'bfloat16' is not one of fp32, fp16, bf16: did you mean bf16?\n");
  EXPECT_THAT(error_of("nf4 out --to nf4", 2), HasSubstr("'nf4' is not one of fp32, fp16, bf16"));
  EXPECT_THAT(error_of("nf4 out", 2), HasSubstr("--to"));
  EXPECT_THAT(error_of("nf4/model.safetensors out.safetensors --to bf16", 3), HasSubstr("opens the directory nf4\n"));
  fs::copy_file(root_.path() / "nf4/model.safetensors", root_.path() / "alone.safetensors");
  EXPECT_THAT(error_of("alone.safetensors o.safetensors --to bf16 --keep-shards", 2),
              HasSubstr("--keep-shards has no effect on 'alone.safetensors'"));
  EXPECT_FALSE(fs::exists(root_.path() / "out"));
}

}  // namespace
}  // namespace nibble::cli::dequantize_test
