#include "formats/adapters/tensor_updates.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "tests/support/adapter.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::tensor_updates_test {
namespace {

using test::AdapterMaker;
using test::error_of;
using testing::EndsWith;
using testing::HasSubstr;

// A base whose tensors are named only, of an architecture that the table knows, or of none.
class Base {
 public:
  Base(std::initializer_list<TensorInfo> tensors, std::string_view architecture = "")
      : guessed(architecture.empty()),
        layers_(embedding_layers({std::string(architecture)})),
        tensors_(tensors),
        roles_(architecture.empty() ? make_role_finder_by_name(tensors_)
                                    : make_role_finder({std::string(architecture)}, tensors_, false)) {}

  [[nodiscard]] std::vector<TensorUpdate> plan(const Adapter& adapter) const {
    AdapterBase base{"base", tensors_, *roles_};
    base.turned_conv1d = turned;
    base.tied = tied;
    base.guessed = guessed;
    base.layers = layers_;
    return plan_updates(adapter, base);
  }
  [[nodiscard]] std::string refusal(AdapterMaker& maker) const {
    const Adapter adapter = maker.make();
    return error_of([&] { (void)plan(adapter); });
  }

  std::vector<bool> turned;
  bool tied = false, guessed;

 private:
  EmbeddingLayers layers_;
  TensorList tensors_;
  std::unique_ptr<RoleFinder> roles_;
};

TensorInfo weight(std::string name, Shape shape) { return {std::move(name), DType::bf16, std::move(shape)}; }

const Base& llama() {
  static const Base base(
      {weight("model.embed_tokens.weight", {100, 64}), weight("model.layers.0.self_attn.q_proj.bias", {64}),
       weight("model.layers.0.self_attn.q_proj.weight", {64, 64}),
       weight("model.layers.0.mlp.down_proj.weight", {64, 96}), weight("model.norm.weight", {64})},
      "LlamaForCausalLM");
  return base;
}
const std::string q = "model.layers.0.self_attn.q_proj", down = "model.layers.0.mlp.down_proj";

TEST(TensorUpdates, ALinearLayer) {
  const Adapter adapter = AdapterMaker(R"("r":4,"lora_alpha":8,"alpha_pattern":{"q_proj":2})")
                              .add_low_rank(down, 64, 96, 4)
                              .add_low_rank(q, 64, 64, 4)
                              .make();
  const auto updates = llama().plan(adapter);
  ASSERT_EQ(updates.size(), 2u);
  EXPECT_EQ(updates[0].tensor, 2u);  // in the order of the base
  EXPECT_EQ(updates[1].tensor, 3u);
  ASSERT_TRUE(updates[0].low_rank && updates[1].low_rank);
  EXPECT_EQ(updates[0].low_rank->scale, 0.5);
  EXPECT_EQ(updates[1].low_rank->scale, 2.0);
  EXPECT_EQ(updates[1].low_rank->rank, 4u);
  EXPECT_FALSE(updates[0].low_rank->transposed);
  EXPECT_FALSE(updates[1].low_rank->transposed);
  EXPECT_EQ(adapter.weights().tensors().name(updates[1].low_rank->a), "base_model.model." + down + ".lora_A.weight");
  EXPECT_FALSE(updates[1].replacement || updates[1].bias || updates[1].tokens);
}

// peft has reset the setting for layers that it knows better, and saves the value of the last one.
TEST(TensorUpdates, FanInFanOutMeansNothingToALinearLayer) {
  const Adapter adapter = AdapterMaker(R"("r":4,"fan_in_fan_out":true)").add_low_rank(q, 64, 64, 4).make();
  EXPECT_FALSE(llama().plan(adapter)[0].low_rank->transposed);
}

TEST(TensorUpdates, Conv1dStoresInOut) {
  const std::initializer_list<TensorInfo> tensors{weight("transformer.h.0.attn.c_attn.weight", {32, 96}),
                                                  weight("transformer.h.0.attn.c_proj.weight", {32, 32}),
                                                  weight("transformer.wte.weight", {50, 32})};
  Base gpt2(tensors, "GPT2LMHeadModel");
  const Adapter adapter = AdapterMaker(R"("r":2)")
                              .add_low_rank("transformer.h.0.attn.c_attn", 96, 32, 2)
                              .add_low_rank("transformer.h.0.attn.c_proj", 32, 32, 2)
                              .make();
  for (const TensorUpdate& update : gpt2.plan(adapter)) EXPECT_TRUE(update.low_rank->transposed) << update.tensor;
  // Quantized ones may be stored as [out, in].
  gpt2.turned = {true, true, false};
  EXPECT_FALSE(gpt2.plan(adapter)[1].low_rank->transposed);
}

TEST(TensorUpdates, UnknownSquareLayersFollowTheSetting) {
  const Base base({weight("blocks.0.mixer", {8, 8}), weight("blocks.0.mix.weight", {8, 8})}, "LlamaForCausalLM");
  for (const bool fan : {false, true}) {
    const Adapter adapter =
        AdapterMaker(fan ? R"("r":2,"fan_in_fan_out":true)" : R"("r":2)").add_low_rank("blocks.0.mix", 8, 8, 2).make();
    EXPECT_EQ(base.plan(adapter)[0].low_rank->transposed, fan);
  }
}

TEST(TensorUpdates, LayersOfUnknownArchitecturesFollowTheSetting) {
  const Base base({weight("h.0.c_proj.weight", {8, 8}), weight("h.0.c_attn.weight", {8, 24})});
  for (const bool fan : {false, true}) {
    const Adapter adapter = AdapterMaker(fan ? R"("r":2,"fan_in_fan_out":true)" : R"("r":2)")
                                .add_low_rank("h.0.c_proj", 8, 8, 2)
                                .add_low_rank("h.0.c_attn", 24, 8, 2)
                                .make();
    const auto updates = base.plan(adapter);
    EXPECT_EQ(updates[0].low_rank->transposed, fan);
    EXPECT_TRUE(updates[1].low_rank->transposed);
  }
}

TEST(TensorUpdates, Embeddings) {
  const Adapter adapter = AdapterMaker(R"("r":2,"use_dora":true)")
                              .add("model.embed_tokens.lora_embedding_A", {2, 100})
                              .add("model.embed_tokens.lora_embedding_B", {64, 2})
                              .add("model.embed_tokens.lora_magnitude_vector", {64})
                              .add("model.embed_tokens.base_layer.weight", {100, 64})
                              .make();
  const auto updates = llama().plan(adapter);
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_TRUE(updates[0].low_rank->transposed);
  EXPECT_TRUE(updates[0].low_rank->magnitude);
  EXPECT_TRUE(updates[0].replacement);
  const Base square({weight("wte.weight", {8, 8})});
  const Adapter of_square =
      AdapterMaker(R"("r":2)").add("wte.lora_embedding_A", {2, 8}).add("wte.lora_embedding_B", {8, 2}).make();
  EXPECT_TRUE(square.plan(of_square)[0].low_rank->transposed);
}

TEST(TensorUpdates, Convolutions) {
  const Base base({weight("conv.weight", {8, 3, 5, 5}), weight("square.weight", {4, 4, 1, 1})});
  const Adapter adapter = AdapterMaker(R"("r":2)")
                              .add("conv.lora_A.weight", {2, 3, 5, 5})
                              .add("conv.lora_B.weight", {8, 2, 1, 1})
                              .add("square.lora_A.weight", {2, 4, 1, 1})
                              .add("square.lora_B.weight", {4, 2, 1, 1})
                              .make();
  const auto updates = base.plan(adapter);
  ASSERT_EQ(updates.size(), 2u);
  EXPECT_FALSE(updates[0].low_rank->transposed);
  EXPECT_FALSE(updates[1].low_rank->transposed);
  // In groups, B's kernel would be another.
  EXPECT_THAT(
      base.refusal(
          AdapterMaker(R"("r":2)").add("conv.lora_A.weight", {2, 6, 5, 5}).add("conv.lora_B.weight", {8, 2, 1, 1})),
      HasSubstr("'conv.weight' of base is 8 x 3 x 5 x 5"));
}

TEST(TensorUpdates, ReplacementsBiasesAndRows) {
  const Adapter adapter = AdapterMaker(R"("r":2,"lora_alpha":8,"lora_bias":true,"trainable_token_indices":[7,3])")
                              .add_low_rank(q, 64, 64, 2)
                              .add(q + ".lora_B.bias", {64})
                              .add(q + ".base_layer.bias", {64})
                              .add("model.norm.weight", {64})
                              .add("model.embed_tokens.token_adapter.trainable_tokens_delta", {2, 64})
                              .make();
  const auto updates = llama().plan(adapter);
  ASSERT_EQ(updates.size(), 4u);
  EXPECT_TRUE(updates[0].tokens);
  EXPECT_EQ(std::vector<std::uint64_t>(updates[0].token_rows.begin(), updates[0].token_rows.end()),
            (std::vector<std::uint64_t>{7, 3}));
  EXPECT_TRUE(updates[1].replacement && updates[1].bias);
  EXPECT_EQ(updates[1].bias_scale, 4.0);
  EXPECT_TRUE(updates[3].replacement);
  EXPECT_FALSE(updates[3].low_rank);
}

TEST(TensorUpdates, TokensOfANamedModule) {
  const Base base({weight("model.embed_tokens.weight", {9, 4}), weight("lm_head.weight", {9, 4})});
  const Adapter adapter = AdapterMaker(R"("trainable_token_indices":{"embed_tokens":[1,2],"lm_head":[8]})")
                              .add("model.embed_tokens.token_adapter.trainable_tokens_delta", {2, 4})
                              .add("lm_head.token_adapter.trainable_tokens_delta", {1, 4})
                              .make();
  const auto updates = base.plan(adapter);
  EXPECT_EQ(updates[0].token_rows.size(), 2u);
  EXPECT_EQ(updates[1].token_rows.size(), 1u);
}

TEST(TensorUpdates, TheBaseMayHaveAnotherFirstComponent) {
  const Base without({weight("layers.0.self_attn.q_proj.weight", {64, 64}), weight("norm.weight", {64})});
  const Adapter longer = AdapterMaker(R"("r":2)").add_low_rank(q, 64, 64, 2).add("model.norm.weight", {64}).make();
  EXPECT_EQ(without.plan(longer).size(), 2u);
  const Adapter shorter =
      AdapterMaker(R"("r":2)").add_low_rank("layers.0.self_attn.q_proj", 64, 64, 2).add("norm.weight", {64}).make();
  EXPECT_EQ(llama().plan(shorter).size(), 2u);
}

TEST(TensorUpdates, SeveralFirstComponentsAreRefused) {
  const Base base({weight("a.l.weight", {8, 8}), weight("b.l.weight", {8, 8})});
  EXPECT_THAT(base.refusal(AdapterMaker(R"("r":2)").add_low_rank("l", 8, 8, 2)),
              EndsWith("base has several tensors that may be 'l.weight': 'a.l.weight' and 'b.l.weight'"));
}

TEST(TensorUpdates, TheBaseMayStoreOtherNames) {
  const Base llava({weight("language_model.model.layers.0.self_attn.q_proj.weight", {64, 64})},
                   "LlavaForConditionalGeneration");
  const Adapter adapter =
      AdapterMaker(R"("r":2)").add_low_rank("model.language_model.layers.0.self_attn.q_proj", 64, 64, 2).make();
  EXPECT_EQ(llava.plan(adapter).size(), 1u);
}

TEST(TensorUpdates, TorchsAttention) {
  const Base base({weight("attn.in_proj_weight", {24, 8}), weight("attn.out_proj.weight", {8, 8})});
  const Adapter adapter =
      AdapterMaker(R"("r":2)").add_low_rank("attn", 24, 8, 2).add_low_rank("attn.base_layer.out_proj", 8, 8, 2).make();
  EXPECT_EQ(base.plan(adapter).size(), 2u);
}

// ---- experts

constexpr const char* experts_config =
    R"("r":2,"rank_pattern":{"experts.down_proj":1},"target_parameters":["experts.gate_up_proj","experts.down_proj"])";
AdapterMaker expert_adapter(std::uint64_t experts, std::uint64_t hidden, std::uint64_t inner) {
  AdapterMaker maker(experts_config);
  maker.add("model.layers.0.mlp.experts.base_layer.lora_A.weight", {2 * experts, hidden});
  maker.add("model.layers.0.mlp.experts.base_layer.lora_B.weight", {2 * inner, 2 * experts});
  maker.add("model.layers.0.mlp.experts.lora_A.weight", {experts, inner});
  maker.add("model.layers.0.mlp.experts.lora_B.weight", {hidden, experts});
  return maker;
}

TEST(TensorUpdates, FusedExpertsAreToldApartByTheirShapes) {
  const std::string experts = "model.layers.0.mlp.experts.";
  const Base straight({weight(experts + "gate_up_proj", {3, 20, 8}), weight(experts + "down_proj", {3, 8, 10})});
  const Base across({weight(experts + "down_proj", {3, 10, 8}), weight(experts + "gate_up_proj", {3, 8, 20})});
  AdapterMaker maker = expert_adapter(3, 8, 10);
  const Adapter adapter = maker.make();
  const auto updates = straight.plan(adapter), turned = across.plan(adapter);
  ASSERT_EQ(updates.size(), 2u);
  EXPECT_EQ(updates[0].low_rank->experts, 3u);
  EXPECT_EQ(updates[0].low_rank->rank, 2u);
  EXPECT_EQ(updates[1].low_rank->rank, 1u);
  EXPECT_FALSE(updates[0].low_rank->transposed || updates[1].low_rank->transposed);
  EXPECT_TRUE(turned[0].low_rank->transposed && turned[1].low_rank->transposed);
  EXPECT_EQ(turned[0].low_rank->rank, 1u);
}

// down_proj is square; gate_up_proj tells how the module stores its experts.
TEST(TensorUpdates, SquareExpertsAreStoredAsTheirSiblings) {
  const std::string experts = "model.layers.0.mlp.experts.";
  for (const bool turned : {false, true}) {
    const Base base({weight(experts + "gate_up_proj", turned ? Shape{3, 8, 16} : Shape{3, 16, 8}),
                     weight(experts + "down_proj", {3, 8, 8})});
    const Adapter adapter = AdapterMaker(R"("r":1,"target_parameters":["down_proj"])")
                                .add("model.layers.0.mlp.experts.lora_A.weight", {3, 8})
                                .add("model.layers.0.mlp.experts.lora_B.weight", {8, 3})
                                .make();
    EXPECT_EQ(base.plan(adapter)[0].low_rank->transposed, turned);
  }
  const Base alone({weight(experts + "down_proj", {3, 8, 8})});
  EXPECT_THAT(alone.refusal(AdapterMaker(R"("r":1,"target_parameters":["down_proj"])")
                                .add("model.layers.0.mlp.experts.lora_A.weight", {3, 8})
                                .add("model.layers.0.mlp.experts.lora_B.weight", {8, 3})),
              EndsWith("its shape does not tell whether it is transposed"));
}

TEST(TensorUpdates, ExpertsThatAreStoredOneByOne) {
  const std::string experts = "model.layers.0.mlp.experts.";
  std::vector<TensorInfo> tensors;
  for (int e = 0; e < 2; ++e) {
    const std::string expert = experts + std::to_string(e);
    tensors.push_back(weight(expert + ".down_proj.weight", {8, 10}));
    tensors.push_back(weight(expert + ".gate_proj.weight", {10, 8}));
    tensors.push_back(weight(expert + ".up_proj.weight", {10, 8}));
  }
  const TensorList list{std::span(tensors)};
  const auto roles = make_role_finder({"Qwen3MoeForCausalLM"}, list, false);
  ASSERT_TRUE(roles);
  AdapterMaker maker = expert_adapter(2, 8, 10);
  const Adapter adapter = maker.make();
  const auto updates = plan_updates(adapter, {"base", list, *roles});
  ASSERT_EQ(updates.size(), 6u);
  for (std::size_t t = 0; t < 6; ++t) {
    EXPECT_EQ(updates[t].low_rank->experts, 2u);
    EXPECT_EQ(updates[t].low_rank->expert, t / 3);
    EXPECT_EQ(updates[t].low_rank->rank, t % 3 == 0 ? 1u : 2u);
    EXPECT_EQ(updates[t].low_rank->first_out, t % 3 == 2 ? 10u : 0u);
  }
  AdapterMaker of_other = expert_adapter(2, 8, 9), of_more = expert_adapter(3, 8, 10);
  for (AdapterMaker* wrong : {&of_other, &of_more}) {
    const Adapter other = wrong->make();
    EXPECT_THAT(
        error_of([&] {
          (void)plan_updates(other, {"base", list, *roles});
        }),
        EndsWith("the shapes of the updates of 'model.layers.0.mlp.experts' fit none of its parameters in base"));
  }
}

TEST(TensorUpdates, ExpertsWithDora) {
  const auto adapter = [](std::uint64_t experts) {
    AdapterMaker maker(R"("r":1,"use_dora":true,"target_parameters":["down_proj"])");
    maker.add("model.layers.0.mlp.experts.lora_A.weight", {experts, 10});
    maker.add("model.layers.0.mlp.experts.lora_B.weight", {8, experts});
    maker.add("model.layers.0.mlp.experts.lora_magnitude_vector", {8});
    return maker;
  };
  const std::string refused =
      "lora_magnitude_vector': is of DoRA, which cannot be merged into the experts "
      "'model.layers.0.mlp.experts.down_proj'";
  const Base fused({weight("model.layers.0.mlp.experts.down_proj", {2, 8, 10})});
  const Base one_by_one({weight("model.layers.0.mlp.experts.0.down_proj.weight", {8, 10}),
                         weight("model.layers.0.mlp.experts.1.down_proj.weight", {8, 10})},
                        "Qwen3MoeForCausalLM");
  AdapterMaker of_two = adapter(2), of_both = adapter(2);
  EXPECT_THAT(fused.refusal(of_two), EndsWith(refused));
  EXPECT_THAT(one_by_one.refusal(of_both), EndsWith(refused));
}

TEST(TensorUpdates, UpdatesOfExpertsThatCannotBeAssigned) {
  const Base base({weight("e.experts.gate_up_proj", {3, 20, 8}), weight("e.experts.down_proj", {3, 8, 10})});
  EXPECT_THAT(base.refusal(AdapterMaker(R"("r":2,"target_parameters":["gate_up_proj","down_proj"])")
                               .add_low_rank("e.experts", 20, 8, 6)),
              EndsWith("'e.experts' has 1 updates, but target_parameters names 2 of its parameters"));
  EXPECT_THAT(
      base.refusal(
          AdapterMaker(R"("r":2)").add_low_rank("e.experts", 20, 8, 6).add_low_rank("e.experts.base_layer", 8, 10, 6)),
      EndsWith("is one of several updates of 'e.experts', which target_parameters does not name"));
  const Base alike({weight("e.a", {4, 8}), weight("e.b", {4, 8})});
  EXPECT_THAT(alike.refusal(AdapterMaker(R"("r":2,"target_parameters":["a","b"])")
                                .add_low_rank("e", 4, 8, 2)
                                .add_low_rank("e.base_layer", 4, 8, 2)),
              EndsWith("the shapes of the updates of 'e' do not tell which parameter each belongs to"));
}

// ---- adapters for another base

TEST(TensorUpdates, NamesThatTheBaseLacks) {
  EXPECT_THAT(llama().refusal(AdapterMaker(R"("r":2)").add_low_rank("model.layers.7.self_attn.q_proj", 64, 64, 2)),
              EndsWith("base has no tensor 'model.layers.7.self_attn.q_proj.weight'"));
  EXPECT_THAT(llama().refusal(AdapterMaker().add("score.weight", {2, 64})),
              EndsWith("base has no tensor 'score.weight'"));
  EXPECT_THAT(
      llama().refusal(
          AdapterMaker(R"("lora_bias":true,"r":2)").add_low_rank(down, 64, 96, 2).add(down + ".lora_B.bias", {64})),
      EndsWith("base has no tensor 'model.layers.0.mlp.down_proj.bias'"));
  EXPECT_THAT(llama().refusal(AdapterMaker(R"("trainable_token_indices":[1])")
                                  .add("lm_head.token_adapter.trainable_tokens_delta", {1, 64})),
              EndsWith("base has no tensor 'lm_head.weight'"));
  Base tied({weight("model.embed_tokens.weight", {100, 64})});
  tied.tied = true;
  EXPECT_THAT(tied.refusal(AdapterMaker(R"("r":2)").add_low_rank("lm_head", 100, 64, 2)),
              EndsWith("base has no tensor 'lm_head.weight': its output layer may be tied to its embeddings"));
}

// As peft saves both if it has tied them, or if an adapter of the embeddings has them beside it.
TEST(TensorUpdates, TheWeightOfTiedLayersMayComeTwice) {
  const std::string embeddings = "model.embed_tokens.weight", output = "lm_head.weight";
  const std::vector<float> values = test::normal_weights(100 * 64, 1), others = test::normal_weights(100 * 64, 2);
  Base tied({weight(embeddings, {100, 64}), weight("model.norm.weight", {64})}, "LlamaForCausalLM");
  const auto twice = [&](const std::vector<float>& of_output) {
    AdapterMaker maker;
    maker.add(embeddings, {100, 64}, values).add(output, {100, 64}, of_output);
    return maker;
  };
  AdapterMaker same = twice(values), different = twice(others), once = twice(values);
  EXPECT_THAT(tied.refusal(once), HasSubstr("has no tensor 'lm_head.weight'"));
  tied.tied = true;
  const auto updates = tied.plan(same.make());
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_EQ(updates[0].tensor, 0u);
  EXPECT_THAT(tied.refusal(different), HasSubstr("has no tensor 'lm_head.weight'"));
  // What repeats another layer than the embeddings is for another base, and so is another name.
  AdapterMaker score;
  score.add(embeddings, {100, 64}, values).add("score.weight", {100, 64}, values);
  EXPECT_THAT(tied.refusal(score), EndsWith("has no tensor 'score.weight'"));
  AdapterMaker norm;
  norm.add("model.norm.weight", {64}, test::normal_weights(64, 1)).add(output, {64}, test::normal_weights(64, 1));
  EXPECT_THAT(tied.refusal(norm), HasSubstr("has no tensor 'lm_head.weight'"));
}

// Layers that are never quantized are linear layers as others are: Mamba's dt_proj, and DETR's k_proj under its old
// name.
TEST(TensorUpdates, LinearLayersThatAreNeverQuantized) {
  const std::string dt_proj = "backbone.layers.0.mixer.dt_proj";
  const Base mamba({weight(dt_proj + ".weight", {128, 4})}, "MambaForCausalLM");
  EXPECT_EQ(mamba.plan(AdapterMaker(R"("r":2)").add_low_rank(dt_proj, 128, 4, 2).make()).size(), 1u);
  EXPECT_THAT(mamba.refusal(AdapterMaker(R"("r":2)").add_low_rank(dt_proj, 4, 128, 2)),
              HasSubstr("that is for a matrix 4 x 128"));
  const Base detr({weight("bbox_attention.k_linear.weight", {64, 64})}, "DetrForSegmentation");
  const Adapter adapter = AdapterMaker(R"("r":2)").add_low_rank("bbox_attention.k_proj", 64, 64, 2).make();
  EXPECT_EQ(detr.plan(adapter).size(), 1u);
}

TEST(TensorUpdates, ShapesThatDoNotFit) {
  EXPECT_THAT(
      llama().refusal(AdapterMaker(R"("r":2)").add_low_rank(down, 64, 64, 2)),
      EndsWith(".lora_A.weight': is 2 x 64 and 'base_model.model.model.layers.0.mlp.down_proj.lora_B.weight' is "
               "64 x 2: that is for a matrix 64 x 64, but 'model.layers.0.mlp.down_proj.weight' of base is 64 x "
               "96"));
  // A linear layer is never stored transposed.
  EXPECT_THAT(llama().refusal(AdapterMaker(R"("r":2)").add_low_rank(down, 96, 64, 2)),
              HasSubstr("that is for a matrix 96 x 64"));
  EXPECT_THAT(llama().refusal(AdapterMaker(R"("r":2)").add_low_rank("model.norm", 64, 1, 2)),
              HasSubstr("'model.norm.weight' of base is 64"));
  EXPECT_THAT(llama().refusal(AdapterMaker(R"("r":2)")
                                  .add("model.embed_tokens.lora_embedding_A", {2, 64})
                                  .add("model.embed_tokens.lora_embedding_B", {100, 2})),
              HasSubstr("that is for a matrix 100 x 64"));
  EXPECT_THAT(llama().refusal(AdapterMaker().add("model.norm.weight", {65})),
              EndsWith("is 65, but 'model.norm.weight' of base is 64"));
  EXPECT_THAT(llama().refusal(
                  AdapterMaker(R"("r":2,"lora_bias":true)").add_low_rank(q, 64, 64, 2).add(q + ".lora_B.bias", {63})),
              EndsWith("is 63, but 'model.layers.0.self_attn.q_proj.bias' of base is 64"));
  EXPECT_THAT(
      llama().refusal(
          AdapterMaker(R"("r":2,"use_dora":true)").add_low_rank(q, 64, 64, 2).add(q + ".lora_magnitude_vector", {63})),
      HasSubstr("is 63, not one number for each of 64 rows of"));
}

TEST(TensorUpdates, FactorsThatDoNotFitEachOther) {
  const auto refusal = [](const Shape& a, const Shape& b) {
    return llama().refusal(AdapterMaker(R"("r":2)").add(q + ".lora_A.weight", a).add(q + ".lora_B.weight", b));
  };
  EXPECT_THAT(refusal({2, 64}, {64, 3}), HasSubstr("is 2 x 64, which does not fit"));
  EXPECT_THAT(refusal({128}, {64, 2}), HasSubstr("is 128, which does not fit"));
  EXPECT_THAT(refusal({2, 64, 1}, {64, 2}), HasSubstr("which does not fit"));
  EXPECT_THAT(refusal({2, 64, 1}, {64, 2, 2}), HasSubstr("which does not fit"));
  EXPECT_THAT(refusal({0, 64}, {64, 0}), EndsWith("is 0 x 64: it is empty"));
  EXPECT_THAT(refusal({2, 0}, {64, 2}), EndsWith("is 2 x 0: it is empty"));
  EXPECT_THAT(refusal({4, 64}, {64, 4}), EndsWith("has 4 rows, but r is 2 in adapter_config.json"));
}

TEST(TensorUpdates, ScalesThatFp32CannotHold) {
  EXPECT_THAT(llama().refusal(AdapterMaker(R"("r":2,"lora_alpha":1e300)").add_low_rank(q, 64, 64, 2)),
              EndsWith("its scale is 5e+299, which fp32 cannot hold"));
}

TEST(TensorUpdates, TokensThatDoNotFit) {
  const std::string tokens = "model.embed_tokens.token_adapter.trainable_tokens_delta";
  EXPECT_THAT(llama().refusal(AdapterMaker().add(tokens, {1, 64})),
              EndsWith("adapter_config.json has no trainable_token_indices for 'model.embed_tokens'"));
  EXPECT_THAT(llama().refusal(AdapterMaker(R"("trainable_token_indices":[1,2])").add(tokens, {1, 64})),
              EndsWith("has 1 rows for 2 tokens"));
  EXPECT_THAT(llama().refusal(AdapterMaker(R"("trainable_token_indices":[100])").add(tokens, {1, 64})),
              EndsWith("changes token 100, but 'model.embed_tokens.weight' of base is 100 x 64"));
  EXPECT_THAT(llama().refusal(AdapterMaker(R"("trainable_token_indices":[1])").add(tokens, {1, 63})),
              EndsWith("is 1 x 63, but 'model.embed_tokens.weight' of base is 100 x 64"));
}

TEST(TensorUpdates, TypesThatCannotBeUpdated) {
  const Base base({{"w.weight", DType::i32, {4, 4}}});
  EXPECT_THAT(base.refusal(AdapterMaker(R"("r":2)").add_low_rank("w", 4, 4, 2)),
              EndsWith("'w.weight' of base is of type I32, which cannot be updated"));
  EXPECT_THAT(base.refusal(AdapterMaker().add("w.weight", {4, 4})),
              EndsWith("is of type F32, but 'w.weight' of base is of type I32"));
  const Base bias({weight("w.weight", {4, 4}), {"w.bias", DType::i64, {4}}});
  EXPECT_THAT(
      bias.refusal(AdapterMaker(R"("r":2,"lora_bias":true)").add_low_rank("w", 4, 4, 2).add("w.lora_B.bias", {4})),
      EndsWith("'w.bias' of base is of type I64, which cannot be updated"));
  const Base rows({{"wte.weight", DType::i64, {9, 4}}});
  EXPECT_THAT(
      rows.refusal(
          AdapterMaker(R"("trainable_token_indices":[1])").add("wte.token_adapter.trainable_tokens_delta", {1, 4})),
      EndsWith("'wte.weight' of base is of type I64, which cannot be updated"));
  const std::string experts = "model.layers.0.mlp.experts.";
  const Base expert(
      {{experts + "0.down_proj.weight", DType::i64, {8, 10}}, weight(experts + "1.down_proj.weight", {8, 10})},
      "Qwen3MoeForCausalLM");
  EXPECT_THAT(expert.refusal(AdapterMaker(R"("r":1,"target_parameters":["down_proj"])")
                                 .add("model.layers.0.mlp.experts.lora_A.weight", {2, 10})
                                 .add("model.layers.0.mlp.experts.lora_B.weight", {8, 2})),
              EndsWith("down_proj.weight' of base is of type I64, which cannot be updated"));
}

TEST(TensorUpdates, TwoNamesOfOneTensor) {
  EXPECT_THAT(
      llama().refusal(
          AdapterMaker(R"("r":2)").add_low_rank(q, 64, 64, 2).add_low_rank("layers.0.self_attn.q_proj", 64, 64, 2)),
      HasSubstr("changes 'model.layers.0.self_attn.q_proj.weight' of base, and so does"));
  EXPECT_THAT(llama().refusal(AdapterMaker().add("norm.weight", {64}).add("model.norm.weight", {64})),
              HasSubstr("changes 'model.norm.weight' of base, and so does"));
  EXPECT_THAT(llama().refusal(AdapterMaker(R"("trainable_token_indices":[1])")
                                  .add("embed_tokens.token_adapter.trainable_tokens_delta", {1, 64})
                                  .add("model.embed_tokens.token_adapter.trainable_tokens_delta", {1, 64})),
              EndsWith("changes 'model.embed_tokens.weight' of base, and so does "
                       "'base_model.model.embed_tokens.token_adapter.trainable_tokens_delta'"));
}

// peft saves both if a tied model trains different rows of its two embeddings.
TEST(TensorUpdates, TokensOfTiedEmbeddings) {
  const char* const fields = R"("trainable_token_indices":{"embed_tokens":[1],"lm_head":[2]})";
  Base tied({weight("model.embed_tokens.weight", {100, 64})});
  tied.tied = true;
  EXPECT_THAT(tied.refusal(AdapterMaker(fields)
                               .add("model.embed_tokens.token_adapter.trainable_tokens_delta", {1, 64})
                               .add("lm_head.token_adapter.trainable_tokens_delta", {1, 64})),
              EndsWith("base has no tensor 'lm_head.weight': its output layer may be tied to its embeddings"));
}

TEST(TensorUpdates, TokensOfTwoEntries) {
  const auto refusal = [](const std::string& rows) {
    return llama().refusal(
        AdapterMaker(R"("trainable_token_indices":{"embed_tokens":[1],"model.embed_tokens":[)" + rows + "]}")
            .add("model.embed_tokens.token_adapter.trainable_tokens_delta", {1, 64}));
  };
  EXPECT_EQ(refusal("1"), "");
  EXPECT_THAT(refusal("2"), EndsWith("trainable_token_indices of 'embed_tokens' and of 'model.embed_tokens' in "
                                     "adapter_config.json are different, and both are for 'model.embed_tokens'"));
}

TEST(TensorUpdates, AttentionInOneMatrixHasNoDora) {
  const Base base({weight("attn.in_proj_weight", {48, 16}), weight("attn.out_proj.weight", {16, 16})});
  EXPECT_THAT(base.refusal(AdapterMaker(R"("r":2,"use_dora":true)")
                               .add_low_rank("attn", 48, 16, 2)
                               .add("attn.lora_magnitude_vector", {48})),
              EndsWith("lora_magnitude_vector': is of DoRA, which peft does not have for the matrix "
                       "'attn.in_proj_weight'"));
}

}  // namespace
}  // namespace nibble::tensor_updates_test
