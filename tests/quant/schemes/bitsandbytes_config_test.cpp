// quantization_config, to the letter, and which modules it names as skipped.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/plan.hpp"
#include "quant/schemes/scheme.hpp"
#include "tests/support/conversion.hpp"

namespace nibble::bitsandbytes_config_test {
namespace {

using test::MemoryReader;
using test::recipe;
using Json = nlohmann::json;
using Names = std::vector<std::string>;

// Matrices of 64 x 64 with these names.
MemoryReader model(const std::string& architecture, const Names& names, std::optional<bool> tied = {},
                   DType dtype = DType::bf16) {
  MemoryReader in;
  in.set_architecture(architecture, tied);
  for (const std::string& name : names) in.add_normal(name, dtype, {64, 64});
  return in;
}

const Names llama_names{"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                        "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight", "lm_head.weight"};

MemoryReader llama(DType dtype = DType::bf16) { return model("LlamaForCausalLM", llama_names, false, dtype); }

Json config(const MemoryReader& in, const Recipe& recipe) {
  return Json::parse(quantization_config(make_plan(in, recipe)));
}
Json skipped(const MemoryReader& in, const Recipe& recipe) { return config(in, recipe).at("llm_int8_skip_modules"); }

// transformers would put it into a quantized layer, whose codes it is not.
TEST(BitsandbytesConfig, LinearLayersOfOtherTypesAreSkipped) {
  MemoryReader in = llama();
  EXPECT_TRUE(skipped(in, recipe("nf4")).is_null());
  in.add_normal("model.layers.0.self_attn.k_proj.weight", DType::f8_e4m3, {64, 64});
  EXPECT_EQ(skipped(in, recipe("nf4")), Json({"lm_head", "model.layers.0.self_attn.k_proj"}));
}

TEST(BitsandbytesConfig, IsWhatTransformersWrites) {
  EXPECT_EQ(quantization_config(make_plan(llama(), recipe("nf4"))),
            R"({"_load_in_4bit":true,"_load_in_8bit":false,"bnb_4bit_compute_dtype":"bfloat16",)"
            R"("bnb_4bit_quant_storage":"uint8","bnb_4bit_quant_type":"nf4","bnb_4bit_use_double_quant":true,)"
            R"("llm_int8_enable_fp32_cpu_offload":false,"llm_int8_has_fp16_weight":false,)"
            R"("llm_int8_skip_modules":null,"llm_int8_threshold":6.0,"load_in_4bit":true,"load_in_8bit":false,)"
            R"("quant_method":"bitsandbytes"})");
  // Of 8 bits the keys of 4 are there all the same, with their defaults.
  EXPECT_EQ(quantization_config(make_plan(llama(), recipe("int8"))),
            R"({"_load_in_4bit":false,"_load_in_8bit":true,"bnb_4bit_compute_dtype":"float32",)"
            R"("bnb_4bit_quant_storage":"uint8","bnb_4bit_quant_type":"fp4","bnb_4bit_use_double_quant":false,)"
            R"("llm_int8_enable_fp32_cpu_offload":false,"llm_int8_has_fp16_weight":false,)"
            R"("llm_int8_skip_modules":null,"llm_int8_threshold":6.0,"load_in_4bit":false,"load_in_8bit":true,)"
            R"("quant_method":"bitsandbytes"})");
}

TEST(BitsandbytesConfig, NothingQuantizedIsNoConfig) {
  for (const char* const to : {"fp16", "bf16", "fp32"})
    EXPECT_EQ(quantization_config(make_plan(llama(), recipe(to))), "") << to;
  EXPECT_EQ(quantization_config(make_plan(model("LlamaForCausalLM", {"model.embed_tokens.weight"}), recipe("nf4"))),
            "");
  EXPECT_EQ(quantization_config(Plan()), "");
}

TEST(BitsandbytesConfig, SaysHowWeightsAreStored) {
  const Json json = config(llama(), recipe("fp4:double-quant=no"));
  EXPECT_EQ(json.at("bnb_4bit_quant_type"), "fp4");
  EXPECT_EQ(json.at("bnb_4bit_use_double_quant"), false);
  EXPECT_EQ(json.at("load_in_4bit"), true);
}

// Of the weights that are not quantized, unless the recipe says otherwise.
TEST(BitsandbytesConfig, ComputeTypeIsThatOfTheSource) {
  for (const auto& [dtype, name] :
       {std::pair(DType::f16, "float16"), std::pair(DType::bf16, "bfloat16"), std::pair(DType::f32, "float32")})
    EXPECT_EQ(config(llama(dtype), recipe("nf4")).at("bnb_4bit_compute_dtype"), name);
  Recipe chosen = recipe("nf4");
  chosen.compute_dtype = DType::f16;
  EXPECT_EQ(config(llama(), chosen).at("bnb_4bit_compute_dtype"), "float16");
  chosen.to = "int8";
  EXPECT_EQ(config(llama(), chosen).at("bnb_4bit_compute_dtype"), "float32");
}

// With load_in_4bit, transformers would load the model by bitsandbytes' rules, whatever the quant_method.
TEST(BitsandbytesConfig, OthersThanBitsandbytesSaySo) {
  Recipe mixed = recipe("nf4");
  mixed.rules = {{".*up_proj.*", "int8"}};
  mixed.allow_nibble_only = true;
  EXPECT_EQ(config(llama(), mixed), Json({{"compute_dtype", "bfloat16"}, {"quant_method", "nibble"}}));
}

// A list replaces transformers' defaults, so it has to hold them too, stored or not.
TEST(SkippedModules, AreAddedToTheDefaults) {
  Recipe skip = recipe("nf4");
  skip.skips = {".*down_proj.*"};
  EXPECT_EQ(skipped(llama(), skip), (Json{"lm_head", "model.layers.0.mlp.down_proj"}));
  Names without_head = llama_names;
  without_head.pop_back();
  EXPECT_EQ(skipped(model("LlamaForCausalLM", without_head, true), skip),
            (Json{"lm_head", "model.layers.0.mlp.down_proj"}));
}

// Which layers of other parts transformers would leave plain by itself is not known.
TEST(SkippedModules, AreNamedIfTheModelHasOtherParts) {
  const std::string layer = "model.language_model.layers.0.";
  MemoryReader in = model("LlavaForConditionalGeneration", {layer + "self_attn.q_proj.weight", "lm_head.weight"});
  EXPECT_TRUE(skipped(in, recipe("nf4")).is_null());
  in.set_part_types({{"text_config", "qwen2"}});
  EXPECT_EQ(skipped(in, recipe("nf4")), Json{"lm_head"});
}

TEST(SkippedModules, AreSortedAndNamedOnce) {
  Names names = llama_names;
  for (const char* const layer : {"10", "2"})
    for (const char* const part : {"up_proj", "down_proj"})
      names.push_back("model.layers." + std::string(layer) + ".mlp." + part + ".weight");
  Recipe skip = recipe("int8");
  skip.skips = {".*[.]mlp[.].*"};
  EXPECT_EQ(
      skipped(model("LlamaForCausalLM", names, false), skip),
      (Json{"lm_head", "model.layers.0.mlp.down_proj", "model.layers.0.mlp.up_proj", "model.layers.10.mlp.down_proj",
            "model.layers.10.mlp.up_proj", "model.layers.2.mlp.down_proj", "model.layers.2.mlp.up_proj"}));
  // Many tensors of one module: the experts of a layer are a single parameter there.
  EXPECT_EQ(skipped(model("MixtralForCausalLM",
                          {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
                           "model.layers.0.block_sparse_moe.experts.0.w1.weight",
                           "model.layers.0.block_sparse_moe.experts.1.w1.weight"},
                          false),
                    [] {
                      Recipe skip_k = recipe("nf4");
                      skip_k.skips = {".*k_proj.*"};
                      return skip_k;
                    }()),
            (Json{"lm_head", "model.layers.0.self_attn.k_proj"}));
}

// null is "as you would": only where that is the very set.
TEST(SkippedModules, AreLeftToTheDefaultWhereItIsTheSame) {
  EXPECT_EQ(skipped(llama(), recipe("nf4")), Json());
  Recipe head = recipe("nf4");
  head.lm_head = "nf4";
  EXPECT_EQ(skipped(llama(), head), Json::array());
  // GPT-2 stores its layers transposed, and they are replaced all the same.
  EXPECT_EQ(skipped(model("GPT2LMHeadModel", {"transformer.h.0.attn.c_attn.weight", "transformer.wte.weight"}, true),
                    recipe("nf4")),
            Json());
}

// What the table does not know is stated, not left to be guessed again.
TEST(SkippedModules, AreStatedForUnknownModels) {
  EXPECT_EQ(skipped(model("NoSuchForCausalLM", {"blocks.0.fc.weight"}), recipe("nf4")), Json{"lm_head"});
  EXPECT_EQ(
      skipped(model("LlamaForCausalLM", {"model.layers.0.mlp.up_proj.weight", "model.layers.0.new.weight"}, false),
              recipe("nf4")),
      (Json{"lm_head", "model.layers.0.new"}));
}

// The layers that loading makes of one plain tensor would be replaced, and wait for codes.
TEST(SkippedModules, AreWhatAPlainTensorIsSplitInto) {
  EXPECT_EQ(skipped(model("Dinov2Model", {"encoder.layer.0.mlp.weights_in.weight",
                                          "encoder.layer.0.attention.attention.query.weight"}),
                    recipe("nf4")),
            (Json{"encoder.layer.0.mlp.gate_proj", "encoder.layer.0.mlp.up_proj"}));
}

// transformers 4 leaves a pooler plain that 5 quantizes: with a list both do the same.
TEST(SkippedModules, AreStatedWhereVersionsOfTransformersDiffer) {
  const std::string layer = "encoder.layer.0.attention.self.query.weight";
  EXPECT_EQ(skipped(model("BertModel", {layer}), recipe("nf4")), Json());
  EXPECT_TRUE(skipped(model("BertModel", {layer, "pooler.dense.weight"}), recipe("nf4")).is_array());
}

}  // namespace
}  // namespace nibble::bitsandbytes_config_test
