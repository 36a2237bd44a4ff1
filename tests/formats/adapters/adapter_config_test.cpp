#include "formats/adapters/adapter_config.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::adapter_config_test {
namespace {

using test::error_of;
using testing::HasSubstr;

AdapterConfig config(std::string_view fields = "") {
  return {fmt::format(R"({{"peft_type":"LORA"{}{}}})", fields.empty() ? "" : ",", fields), "c"};
}
std::string refusal(std::string_view fields) {
  return error_of([&] { (void)config(fields); });
}

TEST(AdapterConfig, DefaultsAreThoseOfPeft) {
  const AdapterConfig plain = config();
  EXPECT_EQ(plain.rank("any"), 8u);
  EXPECT_EQ(plain.scale("any"), 1.0);
  EXPECT_FALSE(plain.uses_dora());
  EXPECT_FALSE(plain.has_lora_bias());
  EXPECT_FALSE(plain.fan_in_fan_out());
}

TEST(AdapterConfig, ScaleIsAlphaOverRankOrItsRoot) {
  EXPECT_EQ(config(R"("r":16,"lora_alpha":32)").scale("m"), 2.0);
  EXPECT_EQ(config(R"("r":16,"lora_alpha":2.5)").scale("m"), 2.5 / 16);
  EXPECT_EQ(config(R"("r":8,"lora_alpha":32,"use_rslora":true)").scale("m"), 32 / std::sqrt(8.0));
}

TEST(AdapterConfig, TheFirstPatternThatMatchesCounts) {
  const AdapterConfig patterns = config(
      R"("r":4,"lora_alpha":4,"rank_pattern":{"^model.layers.0.q":2,"q|k":16,"layers.1.v":32},"alpha_pattern":{"k":48})");
  EXPECT_EQ(patterns.rank("model.layers.0.q"), 2u);
  EXPECT_EQ(patterns.rank("x.model.layers.0.q"), 16u);  // ^ stands for the beginning of the name
  EXPECT_EQ(patterns.rank("q"), 16u);
  EXPECT_EQ(patterns.rank("a.b.k"), 16u);
  EXPECT_EQ(patterns.rank("a.b.kk"), 4u);  // a pattern begins at a dot,
  EXPECT_EQ(patterns.rank("k.b"), 4u);     // and ends where the name does
  EXPECT_EQ(patterns.rank("model.layers.1.v"), 32u);
  EXPECT_EQ(patterns.scale("a.k"), 3.0);
  EXPECT_EQ(patterns.scale("a.q"), 4.0 / 16);
}

TEST(AdapterConfig, PatternsMayNameEveryModule) {
  std::string patterns;
  for (int i = 0; i < 20'000; ++i)
    patterns += fmt::format(R"({}"model.layers.{}.mlp.experts.{}.up":{})", i == 0 ? "" : ",", i / 100, i % 100, i + 1);
  const AdapterConfig many = config(fmt::format(R"("rank_pattern":{{{}}})", patterns));
  for (const int i : {0, 777, 12'345, 19'999})
    EXPECT_EQ(many.rank(fmt::format("model.layers.{}.mlp.experts.{}.up", i / 100, i % 100)), i + 1);
}

TEST(AdapterConfig, ReadsWhatWasAdaptedBesideModules) {
  const AdapterConfig c =
      config(R"("target_parameters":["mlp.up","mlp.down"],"trainable_token_indices":{"embed":[5,1],"lm_head":[7]})");
  EXPECT_EQ(c.target_parameters(), (std::vector<std::string>{"mlp.down", "mlp.up"}));
  ASSERT_EQ(c.trainable_tokens().size(), 2u);
  EXPECT_EQ(c.trainable_tokens()[0].module, "embed");
  EXPECT_EQ(c.trainable_tokens()[0].rows, (std::vector<std::uint64_t>{5, 1}));
  const AdapterConfig list = config(R"("trainable_token_indices":[3])");
  ASSERT_EQ(list.trainable_tokens().size(), 1u);
  EXPECT_EQ(list.trainable_tokens()[0].module, "");
}

TEST(AdapterConfig, ModulesAreSavedByTheEndsOfTheirNames) {
  const AdapterConfig saves = config(R"("modules_to_save":["lm_head","model.embed_tokens"])");
  EXPECT_TRUE(saves.is_saved("lm_head.weight"));
  EXPECT_TRUE(saves.is_saved("language_model.lm_head.weight"));
  EXPECT_TRUE(saves.is_saved("model.embed_tokens.weight"));
  EXPECT_TRUE(saves.is_saved("lm_head.dense.bias"));  // what is in it is copied, too
  EXPECT_FALSE(saves.is_saved("embed_tokens.weight"));
  EXPECT_FALSE(saves.is_saved("lm_heads.weight"));
  EXPECT_FALSE(saves.is_saved("a.lm_head"));
  EXPECT_FALSE(config().is_saved("lm_head.weight"));
  EXPECT_THAT(refusal(R"("modules_to_save":"lm_head")"), HasSubstr("c: modules_to_save is not a list"));
  EXPECT_THAT(refusal(R"("modules_to_save":[7])"), HasSubstr("c: modules_to_save: 7 is not a name"));
}

TEST(AdapterConfig, FieldsThatAreOffOrChangeNoWeightAreAccepted) {
  EXPECT_TRUE(config(R"("use_dora":true,"lora_bias":false,"fan_in_fan_out":null)").uses_dora());
  (void)config(
      R"("use_qalora":false,"megatron_config":null,"new_thing":{},"other":[],"third":"","alora_invocation_tokens":null)");
  (void)config(R"("lora_dropout":0.1,"target_modules":["q"],"bias":"lora_only","layers_to_transform":[1,2],
                  "velora_config":{"num_groups":8},"eva_config":{"rho":2},"task_type":"CAUSAL_LM","modules_to_save":["x"])");
  for (const char* init : {"true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\"", "\"mica\"", "null"})
    (void)config(fmt::format(R"("init_lora_weights":{})", init));
}

TEST(AdapterConfig, RefusesByName) {
  EXPECT_EQ(error_of([] { (void)AdapterConfig("{}", "c"); }), "c: has no peft_type");
  EXPECT_EQ(error_of([] { (void)AdapterConfig("[]", "c"); }), "c: is not a JSON object");
  EXPECT_EQ(error_of([] { (void)AdapterConfig(R"({"peft_type":"ADALORA"})", "c"); }),
            "c: peft_type is ADALORA: only LORA can be merged");
  for (const char* field :
       {R"("use_qalora":true)", R"("megatron_config":{"a":1})", R"("alora_invocation_tokens":[1])",
        R"("monteclora_config":{"a":1})", R"("layer_replication":[[0,4]])", R"("use_bdlora":{"nblocks":2})",
        R"("arrow_config":{"top_k":1})", R"("kasa_config":{"a":1})", R"("another":3)", R"("another":0)"})
    EXPECT_THAT(refusal(field), HasSubstr("nibble cannot merge an adapter that uses it")) << field;
  EXPECT_EQ(refusal(R"("use_qalora":true)"), "c: use_qalora is true: nibble cannot merge an adapter that uses it");
  for (const char* init : {"pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "new"})
    EXPECT_THAT(refusal(fmt::format(R"("init_lora_weights":"{}")", init)),
                HasSubstr(fmt::format("init_lora_weights is {}, which changed the weights of the base", init)));
}

TEST(AdapterConfig, RefusesValuesThatMakeNoSense) {
  EXPECT_EQ(refusal(R"("r":0)"), "c: r is 0, not a positive integer");
  EXPECT_EQ(refusal(R"("r":-1)"), "c: r is -1, not a positive integer");
  EXPECT_EQ(refusal(R"("r":1.5)"), "c: r is 1.5, not a positive integer");
  EXPECT_EQ(refusal(R"("lora_alpha":"a")"), "c: lora_alpha is a, not a number");
  EXPECT_THAT(refusal(R"("lora_alpha":NaN)"), HasSubstr("c: not JSON"));
  EXPECT_THAT(refusal(R"("lora_alpha":1e400)"), HasSubstr("c: "));
  EXPECT_EQ(refusal(R"("use_dora":1)"), "c: use_dora is 1, not true or false");
  EXPECT_EQ(refusal(R"("bias":"some")"), "c: bias is some, not none, all or lora_only");
  EXPECT_EQ(refusal(R"("rank_pattern":{"q":0})"), "c: rank_pattern of 'q' is 0, not a positive integer");
  EXPECT_EQ(refusal(R"("alpha_pattern":[])"), "c: alpha_pattern is not an object");
  EXPECT_THAT(refusal(R"x("rank_pattern":{"(?=a)":1})x"), HasSubstr("is not a regular expression that can be used"));
  EXPECT_EQ(refusal(R"("target_parameters":"all")"), "c: target_parameters is not a list");
  EXPECT_EQ(refusal(R"("target_parameters":[1])"), "c: target_parameters: 1 is not a name");
  EXPECT_EQ(refusal(R"("trainable_token_indices":5)"), "c: trainable_token_indices is not a list");
  EXPECT_EQ(refusal(R"("trainable_token_indices":[-5])"), "c: trainable_token_indices: -5 is not a token");
  EXPECT_EQ(refusal(R"("trainable_token_indices":[5,6,5])"), "c: trainable_token_indices: token 5 occurs twice");
}

}  // namespace
}  // namespace nibble::adapter_config_test
