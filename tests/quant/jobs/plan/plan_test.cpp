#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/codec.hpp"
#include "nibble/error.hpp"
#include "nibble/plan.hpp"
#include "quant/schemes/scheme.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/memory_checkpoint.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::plan_test {
namespace {

using test::error_of;
using test::MemoryReader;
using test::remedies;
using test::remedy_of;
using test::texts;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

MemoryReader llama(bool tied = false) {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM", tied);
  in.add_normal("model.embed_tokens.weight", DType::bf16, {100, 64});
  for (const char* const name : {"self_attn.q_proj", "mlp.up_proj", "mlp.down_proj"})
    in.add_normal("model.layers.0." + std::string(name) + ".weight", DType::bf16, {640, 640});
  in.add_normal("model.layers.0.input_layernorm.weight", DType::bf16, {64});
  if (!tied) in.add_normal("lm_head.weight", DType::bf16, {100, 64});
  return in;
}

Recipe nf4() {
  Recipe recipe;
  recipe.to = "nf4";
  return recipe;
}

std::map<std::string, std::string> codecs(const Plan& plan) {
  std::map<std::string, std::string> codecs;
  for (const PlannedTensor& tensor : plan.tensors) codecs[tensor.info.name] = tensor.codec.text();
  return codecs;
}

TEST(Plan, QuantizesWhatTransformersWould) {
  const MemoryReader in = llama();
  const Plan plan = make_plan(in, nf4());
  EXPECT_EQ(codecs(plan), (std::map<std::string, std::string>{{"model.embed_tokens.weight", "keep"},
                                                              {"model.layers.0.self_attn.q_proj.weight", "nf4"},
                                                              {"model.layers.0.mlp.up_proj.weight", "nf4"},
                                                              {"model.layers.0.mlp.down_proj.weight", "nf4"},
                                                              {"model.layers.0.input_layernorm.weight", "keep"},
                                                              {"lm_head.weight", "keep"}}));
  EXPECT_EQ(plan.model.architecture, "LlamaForCausalLM");
  EXPECT_TRUE(plan.warnings.empty());
}

// Whatever their shape, and whoever asks for another form: experts of no expert are not cut, and more scales than 64
// bits can count are not stored. They are cast like others.
TEST(Plan, TensorsWithoutElementsAreNotQuantized) {
  for (const std::string_view to : codec_names())
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const Shape& shape : {Shape{std::uint64_t{1} << 62, 0}, Shape{0, 64}, Shape{0}, Shape{0, 8, 64}}) {
        MemoryReader in;
        in.set_architecture("LlamaForCausalLM");
        in.add_normal("model.layers.0.mlp.up_proj.weight", DType::f32, {64, 64});
        in.add({"model.layers.0.mlp.gate_proj.weight", dtype, shape}, {});
        Recipe recipe;
        recipe.to = to;
        recipe.rules = {{".*_proj.*", to}};
        const Plan plan = make_plan(in, recipe);
        const PlannedTensor empty = plan.tensors[plan.tensors.size() - 1];
        const auto codec = make_codec(recipe.to), of_empty = make_codec(empty.codec);
        DType expected = codec->cast_type().value_or(dtype);
        if (codec->quantizes() && dtype == DType::f64) expected = DType::f32;
        EXPECT_FALSE(of_empty->quantizes()) << to;
        EXPECT_EQ(empty.info.shape, shape) << to;
        EXPECT_EQ(of_empty->cast_type().value_or(dtype), expected) << to;
        EXPECT_EQ(empty.stored_bytes, 0U);
        if (codec->quantizes() && dtype != DType::f64 && shape == Shape{0, 64}) {
          EXPECT_EQ(empty.reason, "has no elements");
        }
      }
}

TEST(Plan, LastRuleWins) {
  Recipe recipe = nf4();
  recipe.rules = {{".*mlp.*", "keep"}, {".*up_proj.weight", "fp4"}};
  const Plan plan = make_plan(llama(), recipe);
  EXPECT_EQ(codecs(plan).at("model.layers.0.mlp.up_proj.weight"), "fp4");
  EXPECT_EQ(codecs(plan).at("model.layers.0.mlp.down_proj.weight"), "keep");
}

TEST(Plan, SkipsWinOverRules) {
  Recipe recipe = nf4();
  recipe.rules = {{".*down_proj.*", "fp4"}};
  recipe.skips = {".*down_proj.*"};
  EXPECT_EQ(codecs(make_plan(llama(), recipe)).at("model.layers.0.mlp.down_proj.weight"), "keep");
}

TEST(Plan, WhatDecidedIsKept) {
  Recipe recipe = nf4();
  recipe.embeddings = "bf16";
  recipe.default_skips = false;
  recipe.rules = {{".*up_proj.*", "fp4"}};
  recipe.skips = {".*down_proj.*"};
  Plan plan = make_plan(llama(), recipe);
  const auto decided = [&] {
    std::map<std::string, DecidedBy> by_name;
    for (const PlannedTensor& tensor : plan.tensors) by_name[tensor.info.name] = tensor.decided_by;
    return by_name;
  };
  const std::map<std::string, DecidedBy> expected{{"model.embed_tokens.weight", DecidedBy::embeddings},
                                                  {"model.layers.0.self_attn.q_proj.weight", DecidedBy::model},
                                                  {"model.layers.0.mlp.up_proj.weight", DecidedBy::rule},
                                                  {"model.layers.0.mlp.down_proj.weight", DecidedBy::skip},
                                                  {"model.layers.0.input_layernorm.weight", DecidedBy::model},
                                                  {"lm_head.weight", DecidedBy::all_layers}};
  EXPECT_EQ(decided(), expected);
  recipe.lm_head = "nf4";
  plan = make_plan(llama(), recipe);
  EXPECT_EQ(decided().at("lm_head.weight"), DecidedBy::lm_head);
  PlannedTensor tensor = plan.tensors[0];
  tensor.decided_by = DecidedBy::skip;
  plan.tensors.replace(0, tensor);
  EXPECT_EQ(decided().at("model.embed_tokens.weight"), DecidedBy::skip);
}

TEST(Plan, RuleThatMatchesNothingIsAnError) {
  Recipe recipe = nf4();
  recipe.rules = {{"layers.9.*", "keep"}};
  EXPECT_EQ(error_of([&] { (void)make_plan(llama(), recipe); }, Errc::usage),
            "tensor pattern 'layers.9.*' matches no tensor");
  recipe.rules = {{"model", "keep"}};  // the whole name has to match
  EXPECT_EQ(error_of([&] { (void)make_plan(llama(), recipe); }, Errc::usage),
            "tensor pattern 'model' matches no tensor as a whole name; 'model.*' matches 5");
  recipe.rules.clear();
  recipe.skips = {"("};
  EXPECT_THAT(error_of([&] { (void)make_plan(llama(), recipe); }, Errc::usage), HasSubstr("skip pattern '('"));
  recipe.skips.clear();
  recipe.rules = {{".*layernorm.*", "nf4"}};
  EXPECT_EQ(error_of([&] { (void)make_plan(llama(), recipe); }, Errc::usage),
            "tensor pattern '.*layernorm.*' matches only tensors that nf4 cannot store");
}

// The model would multiply by the codes, whichever loader reads them.
TEST(Plan, NothingQuantizesAWeightThatIsUsedOutsideItsLayer) {
  MemoryReader mamba;
  mamba.set_architecture("MambaForCausalLM", false);
  for (const std::string name : {"dt_proj", "x_proj"})
    mamba.add_normal("backbone.layers.0.mixer." + name + ".weight", DType::bf16, {64, 64});
  Recipe recipe = nf4();
  recipe.allow_nibble_only = true;
  recipe.default_skips = false;
  recipe.rules = {{".*_proj.weight", "int8"}};
  const Plan plan = make_plan(mamba, recipe);
  EXPECT_EQ(codecs(plan).at("backbone.layers.0.mixer.dt_proj.weight"), "keep");
  EXPECT_EQ(codecs(plan).at("backbone.layers.0.mixer.x_proj.weight"), "int8");
  EXPECT_EQ(plan.tensors[0].reason, "weight used outside the layer; tensor pattern .*_proj.weight cannot quantize it");
  recipe.rules = {{".*dt_proj.weight", "int8"}};
  EXPECT_EQ(
      error_of([&] { (void)make_plan(mamba, recipe); }, Errc::usage),
      "tensor pattern '.*dt_proj.weight' matches only weights that the model uses outside their layers, where int8 "
      "codes cannot replace them");
}

TEST(Plan, TensorsThatACodecCannotStoreAreNamedWithTheirFile) {
  Recipe recipe;
  recipe.to = recipe.embeddings = "int8";
  MemoryReader cube;
  cube.set_architecture("LlamaForCausalLM", false);
  cube.add_normal("model.embed_tokens.weight", DType::bf16, {2, 3, 4});
  EXPECT_EQ(error_of([&] { (void)make_plan(cube, recipe); }, Errc::usage),
            "/file0: tensor 'model.embed_tokens.weight' is BF16 2 x 3 x 4: codec int8 cannot store it");
}

// An FP8 tensor without scales is not decoded.
TEST(Plan, CastsNameTheNumbersThatTheyLeaveAsTheyAre) {
  MemoryReader in;
  in.add_normal("a", DType::bf16, {4});
  in.add({"b", DType::f8_e4m3, {4}}, std::vector<std::byte>(4));
  Recipe recipe;
  recipe.to = "fp16";
  EXPECT_THAT(texts(make_plan(in, recipe).warnings),
              ElementsAre("tensor 'b' in F8_E4M3 stays as it is: only F64, F32, BF16 and F16 are cast"));
  in.add({"c", DType::f8_e5m2, {4}}, std::vector<std::byte>(4));
  in.add({"d", DType::i8, {4}}, std::vector<std::byte>(4));
  EXPECT_THAT(texts(make_plan(in, recipe).warnings),
              ElementsAre("tensor 'b' in F8_E4M3 and 1 more stay as they are: only F64, F32, BF16 and F16 are cast"));
  recipe.skips = {"b|c"};
  EXPECT_TRUE(make_plan(in, recipe).warnings.empty());
}

// Each with options of its own, and the last match wins.
TEST(Plan, EveryTensorHasTheOptionsOfItsCodec) {
  Recipe recipe;
  recipe.to = "nf4:block-size=128";
  recipe.lm_head = "nf4";
  recipe.rules = {{".*down_proj.*", "nf4:block-size=32,double-quant=no"}};
  const MemoryReader in = llama();
  const Plan plan = make_plan(in, recipe);
  EXPECT_FALSE(plan.nibble_only);
  for (const PlannedTensor& tensor : plan.tensors) {
    if (!tensor.quantized) continue;
    const bool is_down = tensor.info.name.find("down_proj") != std::string::npos;
    EXPECT_EQ(tensor.codec, is_down                                   ? "nf4:block-size=32,double-quant=no"
                            : tensor.decided_by == DecidedBy::lm_head ? "nf4"
                                                                      : "nf4:block-size=128")
        << tensor.info.name;
    EXPECT_EQ(tensor.stored_bytes, stored_bytes(*make_codec(tensor.codec), tensor.info));
  }
}

TEST(Plan, LmHeadAloneStaysLoadable) {
  Recipe recipe = nf4();
  recipe.lm_head = "nf4";
  const Plan plan = make_plan(llama(), recipe);
  EXPECT_EQ(codecs(plan).at("lm_head.weight"), "nf4");
  EXPECT_FALSE(plan.nibble_only);
}

// Older configurations do not say whether the head is tied. One that is stored is not.
TEST(Plan, StoredHeadIsNotTiedUnlessTheConfigSaysSo) {
  MemoryReader in = llama();
  in.set_architecture("LlamaForCausalLM");
  Recipe recipe = nf4();
  recipe.lm_head = "nf4";
  EXPECT_EQ(codecs(make_plan(in, recipe)).at("lm_head.weight"), "nf4");
}

// DeepSeek-V4's head is renamed by its whole name as it is loaded, which no quantized form of it survives.
TEST(Plan, RolesAreForTheSchemeOfTheRecipe) {
  MemoryReader deepseek;
  deepseek.set_architecture("DeepseekV4ForCausalLM", false);
  deepseek.add_normal("head.weight", DType::bf16, {64, 64});
  const auto role = [&](const char* codec) { return make_plan(deepseek, test::recipe(codec)).tensors[0].role; };
  EXPECT_EQ(role("bf16"), Role::output_embeddings);
  EXPECT_EQ(role("nf4"), Role::other);
  EXPECT_EQ(role("fp8"), Role::other);

  const std::string module = "encoder.block.0.layer.1.DenseReluDense.wo";
  MemoryReader t5;
  t5.set_architecture("T5ForConditionalGeneration", true);
  t5.add_normal(module + ".weight", DType::bf16, {64, 64});
  const auto keeps = [&](const char* codec) { return make_plan(t5, test::recipe(codec)).tensors.keeps(0); };
  EXPECT_EQ(keeps("nf4"), std::vector<std::string>());
  EXPECT_EQ(keeps("fp8"), std::vector<std::string>{module});
}

TEST(Plan, NoDefaultSkipsQuantizesTheHead) {
  Recipe recipe = nf4();
  recipe.default_skips = false;
  EXPECT_EQ(codecs(make_plan(llama(), recipe)).at("lm_head.weight"), "nf4");
}

TEST(Plan, WhatBitsandbytesCannotSayIsRefused) {
  Recipe embeddings = nf4();
  embeddings.embeddings = "nf4";
  EXPECT_EQ(
      error_of([&] { (void)make_plan(llama(), embeddings); }, Errc::usage),
      "/: tensor 'model.embed_tokens.weight' (nf4) is not a linear layer of the model: transformers could not load the "
      "result");
  EXPECT_EQ(remedy_of([&] { (void)make_plan(llama(), embeddings); }).kind, Remedy::Kind::allow_nibble_only);
  Recipe mixed = nf4();
  mixed.rules = {{".*up_proj.*", "int8"}};
  EXPECT_THAT(error_of([&] { (void)make_plan(llama(), mixed); }, Errc::usage), HasSubstr("bits, but others have"));
  mixed.allow_nibble_only = true;
  const Plan plan = make_plan(llama(), mixed);
  EXPECT_TRUE(plan.nibble_only);
}

TEST(Plan, UnknownArchitectureFallsBackToNamesAndSaysSo) {
  MemoryReader in;
  in.set_architecture("NoSuchForCausalLM");
  in.add_normal("blocks.0.fc.weight", DType::f32, {256, 256});
  const Plan plan = make_plan(in, nf4());
  EXPECT_EQ(plan.tensors[0].codec, "nf4");
  EXPECT_THAT(plan.tensors[0].reason, HasSubstr("by name and shape"));
  EXPECT_THAT(texts(plan.warnings), Contains(HasSubstr("NoSuchForCausalLM is not in the table")));
}

TEST(Plan, ThatNothingIsDoneIsSaidAndWhy) {
  MemoryReader empty;
  EXPECT_THAT(texts(make_plan(empty, nf4()).warnings), Contains("nothing is quantized: the input has no tensors"));
  MemoryReader ids;
  ids.add({"ids", DType::i64, {2}}, std::vector<std::byte>(16));
  const std::string no_weights = ": no tensor of the input has a weight type (F64, F32, BF16, F16)";
  EXPECT_THAT(texts(make_plan(ids, nf4()).warnings), Contains("nothing is quantized" + no_weights));
  Recipe cast;
  cast.to = "bf16";
  EXPECT_THAT(texts(make_plan(ids, cast).warnings), Contains("nothing is cast" + no_weights));
  ids.add_normal("a.bias", DType::f32, {8});
  EXPECT_TRUE(make_plan(ids, cast).warnings.empty());
  ids.add_normal("b.bias", DType::f32, {8});
  const auto warnings = make_plan(ids, nf4()).warnings;
  EXPECT_THAT(texts(warnings),
              Contains(testing::MatchesRegex("nothing is quantized: the reason for 2 of 2 tensors is '.+'")));
  EXPECT_THAT(remedies(warnings), Contains(Remedy::Kind::reasons));
  EXPECT_THAT(texts(warnings), testing::Not(Contains(HasSubstr("0.0 %"))));
  ids.add_normal("up_proj.weight", DType::f32, {64, 64});
  EXPECT_THAT(texts(make_plan(ids, nf4()).warnings), testing::Not(Contains(HasSubstr("nothing is"))));
  ids.add_normal("embed_tokens.weight", DType::f32, {64, 64});
  Recipe none = nf4();
  none.skips = {".*"};
  EXPECT_THAT(texts(make_plan(ids, none).warnings),
              testing::AllOf(Contains(HasSubstr("the reason for 4 of 4 tensors is 'skip pattern .*'")),
                             Contains(HasSubstr("% of the weights' bytes are embeddings"))));
}

TEST(Plan, LowShareIsSaid) {
  MemoryReader in = llama();
  in.add_normal("model.layers.1.input_layernorm.weight", DType::bf16, {10'000'000});
  EXPECT_THAT(texts(make_plan(in, nf4()).warnings),
              Contains("only 10.9 % of the weights' bytes are quantized; 0.1 % are embeddings"));
}

// A forward pass of such a model fails: transformers casts the weights of a plain model, and not of this one.
TEST(Plan, WeightsOfAnotherTypeThanTheModelAreSaid) {
  const auto warnings = [](DType norms, const Recipe& recipe) {
    MemoryReader in;
    in.set_architecture("T5ForConditionalGeneration", false);
    in.add_normal("shared.weight", DType::bf16, {64, 64});
    in.add_normal("encoder.block.0.layer.0.SelfAttention.q.weight", DType::bf16, {512, 64});
    in.add_normal("encoder.block.0.layer.1.DenseReluDense.wo.weight", DType::f32, {64, 64});  // kept in fp32
    in.add_normal("encoder.block.0.layer.0.layer_norm.bias", DType::f32, {64});  // transformers casts biases
    in.add_normal("encoder.block.0.layer.0.layer_norm.weight", norms, {64});
    in.add_normal("encoder.block.0.layer.1.layer_norm.weight", norms, {64});
    return make_plan(in, recipe).warnings;
  };
  const auto said =
      Contains(HasSubstr("'encoder.block.0.layer.0.layer_norm.weight' (F32) and 1 more plain weights are "
                         "not of the model's type, BF16"));
  EXPECT_THAT(texts(warnings(DType::f32, nf4())), said);
  EXPECT_THAT(remedies(warnings(DType::f32, nf4())), Contains(Remedy::Kind::plain_types));
  EXPECT_THAT(remedies(warnings(DType::bf16, nf4())), testing::Not(Contains(Remedy::Kind::plain_types)));
  Recipe cast = nf4();
  cast.rules = {{".*norm.*", "bf16"}};
  EXPECT_THAT(remedies(warnings(DType::f32, cast)), testing::Not(Contains(Remedy::Kind::plain_types)));
  Recipe keep = nf4();
  keep.skips = {".*norm.*"};
  EXPECT_THAT(remedies(warnings(DType::f32, keep)), Contains(Remedy::Kind::plain_types));
  Recipe nibble_only = nf4();
  nibble_only.allow_nibble_only = true;
  nibble_only.embeddings = "nf4";  // only nibble.load() reads that
  EXPECT_THAT(remedies(warnings(DType::f32, nibble_only)), testing::Not(Contains(Remedy::Kind::plain_types)));
  Recipe embeddings = nf4();
  embeddings.embeddings = "fp16";
  EXPECT_THAT(remedies(warnings(DType::bf16, embeddings)), testing::Not(Contains(Remedy::Kind::plain_types)));
  for (const char* const to : {"bf16", "fp8"}) {
    Recipe other;
    other.to = to;
    EXPECT_THAT(remedies(warnings(DType::f32, other)), testing::Not(Contains(Remedy::Kind::plain_types))) << to;
  }
}

// transformers would cast these weights of a plain model itself. The type of the model is that of the others.
TEST(Plan, WhatTransformersKeepsInFp32IsStoredSo) {
  const std::string wo = "encoder.block.0.layer.1.DenseReluDense.wo.weight";
  const auto planned = [&](DType dtype, const Recipe& recipe) {
    MemoryReader in;
    in.set_architecture("T5ForConditionalGeneration", false);
    in.add_normal("encoder.block.0.layer.0.SelfAttention.q.weight", dtype, {64, 64});
    in.add_normal(wo, dtype, {64, 640});
    in.add_normal("shared.weight", dtype, {64, 64});
    return make_plan(in, recipe);
  };
  const Plan plan = planned(DType::f16, nf4());
  EXPECT_EQ(plan.tensors[1].codec.text(), "fp32");
  EXPECT_EQ(plan.tensors[1].decided_by, DecidedBy::loader);
  EXPECT_EQ(plan.tensors[1].reason, "kept in fp32; stored as fp32, in which transformers keeps it");
  EXPECT_TRUE(plan.tensors[2].codec.keeps());
  EXPECT_EQ(plan.dtype, DType::f16);
  EXPECT_THAT(remedies(plan.warnings), testing::Not(Contains(Remedy::Kind::plain_types)));
  EXPECT_TRUE(planned(DType::bf16, nf4()).tensors[1].codec.keeps());
  EXPECT_TRUE(planned(DType::f32, nf4()).tensors[1].codec.keeps());
  Recipe rule = nf4();
  rule.rules = {{".*wo.*", "keep"}};
  EXPECT_TRUE(planned(DType::f16, rule).tensors[1].codec.keeps());
  rule.rules = {{".*wo.*", "fp16"}};
  EXPECT_EQ(planned(DType::f16, rule).tensors[1].codec.text(), "fp16");
  for (const char* const to : {"bf16", "fp8"}) {
    Recipe other;
    other.to = to;
    EXPECT_NE(planned(DType::f16, other).tensors[1].codec.text(), "fp32") << to;
  }
}

// No figure of what is not there, and none that says 0 of what is.
TEST(Plan, SharesAreNeverNought) {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM", true);
  in.add_normal("model.layers.0.input_layernorm.weight", DType::bf16, {10'000'000});
  in.add_normal("model.layers.0.mlp.up_proj.weight", DType::bf16, {64, 64});
  EXPECT_THAT(texts(make_plan(in, nf4()).warnings), Contains("less than 0.1 % of the weights' bytes are quantized"));
  Recipe none = nf4();
  none.skips = {".*up_proj.*"};
  EXPECT_THAT(texts(make_plan(in, none).warnings), Not(Contains(HasSubstr("of the weights' bytes"))));
  in.add_normal("model.embed_tokens.weight", DType::bf16, {64, 64});
  EXPECT_THAT(texts(make_plan(in, none).warnings), Contains("less than 0.1 % of the weights' bytes are embeddings"));
}

// Neither what is halved already nor what the user's own rule keeps.
TEST(Plan, EmbeddingsAreNotToBeHalvedTwice) {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM", false);
  for (const char* const name : {"model.embed_tokens.weight", "lm_head.weight"})
    in.add_normal(name, DType::f32, {100, 64});
  in.add_normal("model.layers.0.mlp.up_proj.weight", DType::f32, {64, 64});
  const auto warning = [&](const Recipe& recipe) { return make_plan(in, recipe).warnings.back().text; };
  const auto remedy = [&](const Recipe& recipe) { return make_plan(in, recipe).warnings.back().remedy.kind; };
  const std::string share = "only 24.2 % of the weights' bytes are quantized; 75.8 % are ";
  Recipe recipe = nf4();
  EXPECT_EQ(warning(recipe), share + "fp32 embeddings");
  EXPECT_EQ(remedy(recipe), Remedy::Kind::embeddings_and_lm_head);
  recipe.embeddings = "bf16";
  EXPECT_EQ(warning(recipe), share + "fp32 embeddings");
  EXPECT_EQ(remedy(recipe), Remedy::Kind::lm_head);
  recipe.embeddings = "keep";
  recipe.lm_head = "bf16";
  EXPECT_EQ(remedy(recipe), Remedy::Kind::embeddings);
  recipe.embeddings = "bf16";
  EXPECT_EQ(warning(recipe), share + "embeddings");
  EXPECT_EQ(remedy(recipe), Remedy::Kind::none);
  recipe.embeddings = "keep";
  recipe.skips = {".*embed.*"};
  EXPECT_EQ(warning(recipe), share + "embeddings");
}

TEST(Plan, ExpertsAreKeptAndTheirShareIsSaid) {
  MemoryReader in = llama();
  in.set_architecture("MixtralForCausalLM", false);
  for (const char* const w : {"w1", "w2", "w3"})
    in.add_normal("model.layers.0.block_sparse_moe.experts.0." + std::string(w) + ".weight", DType::bf16, {640, 640});
  const Plan plan = make_plan(in, nf4());
  EXPECT_EQ(codecs(plan).at("model.layers.0.block_sparse_moe.experts.0.w1.weight"), "keep");
  EXPECT_THAT(texts(plan.warnings), Contains(HasSubstr("are experts, which bitsandbytes cannot hold")));
  EXPECT_THAT(remedies(plan.warnings), Contains(Remedy::Kind::experts));
}

// Two parts of one name are seen before anything is written, in one shard or in two.
TEST(Plan, TensorsThatHaveTheNameOfAPartAreRefused) {
  const auto refusal = [](const char* to, const char* stray, std::uint64_t max_shard_bytes) {
    MemoryReader in = llama();
    in.add_normal(stray, DType::f32, {4}, 1);
    Recipe recipe;
    recipe.to = to;
    recipe.max_shard_bytes = max_shard_bytes;
    return error_of([&] { (void)make_plan(in, recipe); }, Errc::bad_input);
  };
  const std::string layer = "model.layers.0.mlp.up_proj.";
  for (const std::uint64_t max_shard_bytes : {1'000, 1'000'000'000}) {
    for (const auto& [to, part] : {std::pair{"nf4", "weight.absmax"}, {"int8", "SCB"}, {"fp8", "weight_scale"}}) {
      const std::string stray = layer + part;
      EXPECT_THAT(refusal(to, stray.c_str(), max_shard_bytes),
                  HasSubstr("1: tensors '" + layer + "weight' and '" + stray +
                            "' would both be stored with a part named '" + stray + "'"));
      EXPECT_EQ(refusal("bf16", stray.c_str(), max_shard_bytes), "");
    }
  }
}

TEST(Plan, ExpertsThatAreCutOutUnderTheNameOfATensorAreRefused) {
  MemoryReader in = llama();
  in.set_architecture("Qwen3MoeForCausalLM", false);
  const std::string experts = "model.layers.0.mlp.experts.";
  in.add_normal(experts + "gate_up_proj", DType::bf16, {2, 64, 64});
  Recipe recipe = nf4();
  recipe.experts = "nf4";
  recipe.allow_nibble_only = true;
  EXPECT_EQ(codecs(make_plan(in, recipe)).at(experts + "1.gate_up_proj.weight"), "nf4");
  in.add_normal(experts + "1.gate_up_proj.weight", DType::bf16, {64});
  EXPECT_THAT(error_of([&] { (void)make_plan(in, recipe); }, Errc::bad_input),
              HasSubstr("tensors '" + experts + "gate_up_proj' and '" + experts +
                        "1.gate_up_proj.weight' would both be stored with a part named '" + experts +
                        "1.gate_up_proj.weight'"));
}

TEST(Plan, OtherTypesPassThroughEveryTarget) {
  MemoryReader in = llama();
  in.add_normal("position_ids", DType::i64, {1, 512});
  in.add_normal("scales", DType::f8_e4m3, {64, 64});
  for (const char* const to : {"nf4", "int8", "fp16"}) {
    Recipe recipe;
    recipe.to = to;
    EXPECT_EQ(codecs(make_plan(in, recipe)).at("position_ids"), "keep") << to;
    EXPECT_EQ(codecs(make_plan(in, recipe)).at("scales"), "keep") << to;
  }
}

TEST(Plan, F64BecomesF32InAQuantizedModel) {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM");
  in.add_normal("model.embed_tokens.weight", DType::f64, {100, 64});
  in.add_normal("model.layers.0.mlp.up_proj.weight", DType::f64, {64, 64});
  const Plan plan = make_plan(in, nf4());
  EXPECT_EQ(plan.tensors[0].codec, "fp32");
  EXPECT_EQ(plan.tensors[1].codec, "nf4");
  EXPECT_EQ(plan.dtype, DType::f32);
}

TEST(Plan, SizesAreThoseOfTheFormula) {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM");
  in.add_normal("model.layers.0.mlp.up_proj.weight", DType::f32, {1024, 4096});
  const Plan plan = make_plan(in, nf4());
  constexpr std::uint64_t weights = 1024 * 4096;
  // codes, 8-bit absmax per 64, nested absmax per 64 x 256, the two codebooks; then the text of quant_state
  constexpr std::uint64_t bytes = weights / 2 + weights / 64 + 4 * weights / (64 * 256) + 4 * 16 + 4 * 256;
  EXPECT_GT(plan.stored_bytes(), bytes);
  EXPECT_LT(plan.stored_bytes(), bytes + 300);
}

}  // namespace
}  // namespace nibble::plan_test
