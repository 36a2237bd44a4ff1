#include "formats/adapters/untied_output.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/adapter.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::untied_output_test {
namespace {

using test::AdapterMaker;
using test::error_of;
using testing::EndsWith;
using testing::HasSubstr;

constexpr std::uint64_t tokens = 100;
const std::string why =
    " that share their weight with an output layer, and modules_to_save unties the two: nibble cannot do "
    "that for this architecture";

// A tied base whose tensors are named only.
class Base {
 public:
  Base(std::string architecture, std::vector<TensorInfo> tensors)
      : model_{std::move(architecture)},
        tensors_(std::span(tensors)),
        roles_(model_.architecture.empty() ? make_role_finder_by_name(tensors_)
                                           : make_role_finder(model_, tensors_, true)) {}

  [[nodiscard]] std::optional<UntiedOutput> find(AdapterMaker& maker) const {
    AdapterBase base{"base", tensors_, *roles_};
    base.tied = tied;
    base.vocab_size = vocab_size;
    const Adapter adapter = maker.make();
    return find_untied_output(adapter, base, embedding_layers(model_));
  }
  // "tensor and name" of what is found; empty if nothing is.
  [[nodiscard]] std::string found(AdapterMaker& maker) const {
    const auto output = find(maker);
    return output ? std::to_string(output->embeddings) + " " + output->weight : "";
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

TEST(UntiedOutput, ModulesToSaveUntieThem) {
  for (const auto& [module, weights] : {std::pair<std::string, std::vector<std::string>>{"embed_tokens", {embeddings}},
                                        {"lm_head", {output}},
                                        {"lm_head", {embeddings, output}},
                                        {"embed_tokens", {embeddings, output}}}) {
    AdapterMaker maker = saving(module, weights), again = saving(module, weights);
    EXPECT_EQ(llama().found(maker), "1 lm_head.weight") << module;
    Base untied = llama();
    untied.tied = false;
    EXPECT_EQ(untied.found(again), "") << module;
  }
}

TEST(UntiedOutput, WhatItDoesNotNameStaysTied) {
  AdapterMaker none;
  none.add(embeddings, {tokens, 8});  // saved beside an adapter of the embeddings
  EXPECT_EQ(llama().found(none), "");
  AdapterMaker norm = saving("norm", {"model.norm.weight", embeddings});
  EXPECT_EQ(llama().found(norm), "");
}

TEST(UntiedOutput, EqualWeightsStayTied) {
  const std::vector<float> values = test::normal_weights(tokens * 8, 1);
  AdapterMaker maker(R"("modules_to_save":["lm_head","embed_tokens"])");
  maker.add(embeddings, {tokens, 8}, values).add(output, {tokens, 8}, values);
  EXPECT_EQ(llama().found(maker), "");
}

TEST(UntiedOutput, TheOutputLayerMayBeStored) {
  const Base base("LlamaForCausalLM", {weight(output, {tokens, 8}), weight(embeddings, {tokens, 8})});
  for (const std::string& name : {embeddings, output}) {
    AdapterMaker maker = saving(name.substr(0, name.size() - 7), {name});
    EXPECT_EQ(base.found(maker), "1 lm_head.weight") << name;
  }
}

// A model may have more positions than tokens. If nothing has a row for each token, any of them may embed the tokens.
TEST(UntiedOutput, OtherEmbeddingsAreNotTied) {
  const std::string wte = "transformer.wte.weight", wpe = "transformer.wpe.weight";
  for (const std::uint64_t positions : {32, 200}) {
    Base gpt2("GPT2LMHeadModel", {weight(wpe, {positions, 8}), weight(wte, {tokens, 8})});
    const auto saves = [&](const std::string& name, const std::string& module) {
      AdapterMaker maker(R"("modules_to_save":[")" + module + R"("])");
      maker.add(name, {7, 8});
      return maker;
    };
    AdapterMaker of_tokens = saves(wte, "wte"), of_positions = saves(wpe, "wpe");
    EXPECT_EQ(gpt2.found(of_tokens), "1 lm_head.weight");
    EXPECT_EQ(gpt2.found(of_positions), "");
    for (const std::optional<std::uint64_t> unknown :
         {std::optional<std::uint64_t>(), std::optional<std::uint64_t>(7)}) {
      gpt2.vocab_size = unknown;
      AdapterMaker of_either = saves(wpe, "wpe");
      EXPECT_THAT(error_of([&] { (void)gpt2.find(of_either); }),
                  EndsWith("tensor 'base_model.model." + wpe + "': replaces embeddings of base" + why));
    }
  }
}

TEST(UntiedOutput, IsStoredWhereTheModelStoresItsOthers) {
  const auto name_beside = [](const std::string& stored) {
    const Base base("Gemma3ForConditionalGeneration",
                    {weight(stored, {tokens, 8}),
                     weight("vision_tower.vision_model.embeddings.position_embedding.weight", {4, 8})});
    AdapterMaker maker = saving("embed_tokens", {"model.language_model.embed_tokens.weight"});
    return base.found(maker);
  };
  EXPECT_EQ(name_beside("language_model.model.embed_tokens.weight"), "0 language_model.lm_head.weight");
  EXPECT_EQ(name_beside("model.language_model.embed_tokens.weight"), "0 lm_head.weight");
}

TEST(UntiedOutput, NotIfMoreIsTied) {
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
}  // namespace nibble::untied_output_test
