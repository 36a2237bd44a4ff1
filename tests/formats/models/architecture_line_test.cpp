#include "formats/models/architecture_line.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "formats/models/architectures.hpp"

namespace nibble::architecture_line_test {
namespace {

using Types = std::map<std::string, std::string>;
using testing::Contains;
using testing::Each;
using testing::Not;
using testing::StartsWith;

std::vector<std::string> patterns(const ArchitectureLine& line) {
  std::vector<std::string> result;
  for (const RolePattern& entry : line.patterns) result.push_back(entry.pattern);
  return result;
}

std::vector<std::string> patterns(const std::string& architecture, const Types& types = {}) {
  return patterns(find_architecture_line({architecture, types}).value());
}

std::optional<Why> why(const std::string& architecture, const Types& types, const std::string& pattern) {
  const auto line = find_architecture_line({architecture, types});
  const auto found = std::ranges::find(line->patterns, pattern, &RolePattern::pattern);
  return found == line->patterns.end() ? std::nullopt : std::optional(found->why);
}

// The parameter that a stored tensor is loaded into, without ".weight".
std::string module(const std::string& architecture, const Types& types, const std::string& stored) {
  const std::vector<TensorInfo> tensors{{stored, DType::bf16, {64, 64}}};
  return make_role_finder({architecture, types}, TensorList{std::span(tensors)}, false)->find(tensors[0]).module;
}

TEST(ArchitectureLine, OfNoClassInTheTableIsNothing) {
  for (const char* name : {"Unheard", "", "LlamaForCausalLM\",", "AutoModel"})
    EXPECT_FALSE(find_architecture_line({name})) << name;
}

TEST(ArchitectureLine, ReasonsAreThoseOfTheTable) {
  EXPECT_EQ(text_of(Why::linear), "linear layer");
  EXPECT_EQ(text_of(Why::tied_weights), "tied weights");
}

TEST(ArchitectureLine, DefaultPartsChangeNothing) {
  const auto line = find_architecture_line(
      {"LlavaForConditionalGeneration", {{"text_config", "llama"}, {"vision_config", "clip_vision_model"}}});
  EXPECT_EQ(patterns(*line), patterns("LlavaForConditionalGeneration"));
  EXPECT_FALSE(line->has_other_parts);
  EXPECT_FALSE(has_other_parts({"LlavaForConditionalGeneration", {{"text_config", "llama"}, {"other", "phi"}}}));
}

TEST(ArchitectureLine, AnotherPartTakesThePlaceOfTheDefault) {
  const std::string llava = "LlavaForConditionalGeneration";
  const auto line = find_architecture_line({llava, {{"text_config", "phi"}}});
  EXPECT_THAT(patterns(*line), Contains("model.language_model.layers.*.mlp.fc1"));
  EXPECT_THAT(patterns(*line), Not(Contains("model.language_model.layers.*.mlp.gate_proj")));
  EXPECT_THAT(patterns(*line), Contains("model.vision_tower.encoder.layers.*.mlp.fc1"));
  EXPECT_THAT(patterns(*line), Contains("lm_head"));
  EXPECT_TRUE(line->has_other_parts);
  EXPECT_TRUE(has_other_parts({llava, {{"text_config", "phi"}}}));
}

// Released files have types that never were, such as Kimi-K2.5's kimi_k2. What the file has of the default part's
// layers is taken for them, and a list says which of them stay plain.
TEST(ArchitectureLine, APartOfAnUnknownTypeIsTheDefault) {
  const Types unheard{{"vision_config", "unheard"}};
  EXPECT_EQ(patterns("LlavaForConditionalGeneration", unheard), patterns("LlavaForConditionalGeneration"));
  EXPECT_TRUE(has_other_parts({"LlavaForConditionalGeneration", unheard}));
}

// The table has no line of timm's models. Their layers are not those of the default.
TEST(ArchitectureLine, APartOfAClassWithoutALineHasNoLayers) {
  const std::vector<std::string> found =
      patterns("UperNetForSemanticSegmentation", {{"backbone_config", "timm_backbone"}});
  EXPECT_THAT(found, Each(Not(StartsWith("backbone."))));
  EXPECT_THAT(found, Contains("decode_head.classifier.weight"));
}

// Qwen3-VL's tower is of one class: what config.json says of its type does not count. Files on the hub say qwen3_vl,
// the type of the whole.
TEST(ArchitectureLine, SomePartsAreNotOfTheClassOfTheirType) {
  EXPECT_FALSE(has_other_parts({"Qwen3VLForConditionalGeneration", {{"vision_config", "qwen3_vl"}}}));
  EXPECT_FALSE(has_other_parts({"HyperCLOVAXVisionV2ForConditionalGeneration", {{"vision_config", "qwen2_5_vl"}}}));
}

// MaskFormer's own Swin has the names of Swin's files, so that the renames of Swin take the codes from their weights.
// They apply only if config.json says swin, and not if it says maskformer-swin, as transformers writes.
TEST(ArchitectureLine, RulesOfAPartAreThoseOfItsType) {
  const std::string stored = "model.pixel_level_module.encoder.model.encoder.layers.0.blocks.0.attention.self.query";
  const TensorInfo query{stored + ".weight", DType::bf16, {64, 64}};
  const TensorList tensors{std::span(&query, 1)};
  LoadingRules rules;
  rules.companions = [](const std::string& weight) { return std::vector{weight + ".absmax"}; };
  const auto role = [&](const char* type) {
    const ModelClass model{"MaskFormerForInstanceSegmentation", {{"backbone_config", type}}};
    return make_role_finder(model, tensors, false, rules)->find(query).role;
  };
  EXPECT_EQ(role("swin"), Role::other);
  EXPECT_EQ(role("maskformer-swin"), Role::linear);
}

// There is one where they are of different widths.
TEST(ArchitectureLine, HasTheProjectionBetweenEncoderAndDecoder) {
  for (const char* name : {"EncoderDecoderModel", "SpeechEncoderDecoderModel", "VisionEncoderDecoderModel"})
    EXPECT_EQ(why(name, {}, "enc_to_dec_proj"), Why::linear) << name;
}

// BLIP-2 asks a second auto class for a language model that is no decoder.
TEST(ArchitectureLine, AutoClassesAreAskedInTurn) {
  const Types t5{{"text_config", "t5"}};
  EXPECT_EQ(why("Blip2ForConditionalGeneration", t5, "language_model.encoder.block.*.layer.0.SelfAttention.q"),
            std::nullopt);
  EXPECT_EQ(why("Blip2ForConditionalGeneration", t5, "language_model.encoder.block.*.layer.*.SelfAttention.q"),
            Why::linear);
  EXPECT_EQ(why("Blip2ForConditionalGeneration", t5, "language_model.lm_head"), Why::output_embeddings);
  EXPECT_THAT(patterns("Blip2ForConditionalGeneration", t5), Each(Not(StartsWith("language_model.model."))));
  const Types llama{{"text_config", "llama"}};
  EXPECT_EQ(why("InstructBlipForConditionalGeneration", llama, "language_model.model.layers.*.self_attn.q_proj"),
            Why::linear);
}

// SigLIP's tower is the default of ColPali, whose language model and tower are parts of a part.
TEST(ArchitectureLine, PartsOfPartsAreFoundByTheirPath) {
  const Types text{{"vlm_config.text_config", "phi"}};
  EXPECT_EQ(why("ColPaliForRetrieval", text, "vlm.language_model.layers.*.mlp.fc1"), Why::linear);
  EXPECT_THAT(patterns("ColPaliForRetrieval", text), Contains("vlm.vision_tower.encoder.layers.*.mlp.fc1"));
  EXPECT_TRUE(has_other_parts({"ColPaliForRetrieval", text}));
  // another class at "vlm", and another one in it
  const Types both{{"vlm_config", "llava"}, {"vlm_config.text_config", "phi"}, {"text_config", "bert"}};
  EXPECT_EQ(why("ColPaliForRetrieval", both, "vlm.language_model.layers.*.mlp.fc1"), Why::linear);
  EXPECT_EQ(why("ColPaliForRetrieval", both, "vlm.multi_modal_projector.linear_1"), Why::linear);
}

// The last parameter of a language model, which transformers leaves plain, may not be that of the whole.
TEST(ArchitectureLine, OnlyTheLastParameterOfTheWholeIsKept) {
  ASSERT_EQ(why("EmbeddingGemma2TextModel", {}, "embedding_projection"), Why::last_parameter);
  const Types text{{"text_config", "embedding_gemma2_text"}};
  EXPECT_EQ(why("LlavaForConditionalGeneration", text, "model.language_model.embedding_projection"), Why::linear);
  EXPECT_EQ(why("HyperCLOVAXVisionV2Model", text, "language_model.embedding_projection"), Why::last_parameter);
}

// DINOv2's tensors have other names in files, wherever it is in a model.
TEST(ArchitectureLine, PartsAreLoadedByTheirOwnRules) {
  const std::string stored = "encoder.layer.0.attention.attention.query.weight";
  EXPECT_EQ(module("LlavaForConditionalGeneration", {{"vision_config", "dinov2"}}, "model.vision_tower." + stored),
            "model.vision_tower.encoder.layer.0.attention.q_proj");
  EXPECT_EQ(module("DPTForDepthEstimation", {{"backbone_config", "dinov2"}}, "backbone." + stored),
            "backbone.encoder.layer.0.attention.q_proj");
  // Two rules: one for the part, and one for the model in it.
  EXPECT_EQ(module("UperNetForSemanticSegmentation", {{"backbone_config", "swin"}},
                   "backbone.encoder.layers.0.blocks.0.attention.self.query.weight"),
            "backbone.swin.encoder.layers.0.blocks.0.attention.q_proj");
  // A rule for a tower of the part, which is below its base model.
  EXPECT_EQ(module("EncoderDecoderModel", {{"decoder", "gemma3"}},
                   "decoder.model.vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight"),
            "decoder.model.vision_tower.encoder.layers.0.mlp.fc1");
}

TEST(ArchitectureLine, HasWhatItsPartsKeepInFp32) {
  const std::string blip = "InstructBlipForConditionalGeneration";
  EXPECT_THAT(find_architecture_line({blip, {{"text_config", "t5"}}})->fp32, Contains("wo"));
  EXPECT_THAT(find_architecture_line({blip})->fp32, Not(Contains("wo")));
  EXPECT_THAT(find_architecture_line({blip, {{"text_config", "ernie4_5_moe"}}})->fp32_strict, Contains("gate.weight"));
  // a default part, and without it
  EXPECT_THAT(find_architecture_line({"MusicgenForConditionalGeneration"})->fp32, Contains("wo"));
  EXPECT_TRUE(find_architecture_line({"MusicgenForConditionalGeneration", {{"text_encoder", "bert"}}})->fp32.empty());
}

TEST(ArchitectureLine, TiedWeightsAreThoseOfTheParts) {
  const auto tied = [](const char* type) {
    std::vector<std::string> result;
    const auto line = find_architecture_line({"InstructBlipForConditionalGeneration", {{"text_config", type}}});
    for (const auto& [pattern, why] : line->tied) result.push_back(pattern);
    return result;
  };
  EXPECT_THAT(tied("opt"), Contains("language_model.lm_head"));  // the default
  EXPECT_THAT(tied("biogpt"), Contains("language_model.output_projection"));
  EXPECT_THAT(tied("biogpt"), Not(Contains("language_model.lm_head")));
}

TEST(ArchitectureLine, WhatAPartCannotDoTheWholeCannotEither) {
  const std::string llava = "LlavaForConditionalGeneration";
  EXPECT_EQ(loading_obstacle({llava, {{"text_config", "llama4_text"}}}), loading_obstacle({"Llama4TextModel"}));
  EXPECT_FALSE(loading_obstacle({llava, {{"text_config", "llama4_text"}}}).empty());
}

// Those of a part that is not there would rename tensors of the one that is.
TEST(ArchitectureLine, RulesOfAReplacedPartAreGone) {
  const auto scopes = [](const Types& types) {
    std::vector<std::string> result;
    const auto line = find_architecture_line({"LlavaForConditionalGeneration", types});
    for (const NameRule& rule : line->renames)
      if (rule.scope) result.push_back(*rule.scope);
    return result;
  };
  EXPECT_THAT(scopes({}), Contains("vision_tower"));
  EXPECT_THAT(scopes({{"vision_config", "pixtral"}}), Not(Contains("vision_tower")));
}

}  // namespace
}  // namespace nibble::architecture_line_test
