#include "formats/adapters/tied_output.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/adapter.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::tied_output_test {
namespace {

using test::AdapterMaker;
using test::error_of;
using testing::EndsWith;
using testing::HasSubstr;

constexpr std::uint64_t tokens = 100;
const std::string why =
    "changes the embeddings of base, but not the output layer that shares their weight: nibble cannot "
    "untie the two for this architecture";

// A tied base whose tensors are named only.
class Base {
 public:
  Base(std::string architecture, std::vector<TensorInfo> tensors)
      : model_{std::move(architecture)},
        tensors_(std::span(tensors)),
        roles_(model_.architecture.empty() ? make_role_finder_by_name(tensors_)
                                           : make_role_finder(model_, tensors_, true)) {}

  [[nodiscard]] std::optional<TiedOutput> find(AdapterMaker& maker) const {
    AdapterBase base{"base", tensors_, *roles_};
    base.tied = tied;
    base.vocab_size = vocab_size;
    base.layers = embedding_layers(model_);
    const Adapter adapter = maker.make();
    return find_tied_output(adapter, base);
  }
  // The two layers, and what becomes of them; empty if the adapter changes neither.
  [[nodiscard]] std::string found(AdapterMaker& maker) const {
    const auto output = find(maker);
    if (!output) return {};
    return fmt::format("{}, {}{}: {}", output->embeddings, output->weight,
                       output->stored ? fmt::format(" {}", *output->stored) : "", output->unties ? "two" : "one");
  }

  bool tied = true;
  std::optional<std::uint64_t> vocab_size = tokens;

 private:
  ModelClass model_;
  TensorList tensors_;
  std::unique_ptr<RoleFinder> roles_;
};

TensorInfo weight(std::string name, Shape shape) { return {std::move(name), DType::bf16, std::move(shape)}; }

Base llama() {
  return {"LlamaForCausalLM", {weight("model.norm.weight", {8}), weight("model.embed_tokens.weight", {tokens, 8})}};
}

AdapterMaker saving(const std::string& module, const std::vector<std::string>& weights) {
  AdapterMaker maker(R"("modules_to_save":[")" + module + R"("])");
  for (const std::string& name : weights) maker.add(name, {tokens, 8});
  return maker;
}

const std::string embeddings = "model.embed_tokens.weight", output = "lm_head.weight";

TEST(TiedOutput, ModulesToSaveUntieThem) {
  for (const auto& [module, weights] : {std::pair<std::string, std::vector<std::string>>{"embed_tokens", {embeddings}},
                                        {"lm_head", {output}},
                                        {"lm_head", {embeddings, output}},
                                        {"embed_tokens", {embeddings, output}}}) {
    AdapterMaker maker = saving(module, weights), again = saving(module, weights);
    EXPECT_EQ(llama().found(maker), "1, lm_head.weight: two") << module;
    Base untied = llama();
    untied.tied = false;
    EXPECT_EQ(untied.found(again), "") << module;
  }
}

TEST(TiedOutput, WhatItDoesNotNameStaysTied) {
  AdapterMaker none;
  none.add(embeddings, {tokens, 8});  // saved beside an adapter of the embeddings
  EXPECT_EQ(llama().found(none), "1, lm_head.weight: one");
  AdapterMaker norm = saving("norm", {"model.norm.weight", embeddings});
  EXPECT_EQ(llama().found(norm), "1, lm_head.weight: one");
  AdapterMaker another = saving("norm", {"model.norm.weight"});
  EXPECT_EQ(llama().found(another), "");
  AdapterMaker unknown;
  unknown.add("score.weight", {tokens, 8});
  EXPECT_EQ(llama().found(unknown), "");
}

TEST(TiedOutput, EqualWeightsStayTied) {
  const std::vector<float> values = test::normal_weights(tokens * 8, 1);
  AdapterMaker maker(R"("modules_to_save":["lm_head","embed_tokens"])");
  maker.add(embeddings, {tokens, 8}, values).add(output, {tokens, 8}, values);
  EXPECT_EQ(llama().found(maker), "1, lm_head.weight: one");
}

TEST(TiedOutput, WhatAModuleToSaveContainsIsSaved) {
  AdapterMaker maker = saving("model", {embeddings});
  EXPECT_EQ(llama().found(maker), "1, lm_head.weight: two");
}

// The trained model has the update in that layer alone.
TEST(TiedOutput, LoraOfEitherLayerUntiesThem) {
  AdapterMaker of_embeddings(R"("r":2)"), of_output(R"("r":2)"), of_another(R"("r":2)");
  of_embeddings.add("model.embed_tokens.lora_embedding_A", {2, tokens})
      .add("model.embed_tokens.lora_embedding_B", {8, 2})
      .add("model.embed_tokens.base_layer.weight", {tokens, 8});
  EXPECT_EQ(llama().found(of_embeddings), "1, lm_head.weight: two");
  EXPECT_EQ(llama().found(of_output.add_low_rank("lm_head", tokens, 8, 2)), "1, lm_head.weight: two");
  EXPECT_EQ(llama().found(of_another.add_low_rank("model.layers.0.mlp.up_proj", 8, 8, 2)), "");
}

// peft uses those of the embeddings in the output layer, too.
TEST(TiedOutput, RowsOfTheOutputLayerUntieThem) {
  const auto rows = [](const std::string& module) {
    AdapterMaker maker(R"("trainable_token_indices":[1])");
    maker.add(module + ".token_adapter.trainable_tokens_delta", {1, 8});
    return maker;
  };
  AdapterMaker of_embeddings = rows("model.embed_tokens"), of_output = rows("lm_head");
  EXPECT_EQ(llama().found(of_embeddings), "1, lm_head.weight: one");
  EXPECT_EQ(llama().found(of_output), "1, lm_head.weight: two");
}

TEST(TiedOutput, TheOutputLayerMayBeStored) {
  const Base base("LlamaForCausalLM", {weight(output, {tokens, 8}), weight(embeddings, {tokens, 8})});
  for (const std::string& name : {embeddings, output}) {
    AdapterMaker maker = saving(name.substr(0, name.size() - 7), {name});
    EXPECT_EQ(base.found(maker), "1, lm_head.weight 0: two") << name;
  }
}

// A model may have more positions than tokens. If nothing has a row for each token, any of them may embed the tokens.
TEST(TiedOutput, OtherEmbeddingsAreNotTied) {
  const std::string wte = "transformer.wte.weight", wpe = "transformer.wpe.weight";
  for (const std::uint64_t positions : {32, 200}) {
    Base gpt2("GPT2LMHeadModel", {weight(wpe, {positions, 8}), weight(wte, {tokens, 8})});
    const auto saves = [&](const std::string& name, const std::string& module) {
      AdapterMaker maker(R"("modules_to_save":[")" + module + R"("])");
      maker.add(name, {7, 8});
      return maker;
    };
    AdapterMaker of_tokens = saves(wte, "wte"), of_positions = saves(wpe, "wpe");
    EXPECT_EQ(gpt2.found(of_tokens), "1, lm_head.weight: two");
    EXPECT_EQ(gpt2.found(of_positions), "");
    for (const std::optional<std::uint64_t> unknown :
         {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(7)}) {
      gpt2.vocab_size = unknown;
      AdapterMaker of_either = saves(wpe, "wpe");
      EXPECT_THAT(error_of([&] { (void)gpt2.find(of_either); }),
                  EndsWith("tensor 'base_model.model." + wpe + "': " + why));
    }
  }
}

TEST(TiedOutput, IsStoredWhereTheModelStoresItsOthers) {
  const auto name_beside = [](const std::string& stored) {
    const Base base("Gemma3ForConditionalGeneration",
                    {weight(stored, {tokens, 8}),
                     weight("vision_tower.vision_model.embeddings.position_embedding.weight", {4, 8})});
    AdapterMaker maker = saving("embed_tokens", {"model.language_model.embed_tokens.weight"});
    return base.found(maker);
  };
  EXPECT_EQ(name_beside("language_model.model.embed_tokens.weight"), "0, language_model.lm_head.weight: two");
  EXPECT_EQ(name_beside("model.language_model.embed_tokens.weight"), "0, lm_head.weight: two");
}

TEST(TiedOutput, NotIfMoreIsTied) {
  const auto refusal = [](const Base& base, const std::string& embeds) {
    AdapterMaker saved(R"("modules_to_save":[")" + embeds.substr(0, embeds.size() - 7) + R"("])");
    saved.add(embeds, {tokens, 8});
    return error_of([&] { (void)base.find(saved); });
  };
  // Those of encoder and decoder have the weight of `shared`.
  const Base t5("T5ForConditionalGeneration", {weight("shared.weight", {tokens, 8})});
  EXPECT_THAT(refusal(t5, "shared.weight"), HasSubstr(why));
  AdapterMaker head = saving("lm_head", {output});
  EXPECT_EQ(t5.found(head), "");  // then it has no place
  AdapterMaker low_rank(R"("r":2)");
  low_rank.add("shared.lora_embedding_A", {2, tokens}).add("shared.lora_embedding_B", {8, 2});
  EXPECT_THAT(error_of([&] { (void)t5.find(low_rank); }), HasSubstr("shared.lora_embedding_A': " + why));
  // The bias of its output layer is tied as well.
  const Base bert("BertForMaskedLM", {weight("bert.embeddings.word_embeddings.weight", {tokens, 8}),
                                      weight("bert.embeddings.position_embeddings.weight", {7, 8}),
                                      weight("bert.embeddings.token_type_embeddings.weight", {2, 8})});
  EXPECT_THAT(refusal(bert, "bert.embeddings.word_embeddings.weight"), HasSubstr(why));
  const Base two("BltForCausalLM", {weight("model.patcher.embed_tokens.weight", {tokens, 8})});
  EXPECT_THAT(refusal(two, "model.patcher.embed_tokens.weight"), HasSubstr(why));
  const Base unknown("", {weight(embeddings, {tokens, 8})});
  EXPECT_THAT(refusal(unknown, embeddings), HasSubstr(why));
}

}  // namespace
}  // namespace nibble::tied_output_test
