#include "formats/adapters/adapter_names.hpp"

#include <gtest/gtest.h>

namespace nibble::adapter_names_test {
namespace {

void expect(std::string_view name, AdapterPart part, std::string_view module, std::size_t depth = 0) {
  const auto parsed = parse_adapter_name(name);
  ASSERT_TRUE(parsed) << name;
  EXPECT_EQ(parsed->part, part) << name;
  EXPECT_EQ(parsed->module, module) << name;
  EXPECT_EQ(parsed->depth, depth) << name;
}

TEST(AdapterNames, EveryPart) {
  expect("base_model.model.a.q.lora_A.weight", AdapterPart::a, "a.q");
  expect("base_model.model.a.q.lora_B.weight", AdapterPart::b, "a.q");
  expect("base_model.model.a.q.lora_B.bias", AdapterPart::b_bias, "a.q");
  expect("base_model.model.a.q.lora_magnitude_vector", AdapterPart::magnitude, "a.q");
  expect("base_model.model.a.q.lora_magnitude_vector.weight", AdapterPart::magnitude, "a.q");
  expect("base_model.model.wte.lora_embedding_A", AdapterPart::embedding_a, "wte");
  expect("base_model.model.wte.lora_embedding_B", AdapterPart::embedding_b, "wte");
  expect("base_model.model.wte.token_adapter.trainable_tokens_delta", AdapterPart::tokens, "wte");
  expect("base_model.model.a.q.lora_velora_embed", AdapterPart::unused, "a.q");
}

TEST(AdapterNames, AllElseReplacesATensor) {
  expect("base_model.model.lm_head.weight", AdapterPart::replacement, "lm_head.weight");
  expect("base_model.model.a.q.base_layer.bias", AdapterPart::replacement, "a.q.bias", 1);
}

// As peft saves the quantized output layer or embeddings that it has an adapter for.
TEST(AdapterNames, ScalesOfAQuantizedWeightAreKnown) {
  for (const char* scales :
       {"a.head.base_layer.SCB", "a.head.base_layer.weight_format", "a.head.base_layer.weight.absmax",
        "a.head.base_layer.weight.quant_state.bitsandbytes__nf4", "a.head.base_layer.weight.layers.0.SCB",
        "a.head.base_layer.weight.layers.0.weight", "a.head.base_layer.weight.layers.0.weight.absmax"})
    expect(std::string("base_model.model.") + scales, AdapterPart::codes, "a.head.weight", 1);
  expect("head.SCB", AdapterPart::codes, "head.weight");
  for (const char* other : {"a.weights.b", "a.SCBs", "a.SCB.weight", "SCB", "weight.a", "a.weight.absmax.b",
                            "a.weight.layers.", "a.weight.layers.x", "conv.parametrizations.weight.original0"})
    expect(other, AdapterPart::replacement, other);
}

// peft saves biases and embeddings by the names of the parameters, and those are in wrappers.
TEST(AdapterNames, ModulesAroundALayerHaveNoNames) {
  expect("base_model.model.head.modules_to_save.bias", AdapterPart::replacement, "head.bias");
  expect("base_model.model.head.modules_to_save.default.dense.bias", AdapterPart::replacement, "head.dense.bias");
  expect("base_model.model.embed.token_adapter.base_layer.weight", AdapterPart::replacement, "embed.weight");
  for (const char* frozen : {"head.original_module.bias", "head.original_module.dense.bias"}) {
    const auto parsed = parse_adapter_name(frozen);
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->part, AdapterPart::unused) << frozen;
  }
}

TEST(AdapterNames, ThePrefixMayBeMissing) { expect("a.q.lora_A.weight", AdapterPart::a, "a.q"); }

TEST(AdapterNames, DepthIsTheNumberOfWrappersAround) {
  expect("base_model.model.experts.base_layer.base_layer.lora_A.weight", AdapterPart::a, "experts", 2);
  expect("base_model.model.a.base_layer.out_proj.lora_A.weight", AdapterPart::a, "a.out_proj", 1);
  expect("base_model.model.a.base_layers.lora_A.weight", AdapterPart::a, "a.base_layers");
}

TEST(AdapterNames, OtherPartsOfLoraAreNone) {
  for (const char* name :
       {"base_model.model.a.lora_E", "base_model.model.a.lora_A.default.weight", "base_model.model.a.lora_diag",
        "base_model.model.a.token_adapter.weight", "base_model.model.", ".lora_A.weight", ""})
    EXPECT_FALSE(parse_adapter_name(name)) << name;
}

}  // namespace
}  // namespace nibble::adapter_names_test
