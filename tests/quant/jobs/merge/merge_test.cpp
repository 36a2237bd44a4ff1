#include "nibble/merge.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "formats/checkpoint.hpp"
#include "quant/jobs/convert/convert.hpp"
#include "quant/jobs/plan/plan.hpp"
#include "tests/quant/jobs/merge/merged_base.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/weights_file.hpp"

namespace nibble::merge_test {
namespace {

using test::AdapterMaker;
using test::base;
using test::Bytes;
using test::bytes_of;
using test::error_of;
using test::MemoryReader;
using test::MemoryWriter;
using test::merged;

const std::string& layer = test::attention;

struct Result {
  std::map<std::string, Bytes> parts;
  Report report;
  Finish finish;
};
Result convert_to(const Reader& in, const CodecSpec& to, const Resources& resources = {}) {
  MemoryWriter out;
  Progress progress;
  const StoredWeights weights(in, {});
  Report report = convert(weights, make_plan(weights, test::recipe(to)), out, resources, progress);
  return {out.parts(), std::move(report), out.finish().value()};
}

// What a plan keeps has the base's type, and so has config.json.
TEST(Merge, KeptTensorsHaveTheTypeOfTheBase) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const auto in = merged(base(dtype));
    const Result result = convert_to(*in, "nf4");
    EXPECT_EQ(result.finish.dtype, traits(dtype).torch_name);
    for (const char* name : {"lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"})
      EXPECT_EQ(result.parts.at(name).size(), element_count(in->tensors()[name[0] == 'l'   ? 0
                                                                          : name[6] == 'n' ? 4
                                                                                           : 1]
                                                                .shape) *
                                                  traits(dtype).bits / 8)
          << name;
  }
}

TEST(Merge, BytesDependOnNeitherThreadsNorMemory) {
  for (const char* to : {"bf16", "nf4", "int8"}) {
    const auto in = merged(base());
    const auto parts = convert_to(*in, to).parts;
    EXPECT_EQ(convert_to(*in, to, {.threads = 3}).parts, parts) << to;
    EXPECT_EQ(convert_to(*in, to, {.threads = 1, .max_memory = 20'000'000}).parts, parts) << to;
  }
}

// The codes are those of the merged weights in fp32, not rounded to the base's type in between.
TEST(Merge, IsTheConversionOfTheMergedWeights) {
  const auto in = merged(base());
  MemoryReader same;
  same.set_architecture("LlamaForCausalLM", false);
  for (std::size_t t = 0; t < in->tensors().size(); ++t) same.add(in->tensors()[t], bytes_of(*in, t));
  const auto expected = convert_to(same, "nf4").parts, found = convert_to(*in, "nf4").parts;
  for (const auto& [name, bytes] : expected)
    if (name.starts_with(layer)) {
      EXPECT_EQ(found.at(name), bytes) << name;
    }
}

TEST(Merge, AQuantizedBaseIsDecodedAndKeepsItsCodes) {
  for (const char* codec : {"nf4", "int8", "fp8"}) {
    const test::Converted quantized = test::converted(*base(), test::recipe(codec));
    const auto open = [&] {
      auto copy = std::make_unique<MemoryReader>();
      copy->set_architecture("LlamaForCausalLM", false);
      copy->set_quant_method(std::string(quant_method(quantized.plan)), quantization_config(quantized.plan));
      for (std::size_t t = 0; t < quantized.reader.tensors().size(); ++t)
        copy->add(quantized.reader.tensors()[t], bytes_of(quantized.reader, t));
      return copy;
    };
    const auto in = merged(open());
    EXPECT_TRUE(in->config()->quantization_config.empty());
    EXPECT_EQ(in->tensors().size(), 5u) << codec;
    const Result result = convert_to(*in, codec), plain = convert_to(*in, "bf16");
    EXPECT_TRUE(plain.finish.was_decoded) << codec;
    EXPECT_TRUE(plain.finish.quantization_config.empty());
    for (std::size_t t = 0; t < quantized.reader.tensors().size(); ++t) {
      const std::string name(quantized.reader.tensors().name(t));
      if (name == layer + "k_proj.weight") {
        EXPECT_EQ(result.parts.at(name), bytes_of(quantized.reader, t)) << codec;
      }
    }
  }
}

TEST(Merge, ATiedOutputLayerIsStoredOnceItDiffers) {
  const auto tied = [](const std::string& architecture) {
    auto in = std::make_unique<MemoryReader>();
    in->set_architecture(architecture, true);
    in->add_normal("model.embed_tokens.weight", DType::bf16, {96, 256});
    in->add_normal(layer + "q_proj.weight", DType::bf16, {256, 256});
    return in;
  };
  const auto adapter = [](const std::string& module) {
    const std::string name = module == "lm_head" ? module : "model." + module;
    return AdapterMaker(R"("modules_to_save":[")" + module + R"("])").add(name + ".weight", {96, 256}).make();
  };
  const Bytes before = bytes_of(*tied("LlamaForCausalLM"), 0);
  for (const std::string module : {"lm_head", "embed_tokens"}) {
    const auto in = merged(tied("LlamaForCausalLM"), adapter(module));
    const Result result = convert_to(*in, "nf4");
    const Bytes &head = result.parts.at("lm_head.weight"), &embeddings = result.parts.at("model.embed_tokens.weight");
    EXPECT_EQ(embeddings == before, module == "lm_head");
    EXPECT_EQ(head == before, module == "embed_tokens");
    EXPECT_EQ(head.size(), before.size());
    EXPECT_TRUE(result.finish.unties);
    EXPECT_THAT(result.report.plan.warnings,
                testing::Contains(testing::Field(&Message::text, testing::HasSubstr("does not share the weight"))));
    EXPECT_FALSE(result.report.plan.tied);
    // Of the output layer, only what is trained counts as an update.
    EXPECT_EQ(in->is_updated(0), module == "embed_tokens");
    EXPECT_EQ(in->is_updated(1), module == "lm_head");
  }
  // A model without an output layer has nothing to untie.
  const Result without = convert_to(*merged(tied("LlamaForSequenceClassification"), adapter("embed_tokens")), "nf4");
  EXPECT_EQ(without.parts.count("lm_head.weight"), 0u);
  EXPECT_FALSE(without.finish.unties);
}

AdapterMaker lora_of_embeddings() {
  AdapterMaker maker(R"("r":4)");
  maker.add("model.embed_tokens.lora_embedding_A", {4, 96}).add("model.embed_tokens.lora_embedding_B", {256, 4});
  return maker;
}

// What peft saves beside the LoRA of a tied layer is the weight of both, if the other one has its shape.
TEST(Merge, AReplacedWeightOfTiedLayersIsThatOfBoth) {
  for (const std::uint64_t rows : {96, 64}) {
    auto in = std::make_unique<MemoryReader>();
    in->set_architecture("LlamaForCausalLM", true);
    in->add_normal("model.embed_tokens.weight", DType::f32, {96, 256});
    in->add_normal("lm_head.weight", DType::f32, {rows, 256});
    const Bytes head = bytes_of(*in, 1);
    AdapterMaker maker = lora_of_embeddings();
    const std::vector<float> values = test::normal_weights(96 * 256, 7);
    maker.add("model.embed_tokens.base_layer.weight", {96, 256}, values);
    const Result result = convert_to(*merged(std::move(in), maker.make()), "fp32");
    EXPECT_EQ(result.parts.at("lm_head.weight"), rows == 96 ? test::stored_as(DType::f32, values) : head) << rows;
  }
}

// Nobody knows whether a class that is not known ties two layers that are stored.
TEST(Merge, AStoredOutputLayerOfAnUnknownClassIsALayerOfItsOwn) {
  auto in = std::make_unique<MemoryReader>();
  in->set_architecture("NoSuchForCausalLM", true);
  in->add_normal("model.embed_tokens.weight", DType::f32, {96, 256});
  in->add_normal("lm_head.weight", DType::f32, {96, 256});
  const Bytes embeddings = bytes_of(*in, 0), head = bytes_of(*in, 1);
  const Result result = convert_to(*merged(std::move(in), lora_of_embeddings().make()), "nf4");
  EXPECT_NE(result.parts.at("model.embed_tokens.weight"), embeddings);
  EXPECT_EQ(result.parts.at("lm_head.weight"), head);
}

// transformers ties two tensors only if they are equal.
TEST(Merge, OfATiedBaseThatStoresBothLayersWhatIsTiedStaysTied) {
  for (const bool equal : {true, false}) {
    auto in = std::make_unique<MemoryReader>();
    in->set_architecture("LlamaForCausalLM", true);
    in->add_normal("model.embed_tokens.weight", DType::f32, {96, 256});
    const Bytes embeddings = bytes_of(*in, 0);
    Bytes head = embeddings;
    if (!equal) head.front() ^= std::byte{1};
    in->add({"lm_head.weight", DType::f32, {96, 256}}, head);
    AdapterMaker maker(R"("trainable_token_indices":[3])");
    maker.add("model.embed_tokens.token_adapter.trainable_tokens_delta", {1, 256});
    const Result result = convert_to(*merged(std::move(in), maker.make()), "nf4");
    const Bytes& updated = result.parts.at("model.embed_tokens.weight");
    EXPECT_NE(updated, embeddings);
    EXPECT_EQ(result.parts.at("lm_head.weight"), equal ? updated : head);
    EXPECT_EQ(result.finish.unties, !equal);
    EXPECT_EQ(result.parts.size(), 2u);
  }
}

// An adapter of several GB takes a while to hash, before the first weight is merged.
TEST(Merge, HashingTheAdapterShowsProgressAndCanBeCancelled) {
  const test::TempDir dir;
  test::WeightsFile file;
  file.add(layer + "q_proj.lora_A.weight", DType::f32, {2048, 256}, test::normal_weights(2048 * 256, 1));
  file.add(layer + "q_proj.lora_B.weight", DType::f32, {256, 2048}, test::normal_weights(2048 * 256, 2));
  dir.write("adapter_config.json", R"({"peft_type":"LORA","r":2048})");
  dir.write("adapter_model.safetensors", file.bytes());
  const std::uint64_t total = file.bytes().size();
  struct Cancel final : Progress {
    void advance(std::string_view tensor, std::uint64_t done, std::uint64_t of) override {
      told.emplace_back(tensor, done, of);
    }
    [[nodiscard]] bool cancelled() const override { return told.size() == 2; }
    std::vector<std::tuple<std::string, std::uint64_t, std::uint64_t>> told;
  } cancel;
  const auto in = merged(base(), Adapter(dir.path()));
  MemoryWriter out;
  const StoredWeights weights(*in, {});
  EXPECT_EQ(error_of([&] { (void)convert(weights, make_plan(weights, test::recipe("bf16")), out, {}, cancel); },
                     Errc::interrupted),
            "interrupted: no output was written");
  EXPECT_THAT(cancel.told, testing::ElementsAre(testing::FieldsAre("adapter_model.safetensors", 1 << 20, total),
                                                testing::FieldsAre("adapter_model.safetensors", 2 << 20, total)));
}

TEST(Merge, ErrorsNameTheAdapterAndTheBase) {
  EXPECT_THAT(error_of([&] {
                (void)merged(base(),
                             AdapterMaker(R"("r":4)").add_low_rank("model.layers.1.mlp.up_proj", 8, 8, 4).make());
              }),
              testing::EndsWith(": / has no tensor 'model.layers.1.mlp.up_proj.weight'"));
}

}  // namespace
}  // namespace nibble::merge_test
