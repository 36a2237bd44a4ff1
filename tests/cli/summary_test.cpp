// What nibble convert says of a plan and of what it has made.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fmt/format.h>
#include <bit>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"

namespace nibble::cli::summary_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

// Tensors of F32 with weights that look random.
std::string file_of(const std::vector<std::pair<std::string, std::vector<std::uint64_t>>>& tensors) {
  nlohmann::ordered_json header;
  std::string data;
  std::uint32_t state = 1;
  for (const auto& [name, shape] : tensors) {
    const std::size_t begin = data.size();
    std::uint64_t elements = 1;
    for (const std::uint64_t size : shape) elements *= size;
    for (std::uint64_t i = 0; i < elements; ++i) {
      state = state * 1664525U + 1013904223U;
      const float weight = static_cast<float>(state >> 8U) / 16777216.0f - 0.5f;
      data.append(reinterpret_cast<const char*>(&weight), sizeof(weight));
    }
    header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  return test::safetensors_file(header.dump(), data);
}

class Summary : public testing::Test {
 protected:
  // A model whose embeddings are half of its bytes.
  Summary() {
    std::vector<std::pair<std::string, std::vector<std::uint64_t>>> tensors{{"model.embed_tokens.weight", {512, 64}}};
    for (const int layer : {0, 1, 2, 3}) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      tensors.push_back({prefix + "mlp.up_proj.weight", {64, 64}});
      tensors.push_back({prefix + "mlp.down_proj.weight", {64, 64}});
      tensors.push_back({prefix + "input_layernorm.weight", {64}});
    }
    root_.write("m/model.safetensors", file_of(tensors));
    root_.write("m/config.json", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",)"
                                 R"("tie_word_embeddings":true})");
    root_.write("w.safetensors", file_of({{"a.weight", {4, 64}}, {"b.weight", {64}}}));
  }

  test::Outcome run(const std::string& arguments) const {
    test::Outcome outcome = test::run_program(root_.path(), arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome;
  }

  test::TempDir root_;
};

TEST_F(Summary, SaysWhatWasMadeWhatItCostAndHowItLoads) {
  EXPECT_THAT(
      run("convert m out --to nf4").out,
      MatchesRegex("out: 263\\.17 kB \\(257\\.00 KiB\\) -> [0-9.]+ kB \\([0-9.]+ KiB\\), [0-9.]+ bits per weight, "
                   "in [0-9.]+ s \\([0-9.]+ [kMG]B/s\\) on the CPU\n"
                   "13 tensors: 5 keep, 8 nf4; 50\\.2 % of the bytes are kept as they are\n"
                   "SQNR of the quantized weights: [0-9.]+ dB; worst tensor: [0-9.]+ dB, "
                   "model\\.layers\\.[0-3]\\.mlp\\.(up|down)_proj\\.weight\n"
                   "load: transformers\\.LlamaForCausalLM\\.from_pretrained\\(\"out\"\\)\n"));
}

// The figures are those of the manifest.
TEST_F(Summary, TheWorstTensorIsTheWorst) {
  const std::string out = run("convert m out --to nf4").out;
  const auto manifest = nlohmann::json::parse(test::read_file(root_.path() / "out/nibble.json"));
  double worst = 1e9;
  std::string name;
  for (const auto& tensor : manifest.at("tensors"))
    if (tensor.contains("error") && tensor.at("error").at("sqnr_db") < worst) {
      worst = tensor.at("error").at("sqnr_db");
      name = tensor.at("name");
    }
  char text[128];
  (void)std::snprintf(text, sizeof(text), "worst tensor: %.2f dB, %s\n", worst, name.c_str());
  EXPECT_THAT(out, HasSubstr(text));
}

// Programs are told what people are told.
TEST_F(Summary, JsonHasWhatTheSummarySays) {
  const auto json = [&](const std::string& arguments) {
    return nlohmann::json::parse(run("convert " + arguments + " --json").out);
  };
  const auto told = json("m out --to nf4");
  const std::string text = run("convert m text --to nf4").out;
  char expected[160];
  (void)std::snprintf(expected, sizeof(expected), ": %.2f dB; worst tensor: %.2f dB, %s\n",
                      told.at("sqnr_db").get<double>(), told.at("worst_tensor").at("sqnr_db").get<double>(),
                      told.at("worst_tensor").at("name").get<std::string>().c_str());
  EXPECT_THAT(text, HasSubstr(expected));
  (void)std::snprintf(expected, sizeof(expected), "; %.1f %% of the bytes are kept",
                      100 * told.at("kept_share").get<double>());
  EXPECT_THAT(text, HasSubstr(expected));
  EXPECT_EQ(told.at("load"), "transformers.LlamaForCausalLM.from_pretrained(\"out\")");
  EXPECT_EQ(told.at("exact"), false);
  const auto exact = json("w.safetensors e.safetensors --to fp32 --tensor 'a.*=fp32'");
  EXPECT_EQ(exact.at("kept_share"), 0);
  EXPECT_TRUE(exact.at("worst_tensor").is_null());
  const auto unknown = json("w.safetensors u.safetensors --to nf4 --error-report none");
  EXPECT_TRUE(unknown.at("sqnr_db").is_null());
  EXPECT_EQ(unknown.at("exact"), false);
  EXPECT_EQ(json("m dry --to nf4 --dry-run").at("kept_share"), told.at("kept_share"));
}

// One figure everywhere, and embeddings that were cast have no part in it.
TEST_F(Summary, TheFigureIsThatOfTheQuantizedWeights) {
  for (const std::string more : {"", " --embeddings bf16"}) {
    const std::string out = run("convert m out --overwrite --to nf4" + more).out;
    const auto manifest = nlohmann::json::parse(test::read_file(root_.path() / "out/nibble.json"));
    const auto measured = nlohmann::json::parse(run("measure m out --json").out).at("tests").at(0);
    const double figure = measured.at("quantized").at("sqnr_db");
    EXPECT_NEAR(figure, 21, 2);
    EXPECT_EQ(measured.at("headline"), "quantized");
    EXPECT_NEAR(manifest.at("quantized").at("error").at("sqnr_db"), figure, 1e-5);
    const std::string text = fmt::format("{:.2f}", figure);
    EXPECT_THAT(out, HasSubstr("SQNR of the quantized weights: " + text + " dB"));
    EXPECT_THAT(run("measure m out").out, HasSubstr(" " + text + " "));
    EXPECT_EQ(out.find(", of the cast weights: 5") != std::string::npos, !more.empty()) << out;
    EXPECT_EQ(manifest.at("cast").at("tensors"), more.empty() ? 0 : 1);
    EXPECT_EQ(manifest.at("quantized").at("tensors"), 8);
  }
  EXPECT_THAT(run("convert m half --to bf16").out, HasSubstr("SQNR of the cast weights: 5"));
}

// A cast to the type that all weights have.
TEST_F(Summary, WhatStaysAsItWasIsSaidToBeExact) {
  const test::Outcome outcome = run("convert w.safetensors same.safetensors --to fp32");
  EXPECT_THAT(outcome.out, HasSubstr("every weight is unchanged\n"));
  EXPECT_THAT(outcome.err,
              HasSubstr("warning: nothing is cast: every F64, F32, BF16 and F16 tensor is fp32 already\n"));
  EXPECT_EQ(nlohmann::json::parse(run("convert w.safetensors again.safetensors --to fp32 --json").out).at("exact"),
            true);
}

// fp32 rounds fp64, and says so.
TEST_F(Summary, Fp64IsNotExactInFp32) {
  const double values[2] = {1.001, 2};
  root_.write("d.safetensors",
              test::safetensors_file(R"({"w":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})",
                                     std::string(reinterpret_cast<const char*>(values), sizeof(values))));
  EXPECT_THAT(run("convert d.safetensors f.safetensors --to fp32").out, HasSubstr("SQNR of the cast weights: 15"));
  const std::string measured = run("measure d.safetensors f.safetensors").out;
  EXPECT_THAT(measured, HasSubstr("float32: 1 tensor at 15"));
  EXPECT_THAT(measured, testing::Not(HasSubstr("exact")));
}

TEST_F(Summary, WithoutAnErrorReportThereIsNoFigure) {
  EXPECT_THAT(run("convert m out --to nf4 --error-report none").out, Not(HasSubstr("SQNR")));
  EXPECT_THAT(run("convert m exact --to fp32").out, Not(HasSubstr("worst")));
}

TEST_F(Summary, FilesAndOtherModelsLoadOtherwise) {
  EXPECT_THAT(run("convert w.safetensors a.safetensors --to bf16").out,
              HasSubstr("\nload: safetensors.torch.load_file(\"a.safetensors\")\n"));
  EXPECT_THAT(run("convert w.safetensors b.safetensors --to nf4").out,
              HasSubstr("load_file(\"b.safetensors\"), the tensors that bitsandbytes writes; convert a directory"));
  EXPECT_THAT(run("convert w.safetensors f.safetensors --to fp8").out,
              HasSubstr("load_file(\"f.safetensors\"), the tensors that compressed-tensors writes"));
  EXPECT_THAT(run("convert m c --to nf4 --embeddings int8 --allow-nibble-only").out,
              HasSubstr("\nload: only nibble can read it"));
  root_.write("m/config.json", R"({"model_type":"new"})");
  EXPECT_THAT(run("convert m d --to nf4").out, HasSubstr("\nload: transformers.AutoModel.from_pretrained(\"d\")\n"));
  root_.write("m/config.json", "{}");
  EXPECT_THAT(run("convert m e --to nf4").out, HasSubstr("\nload: from_pretrained(\"e\") of the model's class\n"));
}

TEST_F(Summary, LargeEmbeddingsAreWorthAnOption) {
  EXPECT_THAT(run("convert m out --to nf4").err,
              HasSubstr("49.8 % of the weights' bytes are quantized; 49.8 % are fp32 embeddings; --embeddings "
                        "bf16 halves them\n"));
  EXPECT_EQ(run("convert m half --to nf4 --embeddings bf16").err.find("halves them"), std::string::npos);
}

TEST_F(Summary, PlansShowLayersThatAreAlikeAsOneLine) {
  const std::string out = run("convert m out --to nf4 --dry-run").out;
  EXPECT_THAT(out, HasSubstr("\nmodel.layers.{0..3}.mlp.up_proj.weight      F32              64 x 64  nf4"));
  EXPECT_THAT(out, HasSubstr("4 x 3.37 kB  linear layer\n"));
  EXPECT_THAT(out, HasSubstr("\n13 tensors: 5 keep, 8 nf4; 50.2 % of the bytes are kept as they are\n"));
  EXPECT_THAT(run("convert m out --to nf4 --dry-run --skip '.*\\.2\\.mlp\\.up.*'").out,
              testing::AllOf(HasSubstr("\nmodel.layers.{0,1,3}.mlp.up_proj.weight "),
                             HasSubstr("\nmodel.layers.2.mlp.up_proj.weight ")));
  const auto json = nlohmann::json::parse(run("convert m out --to nf4 --dry-run --json").out);
  EXPECT_EQ(json.at("tensors").size(), 13U);  // each of them
}

TEST_F(Summary, WeightsThatStayBehindAreNamed) {
  root_.write("m/pytorch_model.bin", "x");
  root_.write("m/old.pt", "x");
  root_.write("m/model.gguf", "x");
  root_.write("m/onnx/model.onnx", "x");
  root_.write("m/tokenizer.json", "{}");
  EXPECT_THAT(run("convert m out --to nf4").err,
              HasSubstr("warning: weights that were not converted are not carried over: model.gguf, old.pt, "
                        "onnx/model.onnx, pytorch_model.bin\n"));
  EXPECT_TRUE(fs::exists(root_.path() / "out/tokenizer.json"));
  EXPECT_FALSE(fs::exists(root_.path() / "out/onnx"));
}

TEST_F(Summary, PipesThatStayBehindAreNamed) {
  ASSERT_EQ(mkfifo((root_.path() / "m/pipe").c_str(), 0600), 0);
  EXPECT_THAT(run("convert m out --to nf4").err,
              HasSubstr("warning: pipes, sockets and devices are not carried over: pipe\n"));
  EXPECT_FALSE(fs::exists(root_.path() / "out/pipe"));
}

// 1e300 would become infinite in fp32: such a tensor stays F64, and is not said to be beyond fp16.
TEST_F(Summary, WhatFp32CannotHoldStaysF64) {
  const auto write = [&](const char* value_in, double value) {
    std::vector<double> weights(4 * 64, 0.5);
    weights[7] = value;
    std::string data(weights.size() * sizeof(double), '\0');
    std::memcpy(data.data(), weights.data(), data.size());
    const std::string header =
        std::string("{\"") + value_in + R"(":{"dtype":"F64","shape":[4,64],"data_offsets":[0,2048]}})";
    root_.write("f64.safetensors", test::safetensors_file(header, data));
  };
  for (const char* const to : {"nf4", "int8"}) {
    write("up.weight", 1e300);
    const test::Outcome outcome = run(std::string("convert f64.safetensors out.safetensors --overwrite --to ") + to);
    EXPECT_THAT(outcome.err, HasSubstr("warning: tensor 'up.weight' is kept as F64: 1 beyond fp32\n")) << to;
    EXPECT_THAT(run("inspect out.safetensors").out, HasSubstr("up.weight  F64 ")) << to;
    const auto measured = nlohmann::json::parse(run(std::string("measure f64.safetensors --json --to ") + to).out);
    EXPECT_THAT(measured.dump(), HasSubstr("float64")) << to;
  }
  write("up.weight", 7e4);
  EXPECT_THAT(run("convert f64.safetensors out.safetensors --overwrite --to int8").err,
              HasSubstr("warning: tensor 'up.weight' is kept as F32: 1 beyond fp16\n"));
  // One that is no linear layer, and was to be cast.
  write("norm.weight", 1e300);
  EXPECT_THAT(run("convert f64.safetensors out.safetensors --overwrite --to nf4").err,
              HasSubstr("warning: tensor 'norm.weight' is kept as F64: 1 beyond fp32\n"));
  // Who asks for fp32 gets it.
  test::Outcome outcome = run("convert f64.safetensors out.safetensors --overwrite --to fp32");
  EXPECT_THAT(outcome.err, HasSubstr("warning: tensor 'norm.weight': 1 beyond fp32, stored as infinity\n"));
  EXPECT_THAT(outcome.out, HasSubstr("\nNaN: 0, infinite: 0, beyond the stored type: 1; see the warnings\n"));
  EXPECT_THAT(run("measure f64.safetensors out.safetensors").out, HasSubstr("BROKEN"));
  outcome = run("convert f64.safetensors out.safetensors --overwrite --to fp32 --on-overflow clamp");
  EXPECT_THAT(outcome.err, HasSubstr("warning: tensor 'norm.weight': 1 beyond fp32, stored as the largest fp32\n"));
  for (const char* const to : {"fp32 --on-overflow error", "bf16 --on-overflow error", "fp32 --nonfinite error",
                               "fp16 --nonfinite error --on-overflow keep", "nf4 --nonfinite error"}) {
    outcome = test::run_program(root_.path(), std::string("convert f64.safetensors none.safetensors --to ") + to);
    EXPECT_EQ(outcome.code, 3) << to;
    EXPECT_THAT(outcome.err, HasSubstr("tensor 'norm.weight': 1 of 256 weights exceed ")) << to;
    EXPECT_FALSE(fs::exists(root_.path() / "none.safetensors")) << to;
  }
}

// Beside what is quantized F64 is cast, and then --on-overflow says what becomes of it.
TEST_F(Summary, CastsBesideWhatIsQuantizedMayBeClamped) {
  std::string data(2 * 1024 + 8, '\x3c');
  const double value = 1e300;
  std::memcpy(data.data() + 2 * 1024, &value, sizeof(value));
  root_.write("two.safetensors",
              test::safetensors_file(R"({"a.up_proj.weight":{"dtype":"F32","shape":[8,64],"data_offsets":[0,2048]},)"
                                     R"("a.bias":{"dtype":"F64","shape":[1],"data_offsets":[2048,2056]}})",
                                     data));
  const auto with = [&](const std::string& policy) {
    return test::run_program(root_.path(), "convert two.safetensors out.safetensors --overwrite --to nf4" + policy);
  };
  EXPECT_THAT(with("").err, HasSubstr("warning: tensor 'a.bias' is kept as F64: 1 beyond fp32\n"));
  EXPECT_THAT(with(" --on-overflow keep").err, HasSubstr("warning: tensor 'a.bias' is kept as F64: 1 beyond fp32\n"));
  EXPECT_THAT(with(" --on-overflow clamp").err,
              HasSubstr("warning: tensor 'a.bias': 1 beyond fp32, stored as the largest fp32\n"));
  const test::Outcome stopped = with(" --on-overflow error");
  EXPECT_EQ(stopped.code, 3);
  EXPECT_THAT(stopped.err, HasSubstr("tensor 'a.bias': 1 of 1 weights exceed 3.40e38, the largest fp32"));
}

// Nothing to quantize is no error, but nobody asks for it.
TEST_F(Summary, ThatNothingIsQuantizedIsSaid) {
  root_.write("empty.safetensors", test::safetensors_file("{}", ""));
  EXPECT_THAT(run("convert empty.safetensors out.safetensors --to nf4").err,
              HasSubstr("warning: nothing is quantized: the input has no tensors\n"));
  EXPECT_THAT(run("convert m none --to nf4 --skip '.*'").err, HasSubstr("warning: nothing is quantized: "));
  EXPECT_EQ(run("convert m some --to nf4").err.find("nothing is"), std::string::npos);
}

}  // namespace
}  // namespace nibble::cli::summary_test
