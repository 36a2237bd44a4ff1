#include "formats/models/architectures.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "formats/models/architecture_line.hpp"

namespace nibble::architectures_test {
namespace {

TensorInfo matrix(std::string name, std::uint64_t rows = 64, std::uint64_t columns = 64) {
  return {std::move(name), DType::bf16, {rows, columns}};
}

using Roles = std::vector<FoundRole>;

std::optional<Roles> roles_by_architecture(std::string_view architecture, const std::vector<TensorInfo>& tensors,
                                           bool tied) {
  const TensorList list{std::span(tensors)};
  const auto finder = make_role_finder({std::string(architecture)}, list, tied);
  if (!finder) return std::nullopt;
  Roles found;
  for (const TensorInfo& tensor : tensors) found.push_back(finder->find(tensor));
  return found;
}

// Roles by stored name. Fails the test if the table lacks the architecture.
class RolesByName {
 public:
  RolesByName(std::string_view architecture, std::vector<TensorInfo> tensors, bool tied = false) {
    const auto found = roles_by_architecture(architecture, tensors, tied);
    EXPECT_TRUE(found) << architecture;
    if (!found) return;
    EXPECT_EQ(found->size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) roles_[tensors[i].name] = (*found)[i];
  }
  const FoundRole& operator[](const std::string& name) const { return roles_.at(name); }

 private:
  std::map<std::string, FoundRole> roles_;
};

std::vector<TensorInfo> llama() {
  return {matrix("lm_head.weight"),
          matrix("model.embed_tokens.weight"),
          matrix("model.layers.0.mlp.down_proj.weight"),
          matrix("model.layers.0.self_attn.q_proj.weight"),
          {"model.norm.weight", DType::bf16, {64}}};
}

TEST(Architectures, VersionIsTheTables) { EXPECT_EQ(architectures_version(), "5.23.0"); }

TEST(Architectures, UnknownArchitectureIsNothing) {
  EXPECT_FALSE(roles_by_architecture("NoSuchModel", llama(), false));
  EXPECT_FALSE(roles_by_architecture("", llama(), false));
  EXPECT_FALSE(roles_by_architecture("Llama\",\"", llama(), false));
  EXPECT_FALSE(roles_by_architecture("LlamaForCausal", llama(), false));
}

TEST(Architectures, LlamaKeepsItsHead) {
  const RolesByName roles("LlamaForCausalLM", llama());
  EXPECT_EQ(roles["model.layers.0.mlp.down_proj.weight"].role, Role::linear);
  EXPECT_EQ(roles["model.layers.0.mlp.down_proj.weight"].module, "model.layers.0.mlp.down_proj");
  EXPECT_EQ(roles["model.layers.0.self_attn.q_proj.weight"].role, Role::linear);
  EXPECT_EQ(roles["lm_head.weight"].role, Role::output_embeddings);
  EXPECT_EQ(roles["lm_head.weight"].keeps, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(roles["model.embed_tokens.weight"].role, Role::embedding);
  EXPECT_EQ(roles["model.embed_tokens.weight"].module, "model.embed_tokens");
  EXPECT_EQ(roles["model.norm.weight"].role, Role::other);
}

// The table's patterns have `*` and `$` where a name has a number. In a name they are text like any other.
TEST(Architectures, WildcardsOfTheTableAreTextInNames) {
  std::vector<TensorInfo> tensors;
  for (const std::string number : {"*", "$", "0", "1"})
    tensors.push_back(matrix("model.layers." + number + ".mlp.down_proj.weight"));
  const RolesByName roles("LlamaForCausalLM", tensors);
  for (const std::string number : {"*", "$"})
    EXPECT_EQ(roles["model.layers." + number + ".mlp.down_proj.weight"].role, Role::unknown) << number;
  for (const std::string number : {"0", "1"}) {
    EXPECT_EQ(roles["model.layers." + number + ".mlp.down_proj.weight"].role, Role::linear) << number;
    EXPECT_EQ(roles["model.layers." + number + ".mlp.down_proj.weight"].module,
              "model.layers." + number + ".mlp.down_proj");
  }
}

// Numbers of names are looked up as 900000000, 900000001, ..., which a name may have, too.
TEST(Architectures, NumbersThatLookLikeMarkersStayWhatTheyAre) {
  for (const std::string module : {"a.900000001.b.7.c", "a900000000.5.b", "900000000.900000000"})
    EXPECT_EQ(RolesByName("LlamaForCausalLM", {matrix(module + ".weight")})[module + ".weight"].module, module);
  std::string many = "a.900001100";  // beyond the markers that there are
  for (int i = 0; i < 1200; ++i) many += "." + std::to_string(i);
  EXPECT_EQ(RolesByName("LlamaForCausalLM", {matrix(many + ".weight")})[many + ".weight"].module, many);
}

TEST(Architectures, EmptyFirstPartsCount) {
  const RolesByName roles("LlamaForCausalLM", {matrix("model.layers.0.mlp.down_proj.weight"),
                                               matrix(".model.layers.0.mlp.down_proj.weight")});
  EXPECT_EQ(roles["model.layers.0.mlp.down_proj.weight"].role, Role::linear);
  EXPECT_EQ(roles[".model.layers.0.mlp.down_proj.weight"].role, Role::unknown);
}

TEST(Architectures, TiedHeadIsNoLayerOfItsOwn) {
  const RolesByName roles("LlamaForCausalLM", llama(), true);
  EXPECT_EQ(roles["lm_head.weight"].role, Role::other);
  EXPECT_EQ(roles["lm_head.weight"].why, "tied weights");
}

TEST(Architectures, LayersThatMayHaveTheWeightOfTheEmbeddings) {
  const EmbeddingLayers llama = embedding_layers({"LlamaForCausalLM"});
  EXPECT_EQ(llama.embeddings, std::vector<std::string>{"model.embed_tokens"});
  EXPECT_EQ(llama.tied, std::vector<std::string>{"lm_head"});
  const EmbeddingLayers t5 = embedding_layers({"T5ForConditionalGeneration"});  // whose numbered biases are embeddings
  EXPECT_EQ(t5.embeddings, (std::vector<std::string>{"decoder.embed_tokens", "encoder.embed_tokens", "shared"}));
  EXPECT_TRUE(embedding_layers({"LlamaForSequenceClassification"}).tied.empty());
  const EmbeddingLayers unknown = embedding_layers({"NoSuchModel"});
  EXPECT_TRUE(unknown.embeddings.empty() && unknown.tied.empty());
}

TEST(Architectures, BaseModelsNamesGainOrLoseThePrefix) {
  const std::string stored = "encoder.layer.3.attention.self.query.weight";
  const RolesByName base("BertModel", {matrix(stored), matrix("bert." + stored), matrix("pooler.dense.weight")});
  EXPECT_EQ(base[stored].role, Role::linear);
  EXPECT_EQ(base["bert." + stored].role, Role::linear);
  EXPECT_EQ(base["bert." + stored].module, "encoder.layer.3.attention.self.query");
  EXPECT_EQ(base["pooler.dense.weight"].role, Role::linear);

  const RolesByName head("BertForMaskedLM",
                         {matrix(stored), matrix("bert." + stored), matrix("bert.pooler.dense.weight"),
                          matrix("cls.predictions.transform.dense.weight"), matrix("cls.predictions.decoder.weight")},
                         true);
  EXPECT_EQ(head[stored].role, Role::linear);
  EXPECT_EQ(head[stored].module, "bert.encoder.layer.3.attention.self.query");
  EXPECT_EQ(head["bert." + stored].module, "bert.encoder.layer.3.attention.self.query");
  EXPECT_EQ(head["cls.predictions.transform.dense.weight"].role, Role::linear);
  EXPECT_EQ(head["cls.predictions.decoder.weight"].why, "tied weights");
  // a model for masked words has no pooler, though checkpoints do
  EXPECT_EQ(head["bert.pooler.dense.weight"].role, Role::unknown);
  EXPECT_EQ(head["bert.pooler.dense.weight"].keeps, std::vector<std::string>{"bert.pooler.dense"});
}

TEST(Architectures, Gpt2StoresItsLayersTransposed) {
  const RolesByName roles("GPT2LMHeadModel", {matrix("h.0.attn.c_attn.weight", 64, 192),
                                              matrix("wte.weight"),
                                              matrix("transformer.h.0.mlp.c_fc.weight", 64, 256),
                                              {"h.0.attn.bias", DType::f32, {1, 1, 64, 64}}});
  EXPECT_EQ(roles["h.0.attn.c_attn.weight"].role, Role::conv1d);
  EXPECT_EQ(roles["h.0.attn.c_attn.weight"].module, "transformer.h.0.attn.c_attn");
  EXPECT_EQ(roles["transformer.h.0.mlp.c_fc.weight"].role, Role::conv1d);
  EXPECT_EQ(roles["wte.weight"].role, Role::embedding);
  EXPECT_EQ(roles["h.0.attn.bias"].role, Role::unknown);
  EXPECT_TRUE(roles["h.0.attn.bias"].keeps.empty());
}

TEST(Architectures, T5KeepsWoInFullPrecision) {
  const RolesByName roles("T5ForConditionalGeneration",
                          {matrix("encoder.block.1.layer.1.DenseReluDense.wo.weight"),
                           matrix("encoder.block.1.layer.1.DenseReluDense.wi.weight"), matrix("shared.weight")});
  EXPECT_EQ(roles["encoder.block.1.layer.1.DenseReluDense.wo.weight"].role, Role::other);
  EXPECT_EQ(roles["encoder.block.1.layer.1.DenseReluDense.wo.weight"].why, "kept in fp32");
  EXPECT_EQ(roles["encoder.block.1.layer.1.DenseReluDense.wi.weight"].role, Role::linear);
  EXPECT_EQ(roles["shared.weight"].role, Role::embedding);
}

TEST(Architectures, MixtralsExpertsAreMergedOnLoading) {
  const RolesByName roles("MixtralForCausalLM", {matrix("model.layers.0.block_sparse_moe.experts.7.w1.weight"),
                                                 matrix("model.layers.0.block_sparse_moe.experts.7.w2.weight"),
                                                 matrix("model.layers.0.block_sparse_moe.gate.weight"),
                                                 matrix("model.layers.0.self_attn.o_proj.weight")});
  EXPECT_EQ(roles["model.layers.0.block_sparse_moe.experts.7.w1.weight"].role, Role::expert);
  EXPECT_EQ(roles["model.layers.0.block_sparse_moe.experts.7.w1.weight"].module,
            "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(roles["model.layers.0.block_sparse_moe.experts.7.w2.weight"].role, Role::expert);
  EXPECT_EQ(roles["model.layers.0.block_sparse_moe.gate.weight"].role, Role::other);
  EXPECT_EQ(roles["model.layers.0.self_attn.o_proj.weight"].role, Role::linear);
}

TEST(Architectures, Qwen3MoeTakesFusedAndSingleExperts) {
  const RolesByName roles("Qwen3MoeForCausalLM", {{"model.layers.0.mlp.experts.gate_up_proj", DType::bf16, {8, 64, 64}},
                                                  matrix("model.layers.0.mlp.experts.3.up_proj.weight"),
                                                  matrix("model.layers.0.mlp.gate.weight"),
                                                  matrix("model.layers.1.mlp.up_proj.weight")});
  EXPECT_EQ(roles["model.layers.0.mlp.experts.gate_up_proj"].role, Role::expert);
  EXPECT_EQ(roles["model.layers.0.mlp.experts.3.up_proj.weight"].role, Role::expert);
  EXPECT_TRUE(roles["model.layers.0.mlp.experts.3.up_proj.weight"].keeps.empty());
  EXPECT_EQ(roles["model.layers.0.mlp.gate.weight"].role, Role::other);
  EXPECT_EQ(roles["model.layers.1.mlp.up_proj.weight"].role, Role::linear);  // with mlp_only_layers
}

// They have a row for each expert, but are no matrices of the model.
TEST(Architectures, BiasesOfExpertsAreNotExperts) {
  const std::string experts = "model.layers.0.mlp.experts.";
  const RolesByName roles("GptOssForCausalLM", {{experts + "gate_up_proj", DType::bf16, {8, 64, 64}},
                                                {experts + "gate_up_proj_bias", DType::bf16, {8, 64}}});
  EXPECT_EQ(roles[experts + "gate_up_proj"].role, Role::expert);
  EXPECT_EQ(roles[experts + "gate_up_proj_bias"].role, Role::other);
}

TEST(Architectures, FalconsOwnLinearIsNotReplaced) {
  const RolesByName roles("FalconForCausalLM", {matrix("transformer.h.0.mlp.dense_h_to_4h.weight")});
  EXPECT_EQ(roles["transformer.h.0.mlp.dense_h_to_4h.weight"].role, Role::other);
  EXPECT_EQ(roles["transformer.h.0.mlp.dense_h_to_4h.weight"].why, "not exactly nn.Linear");
}

// transformers renames this model's `head.weight` by that whole name, a word boundary at its end.
TEST(Architectures, CompanionsHaveToFollowARenamedWeight) {
  const TensorInfo head = matrix("head.weight");
  const auto role = [&](const std::vector<std::string>& companions, bool of_module = false) {
    LoadingRules rules;
    if (!companions.empty())
      rules.companions = [&, of_module](const std::string& weight) {
        std::vector<std::string> names;
        for (const std::string& suffix : companions) names.push_back((of_module ? module_of(weight) : weight) + suffix);
        return names;
      };
    const TensorList tensors{std::span(&head, 1)};
    return make_role_finder({"DeepseekV4ForCausalLM"}, tensors, false, rules)->find(head).role;
  };
  EXPECT_EQ(role({}), Role::output_embeddings);
  EXPECT_EQ(role({".absmax", ".quant_map"}), Role::output_embeddings);
  EXPECT_EQ(role({"_scale"}), Role::other);
  EXPECT_EQ(role({".absmax", "_scale"}), Role::other);
  EXPECT_EQ(role({".SCB"}, /*of_module=*/true), Role::other);
}

// T5 keeps the second layer of its MLPs in fp32 where a model is cast to fp16, Ernie its routers in any 16-bit model.
TEST(Architectures, SaysWhatLoadingKeepsInFp32) {
  const auto kept = [](const char* architecture, const char* name, Shape shape) {
    const TensorInfo tensor{name, DType::f16, std::move(shape)};
    const TensorList tensors{std::span(&tensor, 1)};
    return make_role_finder({architecture}, tensors, false)->find(tensor);
  };
  const char* const t5 = "T5ForConditionalGeneration";
  const FoundRole wo = kept(t5, "encoder.block.1.layer.1.DenseReluDense.wo.weight", {64, 64});
  EXPECT_EQ(wo.kept_in_fp32, KeptInFp32::in_fp16);
  EXPECT_TRUE(is_kept_in_fp32(wo, DType::f16));
  for (const DType other : {DType::bf16, DType::f32, DType::i64}) EXPECT_FALSE(is_kept_in_fp32(wo, other));
  EXPECT_EQ(kept(t5, "encoder.block.1.layer.1.DenseReluDense.wi.weight", {64, 64}).kept_in_fp32, KeptInFp32::never);
  const FoundRole gate = kept("Ernie4_5_MoeForCausalLM", "model.layers.1.mlp.gate.weight", {64, 64});
  EXPECT_EQ(gate.kept_in_fp32, KeptInFp32::in_16_bits);
  EXPECT_TRUE(is_kept_in_fp32(gate, DType::f16) && is_kept_in_fp32(gate, DType::bf16));
  EXPECT_FALSE(is_kept_in_fp32(gate, DType::f32));
  // Vectors, too. What is no weight is cast when it is loaded.
  const FoundRole norm = kept("GptOssForCausalLM", "model.layers.1.input_layernorm.weight", {64});
  EXPECT_EQ(norm.kept_in_fp32, KeptInFp32::in_fp16);
  EXPECT_EQ(norm.role, Role::other);
  EXPECT_EQ(kept("Blip2ForConditionalGeneration", "query_tokens", {1, 64, 64}).kept_in_fp32, KeptInFp32::never);
  EXPECT_EQ(kept("Blip2ForConditionalGeneration", "qformer.layernorm.weight", {64}).kept_in_fp32, KeptInFp32::in_fp16);
}

// PI0's renames take the names of its modules for older ones. transformers then falls back to the name in the file, but
// not for the tensors beside a weight.
TEST(Architectures, CompanionsHaveToKeepTheNamesOfAWeightThatDoes) {
  const TensorInfo layer = matrix("embed_action_time.state_proj.weight");
  const TensorList tensors{std::span(&layer, 1)};
  LoadingRules rules;
  const auto found = [&] {
    return make_role_finder({"PI0ForConditionalGeneration"}, tensors, false, rules)->find(layer);
  };
  EXPECT_EQ(found().role, Role::linear);
  rules.companions = [](const std::string& weight) { return std::vector{weight + ".absmax"}; };
  EXPECT_EQ(found().role, Role::other);
  EXPECT_EQ(found().keeps, std::vector<std::string>{module_of(layer.name)});
}

// What a loader replaces has to be named where it stays plain, whether nibble would quantize it or not.
TEST(Architectures, LoadersThatReplaceEveryLinearLayerHaveToBeToldOfIt) {
  const TensorInfo wo = matrix("encoder.block.1.layer.1.DenseReluDense.wo.weight");
  const TensorList tensors{std::span(&wo, 1)};
  LoadingRules rules;
  rules.replaces_every_linear = true;
  const FoundRole found = make_role_finder({"T5ForConditionalGeneration"}, tensors, false, rules)->find(wo);
  EXPECT_EQ(found.role, Role::other);
  EXPECT_EQ(found.keeps, std::vector<std::string>{"encoder.block.1.layer.1.DenseReluDense.wo"});
  EXPECT_TRUE(make_role_finder({"T5ForConditionalGeneration"}, tensors, false)->find(wo).keeps.empty());
}

// Mamba multiplies by dt_proj.weight itself. Every loader would replace the layer, so all of them have to be told.
TEST(Architectures, LayersWhoseWeightIsUsedOutsideStayPlain) {
  const std::string dt_proj = "backbone.layers.1.mixer.dt_proj";
  const std::vector<TensorInfo> tensors{matrix(dt_proj + ".weight"), matrix("backbone.layers.1.mixer.x_proj.weight")};
  const TensorList list{std::span(tensors)};
  for (const bool replaces_every_linear : {false, true}) {
    LoadingRules rules;
    rules.replaces_every_linear = replaces_every_linear;
    const auto finder = make_role_finder({"MambaForCausalLM"}, list, false, rules);
    EXPECT_EQ(finder->find(tensors[0]).role, Role::other);
    EXPECT_EQ(finder->find(tensors[0]).why, "weight used outside the layer");
    EXPECT_EQ(finder->find(tensors[0]).keeps, std::vector<std::string>{dt_proj});
    EXPECT_EQ(finder->find(tensors[1]).role, Role::linear);
  }
}

// MobileBERT joins the weights of two layers. One is the output layer, which may be tied to the embeddings; then it is
// not in the file, and has to be among the layers that loading leaves plain.
TEST(Architectures, AnOutputLayerWhoseWeightIsUsedOutsideIsNeverQuantized) {
  const std::string decoder = "cls.predictions.decoder", dense = "cls.predictions.dense";
  const std::vector<TensorInfo> tensors{matrix(decoder + ".weight", 128, 32), matrix(dense + ".weight", 128, 96)};
  const RolesByName roles("MobileBertForMaskedLM", tensors);
  for (const std::string& layer : {decoder, dense}) {
    EXPECT_EQ(roles[layer + ".weight"].role, Role::other) << layer;
    EXPECT_EQ(roles[layer + ".weight"].keeps, std::vector<std::string>{layer});
  }
  EXPECT_EQ(RolesByName("MobileBertForMaskedLM", tensors, true)[decoder + ".weight"].why, "tied weights");
  const auto skips = default_skips({"MobileBertForMaskedLM"}, true);
  ASSERT_TRUE(skips);
  EXPECT_TRUE(std::ranges::any_of(*skips, [&](const DefaultSkip& skip) { return skip.pattern == decoder; }));
}

TEST(Architectures, OlderVisionNamesAreRenamed) {
  const RolesByName roles("ViTForImageClassification", {matrix("vit.encoder.layer.2.attention.attention.query.weight"),
                                                        matrix("vit.encoder.layer.2.output.dense.weight"),
                                                        {"vit.embeddings.cls_token", DType::f32, {1, 1, 64}}});
  EXPECT_EQ(roles["vit.encoder.layer.2.attention.attention.query.weight"].role, Role::linear);
  EXPECT_EQ(roles["vit.encoder.layer.2.attention.attention.query.weight"].module, "vit.layers.2.attention.q_proj");
  EXPECT_EQ(roles["vit.encoder.layer.2.output.dense.weight"].module, "vit.layers.2.mlp.fc2");
  EXPECT_EQ(roles["vit.embeddings.cls_token"].role, Role::other);
}

TEST(Architectures, WhisperKeepsItsProjection) {
  const RolesByName roles("WhisperForConditionalGeneration",
                          {matrix("model.decoder.layers.1.encoder_attn.k_proj.weight"),
                           matrix("model.encoder.embed_positions.weight"), matrix("proj_out.weight")});
  EXPECT_EQ(roles["model.decoder.layers.1.encoder_attn.k_proj.weight"].role, Role::linear);
  EXPECT_EQ(roles["proj_out.weight"].role, Role::output_embeddings);
  EXPECT_EQ(roles["model.encoder.embed_positions.weight"].role, Role::embedding);
}

TEST(Architectures, LastParameterIsThatOfTheLastLayerInTheFile) {
  const RolesByName roles("OlmoModel",
                          {matrix("layers.2.mlp.down_proj.weight"), matrix("layers.10.mlp.down_proj.weight"),
                           matrix("layers.9.mlp.down_proj.weight"), matrix("layers.10.mlp.up_proj.weight")});
  EXPECT_EQ(roles["layers.10.mlp.down_proj.weight"].role, Role::kept);
  EXPECT_EQ(roles["layers.10.mlp.down_proj.weight"].why, "last parameter");
  EXPECT_EQ(roles["layers.9.mlp.down_proj.weight"].role, Role::linear);
  EXPECT_EQ(roles["layers.2.mlp.down_proj.weight"].role, Role::linear);
  EXPECT_EQ(roles["layers.10.mlp.up_proj.weight"].role, Role::linear);
}

TEST(Architectures, FusedExpertsThatLoadingSplitsAreAnObstacle) {
  EXPECT_FALSE(loading_obstacle({"Llama4ForConditionalGeneration"}).empty());
  EXPECT_TRUE(loading_obstacle({"LlamaForCausalLM"}).empty());
  EXPECT_TRUE(loading_obstacle({"Unheard"}).empty());
}

TEST(Architectures, MergedWeightKeepsTheLayersItFills) {
  const RolesByName roles("Dinov2Model", {matrix("encoder.layer.0.mlp.weights_in.weight", 128, 64)});
  const FoundRole& merged = roles["encoder.layer.0.mlp.weights_in.weight"];
  EXPECT_EQ(merged.role, Role::other);
  EXPECT_EQ(merged.keeps, (std::vector<std::string>{"encoder.layer.0.mlp.gate_proj", "encoder.layer.0.mlp.up_proj"}));
}

// LLaVA with DINOv2: transformers renames what is in those layers, so all of them have to stay plain.
TEST(Architectures, UnknownLayersKeepTheWholeListOfThem) {
  const std::string query = "model.vision_tower.encoder.layer.3.attention.attention.query";
  const std::string dense = "model.language_model.layers.0.self_attn.dense", odd = "model.language_model.new.dense";
  const std::vector<TensorInfo> tensors{matrix(query + ".weight"), matrix(dense + ".weight"), matrix(odd + ".weight")};
  const RolesByName roles("LlavaForConditionalGeneration", tensors);
  EXPECT_EQ(roles[query + ".weight"].role, Role::unknown);
  EXPECT_EQ(roles[query + ".weight"].keeps, (std::vector<std::string>{query, "model.vision_tower.encoder.layer"}));
  EXPECT_EQ(roles[dense + ".weight"].keeps, std::vector<std::string>{dense});
  EXPECT_EQ(roles[odd + ".weight"].keeps, std::vector<std::string>{odd});

  LoadingRules names_alone;
  names_alone.replaces_every_linear = true;
  const TensorList list{std::span(tensors)};
  EXPECT_EQ(make_role_finder({"LlavaForConditionalGeneration"}, list, false, names_alone)->find(tensors[0]).keeps,
            std::vector<std::string>{query});
}

// transformers looks for "weight" in the names of quantized tensors, and finds it in the name of the layer.
TEST(Architectures, QuantizedLayersCannotBeNamedWeight) {
  const TensorInfo layer = matrix("model.language_model.layers.0.attn_hyper_connection.block_inject_weight.weight");
  const TensorList tensors{std::span(&layer, 1)};
  LoadingRules rules;
  EXPECT_EQ(make_role_finder({"Qwen4ExpForConditionalGeneration"}, tensors, false, rules)->find(layer).role,
            Role::linear);
  rules.companions = [](const std::string& weight) { return std::vector{weight + ".absmax"}; };
  const FoundRole found = make_role_finder({"Qwen4ExpForConditionalGeneration"}, tensors, false, rules)->find(layer);
  EXPECT_EQ(found.role, Role::other);
  EXPECT_EQ(found.keeps, std::vector<std::string>{module_of(layer.name)});
}

TEST(Architectures, OnlyMatricesOfWeightTypesAreLinear) {
  const RolesByName roles("LlamaForCausalLM", {{"model.layers.0.mlp.up_proj.weight", DType::i8, {64, 64}},
                                               {"model.layers.1.mlp.up_proj.weight", DType::bf16, {4, 4, 64}}});
  for (const char* name : {"model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"}) {
    EXPECT_EQ(roles[name].role, Role::other) << name;
    EXPECT_EQ(roles[name].keeps.size(), 1u) << name;
  }
}

TEST(Architectures, ManyNamesAreQuick) {
  std::vector<TensorInfo> tensors;
  for (int layer = 0; layer < 100; ++layer)
    for (int expert = 0; expert < 333; ++expert)
      for (const char* part : {"w1", "w2", "w3"})
        tensors.push_back(
            matrix(fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}.weight", layer, expert, part)));
  const auto found = roles_by_architecture("MixtralForCausalLM", tensors, false);
  ASSERT_TRUE(found);
  EXPECT_TRUE(std::all_of(found->begin(), found->end(), [](const FoundRole& p) { return p.role == Role::expert; }));
  EXPECT_EQ(found->back().module, "model.layers.99.mlp.experts.gate_up_proj");
}

}  // namespace
}  // namespace nibble::architectures_test
