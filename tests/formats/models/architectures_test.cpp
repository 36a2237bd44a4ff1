#include "formats/models/architectures.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

namespace nibble::architectures_test {
namespace {

TensorInfo matrix(std::string name, std::uint64_t rows = 64, std::uint64_t columns = 64) {
  return {std::move(name), DType::bf16, {rows, columns}};
}

using Places = std::vector<Placement>;

std::optional<Places> place_by_architecture(std::string_view architecture, const std::vector<TensorInfo>& tensors,
                                            bool tied) {
  const TensorList list{std::span(tensors)};
  const auto placer = make_placer(architecture, list, tied);
  if (!placer) return std::nullopt;
  Places places;
  for (const TensorInfo& tensor : tensors) places.push_back(placer->place(tensor));
  return places;
}

// Placements by stored name. Fails the test if the table lacks the architecture.
class Placed {
 public:
  Placed(std::string_view architecture, std::vector<TensorInfo> tensors, bool tied = false) {
    const auto places = place_by_architecture(architecture, tensors, tied);
    EXPECT_TRUE(places) << architecture;
    if (!places) return;
    EXPECT_EQ(places->size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) places_[tensors[i].name] = (*places)[i];
  }
  const Placement& operator[](const std::string& name) const { return places_.at(name); }

 private:
  std::map<std::string, Placement> places_;
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
  EXPECT_FALSE(place_by_architecture("NoSuchModel", llama(), false));
  EXPECT_FALSE(place_by_architecture("", llama(), false));
  EXPECT_FALSE(place_by_architecture("Llama\",\"", llama(), false));
  EXPECT_FALSE(place_by_architecture("LlamaForCausal", llama(), false));
}

TEST(Architectures, LlamaKeepsItsHead) {
  const Placed placed("LlamaForCausalLM", llama());
  EXPECT_EQ(placed["model.layers.0.mlp.down_proj.weight"].role, Role::linear);
  EXPECT_EQ(placed["model.layers.0.mlp.down_proj.weight"].module, "model.layers.0.mlp.down_proj");
  EXPECT_EQ(placed["model.layers.0.self_attn.q_proj.weight"].role, Role::linear);
  EXPECT_EQ(placed["lm_head.weight"].role, Role::output_embeddings);
  EXPECT_EQ(placed["lm_head.weight"].keeps, std::vector<std::string>{"lm_head"});
  EXPECT_EQ(placed["model.embed_tokens.weight"].role, Role::embedding);
  EXPECT_EQ(placed["model.embed_tokens.weight"].module, "model.embed_tokens");
  EXPECT_EQ(placed["model.norm.weight"].role, Role::other);
}

TEST(Architectures, TiedHeadIsNoLayerOfItsOwn) {
  const Placed placed("LlamaForCausalLM", llama(), true);
  EXPECT_EQ(placed["lm_head.weight"].role, Role::other);
  EXPECT_EQ(placed["lm_head.weight"].why, "tied weights");
}

TEST(Architectures, BaseModelsNamesGainOrLoseThePrefix) {
  const std::string stored = "encoder.layer.3.attention.self.query.weight";
  const Placed base("BertModel", {matrix(stored), matrix("bert." + stored), matrix("pooler.dense.weight")});
  EXPECT_EQ(base[stored].role, Role::linear);
  EXPECT_EQ(base["bert." + stored].role, Role::linear);
  EXPECT_EQ(base["bert." + stored].module, "encoder.layer.3.attention.self.query");
  EXPECT_EQ(base["pooler.dense.weight"].role, Role::linear);

  const Placed head("BertForMaskedLM",
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
  const Placed placed("GPT2LMHeadModel", {matrix("h.0.attn.c_attn.weight", 64, 192),
                                          matrix("wte.weight"),
                                          matrix("transformer.h.0.mlp.c_fc.weight", 64, 256),
                                          {"h.0.attn.bias", DType::f32, {1, 1, 64, 64}}});
  EXPECT_EQ(placed["h.0.attn.c_attn.weight"].role, Role::conv1d);
  EXPECT_EQ(placed["h.0.attn.c_attn.weight"].module, "transformer.h.0.attn.c_attn");
  EXPECT_EQ(placed["transformer.h.0.mlp.c_fc.weight"].role, Role::conv1d);
  EXPECT_EQ(placed["wte.weight"].role, Role::embedding);
  EXPECT_EQ(placed["h.0.attn.bias"].role, Role::unknown);
  EXPECT_TRUE(placed["h.0.attn.bias"].keeps.empty());
}

TEST(Architectures, T5KeepsWoInFullPrecision) {
  const Placed placed("T5ForConditionalGeneration",
                      {matrix("encoder.block.1.layer.1.DenseReluDense.wo.weight"),
                       matrix("encoder.block.1.layer.1.DenseReluDense.wi.weight"), matrix("shared.weight")});
  EXPECT_EQ(placed["encoder.block.1.layer.1.DenseReluDense.wo.weight"].role, Role::other);
  EXPECT_EQ(placed["encoder.block.1.layer.1.DenseReluDense.wo.weight"].why, "kept in fp32");
  EXPECT_EQ(placed["encoder.block.1.layer.1.DenseReluDense.wi.weight"].role, Role::linear);
  EXPECT_EQ(placed["shared.weight"].role, Role::embedding);
}

TEST(Architectures, MixtralsExpertsAreMergedOnLoading) {
  const Placed placed("MixtralForCausalLM", {matrix("model.layers.0.block_sparse_moe.experts.7.w1.weight"),
                                             matrix("model.layers.0.block_sparse_moe.experts.7.w2.weight"),
                                             matrix("model.layers.0.block_sparse_moe.gate.weight"),
                                             matrix("model.layers.0.self_attn.o_proj.weight")});
  EXPECT_EQ(placed["model.layers.0.block_sparse_moe.experts.7.w1.weight"].role, Role::expert);
  EXPECT_EQ(placed["model.layers.0.block_sparse_moe.experts.7.w1.weight"].module,
            "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(placed["model.layers.0.block_sparse_moe.experts.7.w2.weight"].role, Role::expert);
  EXPECT_EQ(placed["model.layers.0.block_sparse_moe.gate.weight"].role, Role::other);
  EXPECT_EQ(placed["model.layers.0.self_attn.o_proj.weight"].role, Role::linear);
}

TEST(Architectures, Qwen3MoeTakesFusedAndSingleExperts) {
  const Placed placed("Qwen3MoeForCausalLM", {{"model.layers.0.mlp.experts.gate_up_proj", DType::bf16, {8, 64, 64}},
                                              matrix("model.layers.0.mlp.experts.3.up_proj.weight"),
                                              matrix("model.layers.0.mlp.gate.weight"),
                                              matrix("model.layers.1.mlp.up_proj.weight")});
  EXPECT_EQ(placed["model.layers.0.mlp.experts.gate_up_proj"].role, Role::expert);
  EXPECT_EQ(placed["model.layers.0.mlp.experts.3.up_proj.weight"].role, Role::expert);
  EXPECT_TRUE(placed["model.layers.0.mlp.experts.3.up_proj.weight"].keeps.empty());
  EXPECT_EQ(placed["model.layers.0.mlp.gate.weight"].role, Role::other);
  EXPECT_EQ(placed["model.layers.1.mlp.up_proj.weight"].role, Role::linear);  // with mlp_only_layers
}

TEST(Architectures, FalconsOwnLinearIsNotReplaced) {
  const Placed placed("FalconForCausalLM", {matrix("transformer.h.0.mlp.dense_h_to_4h.weight")});
  EXPECT_EQ(placed["transformer.h.0.mlp.dense_h_to_4h.weight"].role, Role::other);
  EXPECT_EQ(placed["transformer.h.0.mlp.dense_h_to_4h.weight"].why, "not exactly nn.Linear");
}

TEST(Architectures, OlderVisionNamesAreRenamed) {
  const Placed placed("ViTForImageClassification", {matrix("vit.encoder.layer.2.attention.attention.query.weight"),
                                                    matrix("vit.encoder.layer.2.output.dense.weight"),
                                                    {"vit.embeddings.cls_token", DType::f32, {1, 1, 64}}});
  EXPECT_EQ(placed["vit.encoder.layer.2.attention.attention.query.weight"].role, Role::linear);
  EXPECT_EQ(placed["vit.encoder.layer.2.attention.attention.query.weight"].module, "vit.layers.2.attention.q_proj");
  EXPECT_EQ(placed["vit.encoder.layer.2.output.dense.weight"].module, "vit.layers.2.mlp.fc2");
  EXPECT_EQ(placed["vit.embeddings.cls_token"].role, Role::other);
}

TEST(Architectures, WhisperKeepsItsProjection) {
  const Placed placed("WhisperForConditionalGeneration",
                      {matrix("model.decoder.layers.1.encoder_attn.k_proj.weight"),
                       matrix("model.encoder.embed_positions.weight"), matrix("proj_out.weight")});
  EXPECT_EQ(placed["model.decoder.layers.1.encoder_attn.k_proj.weight"].role, Role::linear);
  EXPECT_EQ(placed["proj_out.weight"].role, Role::output_embeddings);
  EXPECT_EQ(placed["model.encoder.embed_positions.weight"].role, Role::embedding);
}

TEST(Architectures, LastParameterIsThatOfTheLastLayerInTheFile) {
  const Placed placed("OlmoModel", {matrix("layers.2.mlp.down_proj.weight"), matrix("layers.10.mlp.down_proj.weight"),
                                    matrix("layers.9.mlp.down_proj.weight"), matrix("layers.10.mlp.up_proj.weight")});
  EXPECT_EQ(placed["layers.10.mlp.down_proj.weight"].role, Role::kept);
  EXPECT_EQ(placed["layers.10.mlp.down_proj.weight"].why, "last parameter");
  EXPECT_EQ(placed["layers.9.mlp.down_proj.weight"].role, Role::linear);
  EXPECT_EQ(placed["layers.2.mlp.down_proj.weight"].role, Role::linear);
  EXPECT_EQ(placed["layers.10.mlp.up_proj.weight"].role, Role::linear);
}

TEST(Architectures, FusedExpertsThatLoadingSplitsAreAnObstacle) {
  EXPECT_FALSE(loading_obstacle("Llama4ForConditionalGeneration").empty());
  EXPECT_TRUE(loading_obstacle("LlamaForCausalLM").empty());
  EXPECT_TRUE(loading_obstacle("Unheard").empty());
}

TEST(Architectures, MergedWeightKeepsTheLayersItFills) {
  const Placed placed("Dinov2Model", {matrix("encoder.layer.0.mlp.weights_in.weight", 128, 64)});
  const Placement& merged = placed["encoder.layer.0.mlp.weights_in.weight"];
  EXPECT_EQ(merged.role, Role::other);
  EXPECT_EQ(merged.keeps, (std::vector<std::string>{"encoder.layer.0.mlp.gate_proj", "encoder.layer.0.mlp.up_proj"}));
}

TEST(Architectures, OnlyMatricesOfWeightTypesAreLinear) {
  const Placed placed("LlamaForCausalLM", {{"model.layers.0.mlp.up_proj.weight", DType::i8, {64, 64}},
                                           {"model.layers.1.mlp.up_proj.weight", DType::bf16, {4, 4, 64}}});
  for (const char* name : {"model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"}) {
    EXPECT_EQ(placed[name].role, Role::other) << name;
    EXPECT_EQ(placed[name].keeps.size(), 1u) << name;
  }
}

TEST(Architectures, ManyNamesAreQuick) {
  std::vector<TensorInfo> tensors;
  for (int layer = 0; layer < 100; ++layer)
    for (int expert = 0; expert < 333; ++expert)
      for (const char* part : {"w1", "w2", "w3"})
        tensors.push_back(
            matrix(fmt::format("model.layers.{}.block_sparse_moe.experts.{}.{}.weight", layer, expert, part)));
  const auto places = place_by_architecture("MixtralForCausalLM", tensors, false);
  ASSERT_TRUE(places);
  EXPECT_TRUE(std::all_of(places->begin(), places->end(), [](const Placement& p) { return p.role == Role::expert; }));
  EXPECT_EQ(places->back().module, "model.layers.99.mlp.experts.gate_up_proj");
}

}  // namespace
}  // namespace nibble::architectures_test
