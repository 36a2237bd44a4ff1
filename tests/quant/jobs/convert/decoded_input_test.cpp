// Input that a scheme stored as codes: what it decodes to is converted like any other weights.

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <vector>

#include "nibble/codec_spec.hpp"
#include "nibble/measure.hpp"
#include "quant/jobs/convert/convert.hpp"
#include "quant/jobs/plan/plan.hpp"
#include "quant/stream/conversion_memory.hpp"
#include "quant/stream/memory_model.hpp"
#include "quant/stream/source.hpp"
#include "tests/quant/schemes/scheme_support.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::decoded_input_test {
namespace {

using test::Bytes;
using test::MemoryReader;
using test::MemoryWriter;
using test::recipe;

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

std::map<std::string, Bytes> run(const StoredWeights& in, const Recipe& recipe, const Resources& resources = {}) {
  MemoryWriter out;
  Progress progress;
  (void)convert(in, make_plan(in, recipe), out, resources, progress);
  return out.parts();
}

void expect_same(const Model& model, const Recipe& recipe) {
  const auto expected = run(StoredWeights(model.plain), recipe);
  const StoredWeights in(model.coded, schemes());
  EXPECT_EQ(run(in, recipe), expected) << recipe.to.text();
  EXPECT_EQ(run(in, recipe, {3, 29'000'000}), expected) << recipe.to.text();
}

TEST(DecodedInput, IsConvertedLikeTheWeightsItStandsFor) {
  const Model llama("LlamaForCausalLM", {{"model.layers.0.self_attn.q_proj.weight", DType::bf16, {192, 195}},
                                         {"model.layers.0.mlp.up_proj.weight", DType::f32, {515, 192}},
                                         {"model.layers.0.input_layernorm.weight", DType::f32, {192}}});
  for (const std::string_view to : codec_names())
    if (!CodecSpec(to).keeps()) expect_same(llama, recipe(std::string(to)));
}

TEST(DecodedInput, MayBeCut) {
  const Model moe("Qwen3MoeForCausalLM", {{"model.layers.0.mlp.experts.down_proj", DType::bf16, {4, 65, 97}}});
  expect_same(moe, test::with_experts("nf4"));
}

// What no conversion takes is parts, which it keeps.
TEST(DecodedInput, IsTakenFromSchemesThatSaySo) {
  const Model model("LlamaForCausalLM", {{"model.layers.0.self_attn.q_proj.weight", DType::bf16, {64, 64}}});
  EXPECT_EQ(make_plan(StoredWeights(model.coded, schemes()), recipe("nf4")).tensors.size(), 1U);
  EXPECT_EQ(make_plan(model.coded, recipe("fp16")).tensors.size(), model.coded.tensors().size());
  for (const Scheme* const scheme : source_schemes()) EXPECT_TRUE(scheme->is_source());
  for (const Scheme* const scheme : schemes())
    EXPECT_EQ(scheme->is_source(), std::ranges::count(source_schemes(), scheme) == 1);
  EXPECT_FALSE(scheme_of(*make_codec("nf4")).is_source());
}

// Absmax and the like are read whole.
TEST(DecodedInput, DecodersAreInTheConversionMemory) {
  const Model model("LlamaForCausalLM", {{"model.layers.0.self_attn.q_proj.weight", DType::bf16, {1024, 1024}}});
  const Plan coded = make_plan(StoredWeights(model.coded, schemes()), recipe("fp16"));
  const Plan plain = make_plan(StoredWeights(model.plain), recipe("fp16"));
  EXPECT_EQ(PlanEstimates::decoder_bytes(plain), 0U);
  const std::uint64_t decoder_bytes = PlanEstimates::decoder_bytes(coded);
  EXPECT_GE(decoder_bytes, 1024U * 1024 / 64);
  EXPECT_GE(conversion_memory(coded, {1}).total_bytes, conversion_memory(plain, {1}).total_bytes + 3 * decoder_bytes);
}

// ---- FP8, which conversions take -------------------------------------------------------------------------------

MemoryReader fp8_of(const std::string& codec, const Recipe& before = recipe("fp8")) {
  MemoryReader plain;
  plain.set_architecture("LlamaForCausalLM", false);
  plain.add_normal("model.embed_tokens.weight", DType::bf16, {64, 64});
  plain.add_normal("model.layers.0.self_attn.q_proj.weight", DType::bf16, {256, 192});
  plain.add_normal("model.layers.0.self_attn.k_proj.weight", DType::bf16, {130, 192});
  plain.add_normal("lm_head.weight", DType::bf16, {64, 64});
  Recipe to = before;
  to.to = codec;
  return test::converted(plain, to).reader;
}

// The same model with the weights that the codes stand for.
MemoryReader decoded(const MemoryReader& in) {
  MemoryReader out;
  out.set_architecture("LlamaForCausalLM", false);
  const StoredWeights stored(in);
  Buffers buffers;
  for (std::size_t t = 0; t < stored.size(); ++t) {
    const auto tensor = stored[t];
    Buffers::Loan loan;
    const auto weights = open_source(stored, tensor, buffers).weights(0, tensor.stored.info.elements(), loan);
    out.add(tensor.stored.info, {weights.begin(), weights.end()});
  }
  return out;
}

TEST(Fp8Input, IsConvertedLikeTheWeightsItStandsFor) {
  std::vector<CodecSpec> targets{"fp8:scales=block"};
  std::ranges::copy_if(codec_names(), std::back_inserter(targets),
                       [](std::string_view name) { return !CodecSpec(name).keeps(); });
  for (const char* const scales : {"fp8", "fp8:scales=tensor", "fp8:scales=block"}) {
    const MemoryReader in = fp8_of(scales);
    const StoredWeights fp8(in, source_schemes());
    ASSERT_EQ(fp8.size(), 4U);
    const MemoryReader plain = decoded(in);
    for (const CodecSpec& to : targets)
      EXPECT_EQ(run(fp8, recipe(to)), run(StoredWeights(plain), recipe(to))) << scales << " to " << to.text();
  }
}

// Then config.json says it no longer.
TEST(Fp8Input, IsKnownToBeDecodedIfConfigSaysSo) {
  const auto was_decoded = [](const char* quant_method) {
    MemoryReader in = fp8_of("fp8", recipe("fp8"));
    if (quant_method != nullptr) in.set_quant_method(quant_method);
    MemoryWriter out;
    Progress progress;
    (void)convert(StoredWeights(in, source_schemes()), make_plan(in, recipe("bf16")), out, {}, progress);
    return out.finish().value().was_decoded;
  };
  EXPECT_TRUE(was_decoded("compressed-tensors"));
  EXPECT_TRUE(was_decoded("nibble"));
  EXPECT_FALSE(was_decoded("bitsandbytes"));
  EXPECT_FALSE(was_decoded(nullptr));
}

// What `allow_nibble_only` writes: E5M2, several strategies in one model, quantized embeddings.
TEST(Fp8Input, MayBeWhatOnlyNibbleReads) {
  Recipe mixed;
  mixed.allow_nibble_only = true;
  Recipe embeddings = mixed;
  mixed.rules = {{".*k_proj.*", "fp8:scales=tensor,format=e5m2"}};
  embeddings.embeddings = "fp8:scales=block";
  Recipe e5m2;
  e5m2.allow_nibble_only = true;
  for (const auto& [before, codec] : {std::pair(e5m2, "fp8:format=e5m2"), {mixed, "fp8"}, {embeddings, "fp8"}}) {
    MemoryReader in = fp8_of(codec, before);
    in.set_architecture("LlamaForCausalLM", false);
    in.set_quant_method("nibble");
    const StoredWeights fp8(in, source_schemes());
    ASSERT_EQ(fp8.size(), 4U);
    const MemoryReader plain = decoded(in);
    for (const char* const to : {"nf4", "int8", "bf16", "fp32", "fp8:scales=block"})
      EXPECT_EQ(run(fp8, recipe(to)), run(StoredWeights(plain), recipe(to))) << codec << " to " << to;
  }
}

// nibble alone also stores what is no weight of the model: a transposed Conv1D, and experts one by one. They are
// weights of the model again, whatever becomes of them.
TEST(Fp8Input, MayHaveBeenTransposedOrCut) {
  MemoryReader gpt2, gpt_oss, extra, qwen;
  gpt2.set_architecture("GPT2LMHeadModel", true);
  gpt2.add_normal("transformer.h.0.attn.c_attn.weight", DType::f16, {96, 288});
  gpt_oss.set_architecture("GptOssForCausalLM", true);
  gpt_oss.add_normal("model.layers.0.mlp.experts.down_proj", DType::bf16, {12, 64, 64});
  extra.set_architecture("GptOssForCausalLM", true);  // which the table does not know, but whole
  extra.add_normal("model.layers.7.extra.weight", DType::bf16, {64, 64});
  qwen.set_architecture("Qwen3MoeForCausalLM", true);  // whose experts transformers puts together itself
  qwen.add_normal("model.layers.0.mlp.experts.down_proj", DType::bf16, {2, 64, 64});
  for (const MemoryReader* const model : {&gpt2, &gpt_oss, &extra, &qwen}) {
    Recipe before = test::with_experts("fp8");
    if (model == &gpt2 || model == &extra) before.experts = "keep";
    if (model == &extra) before.rules = {{".*", "fp8"}};
    MemoryReader in = test::converted(*model, before).reader;
    in.set_architecture(model->config()->architecture, true);
    in.set_quant_method("nibble");
    const Plan plan = make_plan(in, recipe("fp32"));
    if (model != &qwen) {
      ASSERT_EQ(plan.tensors.size(), 1U);
      EXPECT_EQ(plan.tensors[0].info.name, model->tensors().name(0));
      EXPECT_EQ(plan.tensors[0].info.shape, model->tensors()[0].shape);
    }
    MemoryReader plain;
    plain.set_architecture(model->config()->architecture, true);
    const auto parts = run(StoredWeights(in, source_schemes()), recipe("fp32"));
    for (const PlannedTensor& tensor : plan.tensors)
      plain.add({tensor.info.name, DType::f32, tensor.info.shape}, parts.at(tensor.info.name));
    for (Recipe to : {recipe("int8"), recipe("bf16")}) {
      if (to.to == "int8" && (model == &extra || model == &qwen)) continue;  // that are kept then
      to.allow_nibble_only = true;
      if (model == &gpt_oss && to.to == "int8") to.experts = "int8";
      // What was 16 bits wide before is so on its way to the codec; in fp32 it is the same.
      EXPECT_EQ(run(StoredWeights(in, source_schemes()), to), run(StoredWeights(plain), to))
          << plan.tensors[0].info.name << " to " << to.to.text();
    }
  }
}

TEST(Fp8Input, PlansSayWhatTheInputHas) {
  const MemoryReader in = fp8_of("fp8");
  const Plan plan = make_plan(in, recipe("bf16"));
  ASSERT_EQ(plan.tensors.size(), 4U);
  std::uint64_t bytes = 0;
  for (std::size_t part = 0; part < in.tensors().size(); ++part) bytes += in.tensors().bytes(part);
  EXPECT_EQ(plan.source_bytes(), bytes);
  for (const PlannedTensor& tensor : plan.tensors) {
    const bool is_layer = tensor.info.name.find("layers") != std::string::npos;
    EXPECT_EQ(tensor.decoded, is_layer);
    EXPECT_EQ(tensor.source_bytes, is_layer ? tensor.info.elements() + 2 * tensor.info.shape[0] : tensor.info.bytes());
    EXPECT_EQ(tensor.reason.ends_with("; the input has it as fp8"), is_layer) << tensor.reason;
  }
}

// Weights of the type that they get are not "as they were" where codes were decoded.
TEST(Fp8Input, IsDecodedByACastToItsOwnType) {
  const MemoryReader in = fp8_of("fp8");
  const Plan plan = make_plan(in, recipe("bf16"));
  EXPECT_TRUE(plan.warnings.empty()) << plan.warnings.front().text;
  MemoryWriter out;
  Progress progress;
  const StoredWeights stored(in, source_schemes());
  const Report report = convert(stored, plan, out, {}, progress);
  EXPECT_EQ(report.totals.cast.tensors, 2U);
  EXPECT_EQ(report.totals.kept.tensors, 2U);
}

// Progress counts weights, however few bytes they take in the input.
TEST(Fp8Input, ProgressEndsAtItsTotal) {
  struct Last final : Progress {
    void advance(std::string_view /*tensor*/, std::uint64_t now, std::uint64_t all) override {
      done = now, total = all;
    }
    std::uint64_t done = 0, total = 1;
  } last;
  const MemoryReader in = fp8_of("fp8");
  MemoryWriter out;
  const StoredWeights stored(in, source_schemes());
  (void)convert(stored, make_plan(stored, recipe("nf4")), out, {}, last);
  EXPECT_EQ(last.done, last.total);
}

// The reference is what its codes stand for in fp32, which conversions round to the type before.
TEST(Fp8Input, IsMeasuredAgainstWhatConversionsMakeOfIt) {
  const MemoryReader in = fp8_of("fp8:scales=block");
  const auto out = test::converted(in, recipe("nf4"));
  const std::vector candidates{test::plan(in, recipe("nf4")), test::checkpoint(out.reader)};
  Progress progress;
  const Measurement found = measure(in, candidates, {}, progress);
  ASSERT_EQ(found.tensors.size(), 4U);
  for (std::size_t t = 0; t < found.tensors.size(); ++t) {
    const double sqnr_db = found.candidates[0].tensors[t]->stats.sqnr_db();
    EXPECT_EQ(sqnr_db, found.candidates[1].tensors[t]->stats.sqnr_db());
    EXPECT_EQ(sqnr_db < 25, found.tensors[t].info.name.find("layers") != std::string::npos);
  }
}

}  // namespace
}  // namespace nibble::decoded_input_test
