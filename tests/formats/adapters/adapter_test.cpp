#include "formats/adapters/adapter.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/adapter.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::adapter_test {
namespace {

using test::AdapterMaker;
using test::error_of;
using testing::EndsWith;
using testing::HasSubstr;

std::string refusal(AdapterMaker& maker) {
  return error_of([&] { (void)maker.make(); });
}

std::string weights_of(const std::vector<std::string>& names) {
  test::WeightsFile file;
  for (const std::string& name : names) file.add(name, DType::f32, {2, 2}, {1, 2, 3, 4});
  return file.bytes();
}

constexpr std::string_view lora = R"({"peft_type":"LORA","r":2})";

class AdapterFiles : public testing::Test {
 protected:
  std::string refusal() {
    return error_of([&] { (void)Adapter(dir.path()); });
  }
  test::TempDir dir;
};

TEST_F(AdapterFiles, ASingleFile) {
  dir.write("adapter_config.json", lora);
  dir.write("adapter_model.safetensors",
            weights_of({"base_model.model.q.lora_A.weight", "base_model.model.q.lora_B.weight"}));
  const Adapter adapter(dir.path());
  ASSERT_EQ(adapter.modules().size(), 1u);
  const Adapter::LowRank& q = adapter.modules().at("q").low_rank.at(0);
  EXPECT_EQ(adapter.weights().tensors().name(*q.a), "base_model.model.q.lora_A.weight");
  EXPECT_EQ(adapter.weights().tensors().name(*q.b), "base_model.model.q.lora_B.weight");
  EXPECT_FALSE(q.embedding);
}

TEST_F(AdapterFiles, Shards) {
  dir.write("adapter_config.json", lora);
  dir.write("a.safetensors", weights_of({"q.lora_A.weight"}));
  dir.write("b.safetensors", weights_of({"q.lora_B.weight"}));
  dir.write("adapter_model.safetensors.index.json",
            R"({"weight_map":{"q.lora_A.weight":"a.safetensors","q.lora_B.weight":"b.safetensors"}})");
  EXPECT_EQ(Adapter(dir.path()).modules().count("q"), 1u);
  dir.write("adapter_model.safetensors.index.json", R"({"weight_map":{"q.lora_A.weight":"../a.safetensors"}})");
  EXPECT_THAT(refusal(), HasSubstr("../a.safetensors"));
}

TEST_F(AdapterFiles, WhatIsMissingIsNamed) {
  EXPECT_THAT(refusal(), EndsWith("has no adapter_config.json: it is not an adapter of peft"));
  dir.write("adapter_config.json", lora);
  EXPECT_THAT(refusal(), EndsWith("has no adapter_model.safetensors"));
  dir.write("adapter_model.bin", "x");
  EXPECT_THAT(refusal(), EndsWith("adapter_model.bin: torch files are not supported yet"));
  EXPECT_THAT(error_of([&] { (void)Adapter(dir.path() / "none"); }), HasSubstr("No such file or directory"));
}

// The tree of a config of 4 MB takes more.
TEST_F(AdapterFiles, AConfigTakesNoMoreMemoryThanIsAllowed) {
  dir.write("adapter_config.json",
            std::string(lora).insert(1, R"("target_modules":[)" + std::string(4 << 20, ' ') + "],"));
  dir.write("adapter_model.safetensors", weights_of({"q.lora_A.weight", "q.lora_B.weight"}));
  EXPECT_EQ(Adapter(dir.path()).config_bytes(), lora.size() + (4 << 20) + 20);
  EXPECT_THAT(error_of([&] { (void)Adapter(dir.path(), 100'000'000); }, Errc::no_space),
              HasSubstr("/adapter_config.json: opening it needs at least "));
}

TEST_F(AdapterFiles, ErrorsNameTheFile) {
  dir.write("adapter_config.json", R"({"peft_type":"IA3"})");
  dir.write("adapter_model.safetensors", weights_of({"q.lora_A.weight"}));
  EXPECT_THAT(refusal(), EndsWith("/adapter_config.json: peft_type is IA3: only LORA can be merged"));
  dir.write("adapter_config.json", lora);
  EXPECT_THAT(refusal(), EndsWith("/adapter_model.safetensors: tensor 'q.lora_A.weight': 'q' has no lora_B"));
}

TEST(Adapter, TensorsAreGroupedByModule) {
  const Adapter adapter = AdapterMaker(R"("use_dora":true,"trainable_token_indices":[1])")
                              .add_low_rank("q", 4, 4, 2)
                              .add("q.lora_magnitude_vector", {4})
                              .add("wte.lora_embedding_A", {2, 9})
                              .add("wte.lora_embedding_B", {4, 2})
                              .add("wte.lora_magnitude_vector", {4})
                              .add("wte.base_layer.weight", {9, 4})
                              .add("head.token_adapter.trainable_tokens_delta", {1, 4})
                              .make();
  EXPECT_TRUE(adapter.modules().at("q").low_rank.at(0).magnitude);
  EXPECT_TRUE(adapter.modules().at("wte").low_rank.at(0).embedding);
  EXPECT_TRUE(adapter.modules().at("head").tokens);
  EXPECT_EQ(adapter.replacements().count("wte.weight"), 1u);
}

TEST(Adapter, RefusesIncompleteAndContradictoryTensors) {
  EXPECT_THAT(refusal(AdapterMaker().add("q.lora_B.weight", {4, 2})), EndsWith("'q' has no lora_A"));
  EXPECT_THAT(refusal(AdapterMaker(R"("use_dora":true)").add("q.lora_magnitude_vector", {4})),
              EndsWith("'q' has no lora_A"));
  EXPECT_THAT(refusal(AdapterMaker(R"("lora_bias":true)").add("q.lora_B.bias", {4})), EndsWith("'q' has no lora_A"));
  EXPECT_THAT(refusal(AdapterMaker().add_low_rank("q", 4, 4, 2).add("q.lora_magnitude_vector", {4})),
              EndsWith("is of DoRA, but use_dora is not set in adapter_config.json"));
  EXPECT_THAT(refusal(AdapterMaker(R"("use_dora":true)").add_low_rank("q", 4, 4, 2)),
              EndsWith("use_dora is set, but 'q' has no lora_magnitude_vector"));
  EXPECT_THAT(refusal(AdapterMaker(R"("trainable_token_indices":[1])").add_low_rank("q", 4, 4, 2)),
              EndsWith("has no trainable_tokens_delta, but trainable_token_indices is set in adapter_config.json"));
  EXPECT_EQ(refusal(AdapterMaker(R"("trainable_token_indices":[])").add_low_rank("q", 4, 4, 2)), "");
  EXPECT_THAT(refusal(AdapterMaker().add_low_rank("q", 4, 4, 2).add("q.lora_B.bias", {4})),
              EndsWith("is a bias, but lora_bias is not set in adapter_config.json"));
  EXPECT_THAT(refusal(AdapterMaker(R"("lora_bias":true)").add_low_rank("q", 4, 4, 2)),
              EndsWith("lora_bias is set, but 'q' has no lora_B.bias"));
  EXPECT_THAT(refusal(AdapterMaker().add("q.lora_A.weight", {2, 4}).add("q.lora_embedding_B", {4, 2})),
              EndsWith("'q' has tensors of a matrix and of an embedding"));
  EXPECT_THAT(refusal(AdapterMaker().add("q.lora_embedding_A", {2, 4}).add("q.lora_B.weight", {4, 2})),
              EndsWith("'q' has tensors of a matrix and of an embedding"));
  EXPECT_THAT(refusal(AdapterMaker().add_low_rank("q", 4, 4, 2).add("q.lora_embedding_A", {2, 4})),
              EndsWith("'q' has tensors of a matrix and of an embedding"));
  EXPECT_THAT(error_of([] { (void)AdapterMaker().make(); }), EndsWith("has no tensor that changes a model"));
}

TEST(Adapter, RefusesTensorsThatMeanTheSame) {
  EXPECT_THAT(refusal(AdapterMaker(R"("use_dora":true)")
                          .add_low_rank("q", 4, 4, 2)
                          .add("q.lora_magnitude_vector", {4})
                          .add("q.lora_magnitude_vector.weight", {4})),
              EndsWith("means the same as 'base_model.model.q.lora_magnitude_vector'"));
  EXPECT_THAT(refusal(AdapterMaker().add("q.weight", {4}).add("q.base_layer.weight", {4})),
              EndsWith("means the same as 'base_model.model.q.weight'"));
}

TEST(Adapter, CodesOfTheBaseReplaceNothing) {
  for (const char* const scales : {"lm_head.base_layer.weight.absmax", "lm_head.base_layer.SCB"}) {
    AdapterMaker maker(R"("r":2)");
    maker.add_low_rank("lm_head", 8, 4, 2).add("model.norm.weight", {4});
    maker.add("lm_head.base_layer.weight", {4, 1}, DType::bf16).add(scales, {1});  // quant_storage may be any type
    const Adapter adapter = maker.make();
    EXPECT_EQ(adapter.replacements().size(), 1u);
    EXPECT_TRUE(adapter.replacements().contains("model.norm.weight"));
    EXPECT_TRUE(adapter.modules().contains("lm_head"));
  }
  AdapterMaker weights;
  weights.add("lm_head.weight", {4, 8}).add("lm_head.weight.absmax", {1});
  EXPECT_THAT(refusal(weights), HasSubstr("lm_head.weight': holds weights of type F32, but has scales as codes have"));
  AdapterMaker only;
  only.add("lm_head.weight", {4, 1}).add("lm_head.SCB", {1});
  EXPECT_THAT(refusal(only), HasSubstr("has no tensor that changes a model"));
}

// peft saves some parameters of a module to save under two names.
TEST(Adapter, EqualTensorsMayMeanTheSame) {
  const std::vector<float> values = test::normal_weights(4, 1);
  AdapterMaker maker;
  maker.add("classifier.bias", {4}, values).add("classifier.modules_to_save.bias", {4}, values);
  maker.add("classifier.original_module.bias", {4});
  maker.add("embed_tokens.token_adapter.base_layer.weight", {4, 4});
  const Adapter adapter = maker.make();
  EXPECT_EQ(adapter.replacements().size(), 2u);
  EXPECT_TRUE(adapter.replacements().contains("classifier.bias"));
  EXPECT_TRUE(adapter.replacements().contains("embed_tokens.weight"));
}

TEST(Adapter, RefusesOtherTensors) {
  EXPECT_THAT(refusal(AdapterMaker().add_low_rank("q", 4, 4, 2).add("q.lora_E", {2})),
              HasSubstr("tensor 'base_model.model.q.lora_E': is not a part of LoRA that nibble can merge"));
  auto weights = std::make_unique<test::MemoryReader>();
  weights->add({"q.lora_A.weight", DType::i64, {1}}, std::vector<std::byte>(8));
  EXPECT_THAT(error_of([&] { (void)Adapter(lora, std::move(weights)); }),
              EndsWith("tensor 'q.lora_A.weight': is of type I64, not F64, F32, BF16 or F16"));
}

}  // namespace
}  // namespace nibble::adapter_test
