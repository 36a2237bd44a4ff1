// Input that a scheme stored as codes: what it decodes to is converted like any other weights.

#include <gtest/gtest.h>

#include "quant/jobs/convert.hpp"
#include "quant/jobs/plan.hpp"
#include "tests/quant/schemes/scheme_support.hpp"
#include "tests/support/conversion.hpp"

namespace nibble::decoded_input_test {
namespace {

using test::Bytes;
using test::MemoryReader;
using test::MemoryWriter;
using test::recipe;

// bitsandbytes, if conversions took what it stores.
class Taken final : public Scheme {
 public:
  bool stores(const Codec& codec) const override { return scheme().stores(codec); }
  std::vector<Part> parts(const Codec& codec, const TensorInfo& tensor) const override {
    return scheme().parts(codec, tensor);
  }
  std::vector<std::byte> own_bytes(const Codec& codec, const TensorInfo& tensor, const Part& part,
                                   std::span<const std::vector<std::byte>> loose) const override {
    return scheme().own_bytes(codec, tensor, part, loose);
  }
  std::optional<StoredTensor> recognize(const Reader& in, std::size_t first, const FindTensor& find) const override {
    return scheme().recognize(in, first, find);
  }
  std::vector<std::vector<std::byte>> read_planes(const Reader& in, const Codec& codec,
                                                  const StoredTensor& tensor) const override {
    return scheme().read_planes(in, codec, tensor);
  }
  std::string_view quant_method() const noexcept override { return scheme().quant_method(); }
  bool is_source() const override { return true; }
  std::string obstacle(const Plan& plan) const override { return scheme().obstacle(plan); }
  std::string config(const Plan& plan) const override { return scheme().config(plan); }

 private:
  static const Scheme& scheme() { return scheme_of(*make_codec("nf4")); }
};

const Taken taken;
const Scheme* const all_taken[]{&taken};

// A model with NF4 layers, and the same with the weights that those stand for.
struct Model {
  explicit Model(std::string_view architecture, const std::vector<TensorInfo>& tensors) {
    coded.set_architecture(std::string(architecture));
    plain.set_architecture(std::string(architecture));
    for (const TensorInfo& tensor : tensors) {
      const std::vector<float> weights = test::normal_weights(tensor.elements(), 1);
      const Bytes bytes = test::stored_as(tensor.dtype, weights);
      if (tensor.shape.size() < 2) {
        coded.add(tensor, bytes);
        plain.add(tensor, bytes);
        continue;
      }
      const auto codec = make_codec("nf4");
      const test::Encoded encoded = test::encode(*codec, tensor, bytes);
      for (const auto& [part, part_bytes] : test::stored(*codec, tensor, encoded)) coded.add(part, part_bytes);
      plain.add(tensor, test::stored_as(tensor.dtype, test::decode(*codec, tensor, encoded)));
    }
  }

  MemoryReader coded;
  MemoryReader plain;
};

struct Result {
  std::map<std::string, Bytes> parts;
  std::string manifest;
  bool operator==(const Result&) const = default;
};

Result run(const StoredWeights& in, const Recipe& recipe, const Resources& resources = {}) {
  MemoryWriter out;
  Progress progress;
  (void)convert(in, make_plan(in, recipe), out, resources, progress);
  return {out.parts(), out.manifest()};
}

void expect_same(const Model& model, const Recipe& recipe) {
  const Result expected = run(StoredWeights(model.plain), recipe);
  const StoredWeights in(model.coded, all_taken);
  EXPECT_EQ(run(in, recipe), expected) << recipe.to.text();
  EXPECT_EQ(run(in, recipe, {3, 29'000'000}), expected) << recipe.to.text();
}

TEST(DecodedInput, IsConvertedLikeTheWeightsItStandsFor) {
  const Model llama("LlamaForCausalLM", {{"model.layers.0.self_attn.q_proj.weight", DType::bf16, {192, 195}},
                                         {"model.layers.0.mlp.up_proj.weight", DType::f32, {515, 192}},
                                         {"model.layers.0.input_layernorm.weight", DType::f32, {192}}});
  for (const char* const to : {"nf4", "fp4", "int8", "fp16", "fp32"}) expect_same(llama, recipe(to));
}

TEST(DecodedInput, MayBeTransposedOrCut) {
  const Model gpt2("GPT2LMHeadModel", {{"transformer.h.0.attn.c_attn.weight", DType::f16, {96, 288}}});
  expect_same(gpt2, recipe("int8"));
  const Model moe("Qwen3MoeForCausalLM", {{"model.layers.0.mlp.experts.down_proj", DType::bf16, {4, 65, 97}}});
  expect_same(moe, test::with_experts("nf4"));
}

// What no conversion takes is parts, which it keeps.
TEST(DecodedInput, IsTakenFromSchemesThatSaySo) {
  const Model model("LlamaForCausalLM", {{"model.layers.0.self_attn.q_proj.weight", DType::bf16, {64, 64}}});
  EXPECT_EQ(make_plan(StoredWeights(model.coded, all_taken), recipe("nf4")).tensors.size(), 1U);
  EXPECT_EQ(make_plan(model.coded, recipe("fp16")).tensors.size(), model.coded.tensors().size());
  for (const Scheme* const scheme : source_schemes()) EXPECT_TRUE(scheme->is_source());
  for (const Scheme* const scheme : schemes())
    EXPECT_EQ(scheme->is_source(), std::ranges::count(source_schemes(), scheme) == 1);
  EXPECT_FALSE(scheme_of(*make_codec("nf4")).is_source());
}

// Absmax and the like are read whole.
TEST(DecodedInput, DecodersAreInTheMemoryPlan) {
  const Model model("LlamaForCausalLM", {{"model.layers.0.self_attn.q_proj.weight", DType::bf16, {1024, 1024}}});
  const Plan coded = make_plan(StoredWeights(model.coded, all_taken), recipe("fp16"));
  const Plan plain = make_plan(StoredWeights(model.plain), recipe("fp16"));
  EXPECT_EQ(plain.decoder_bytes, 0U);
  EXPECT_GE(coded.decoder_bytes, 1024U * 1024 / 64);
  EXPECT_GE(plan_memory(coded, {1}).total_bytes, plan_memory(plain, {1}).total_bytes + 3 * coded.decoder_bytes);
}

}  // namespace
}  // namespace nibble::decoded_input_test
