// What compressed-tensors stores, and quantization_config to the letter.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "nibble/error.hpp"
#include "quant/stream/stored_weights.hpp"
#include "tests/quant/schemes/scheme_support.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::compressed_tensors_test {
namespace {

using test::error_of;
using test::MemoryReader;
using test::recipe;
using Json = nlohmann::json;

MemoryReader llama(bool tied = false) {
  MemoryReader in;
  in.set_architecture("LlamaForCausalLM", tied);
  for (const char* const name : {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                                 "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"})
    in.add_normal(name, DType::bf16, {64, 64});
  if (!tied) in.add_normal("lm_head.weight", DType::bf16, {64, 64});
  return in;
}

Json config(const MemoryReader& in, const Recipe& recipe) {
  return Json::parse(quantization_config(make_plan(in, recipe)));
}

TEST(CompressedTensors, ConfigIsWhatThePackageWrites) {
  EXPECT_EQ(quantization_config(make_plan(llama(), recipe("fp8"))),
            R"({"config_groups":{"group_0":{"format":"float-quantized","input_activations":null,)"
            R"("output_activations":null,"targets":["Linear"],"weights":{"dynamic":false,"group_size":null,)"
            R"("num_bits":8,"strategy":"channel","symmetric":true,"type":"float"}}},"format":"float-quantized",)"
            R"("global_compression_ratio":null,"ignore":["lm_head"],"kv_cache_scheme":null,)"
            R"("quant_method":"compressed-tensors","quantization_status":"compressed","version":"0.20.0"})");
}

TEST(CompressedTensors, ConfigSaysWhichWeightsShareAScale) {
  const auto weights = [](const char* codec) {
    return config(llama(), recipe(codec)).at("config_groups").at("group_0").at("weights");
  };
  EXPECT_EQ(weights("fp8:scales=tensor").at("strategy"), "tensor");
  EXPECT_EQ(weights("fp8:scales=block").at("strategy"), "block");
  EXPECT_EQ(weights("fp8:scales=block").at("block_structure"), (Json{128, 128}));
  EXPECT_FALSE(weights("fp8:scales=tensor").contains("block_structure"));
}

// Only nibble reads these. What config.json says is about FP8 all the same, wherever it stands.
TEST(CompressedTensors, ConfigOfAMixtureIsThatOfItsFp8) {
  Recipe mixed = recipe("fp8");
  mixed.allow_nibble_only = true;
  mixed.rules = {{".*q_proj.*", "nf4"}, {".*up_proj.*", "fp8:scales=tensor"}};
  const auto strategy = [](const Recipe& recipe) {
    return config(llama(), recipe).at("config_groups").at("group_0").at("weights").at("strategy");
  };
  EXPECT_EQ(strategy(mixed), "tensor");
  mixed.rules = {{".*_proj.*", "nf4"}};
  EXPECT_EQ(strategy(mixed), "channel");
}

TEST(CompressedTensors, LayersThatStayPlainAreIgnored) {
  Recipe skip = recipe("fp8");
  skip.skips = {".*down_proj.*"};
  EXPECT_EQ(config(llama(), skip).at("ignore"), (Json{"lm_head", "model.layers.0.mlp.down_proj"}));
  EXPECT_EQ(config(llama(/*tied=*/true), recipe("fp8")).at("ignore"), Json{"lm_head"});  // which the file does not hold
  Recipe head = recipe("fp8");
  head.lm_head = "fp8";
  EXPECT_EQ(config(llama(), head).at("ignore"), Json::array());
  MemoryReader unknown;
  unknown.add_normal("layer.weight", DType::bf16, {64, 64});
  EXPECT_EQ(config(unknown, recipe("fp8")).at("ignore"), Json{"lm_head"});
}

// bitsandbytes never replaces T5's `wo`, and so no skip list of its names it.
TEST(CompressedTensors, LayersThatOnlyBitsandbytesLeavesAreIgnored) {
  MemoryReader t5;
  t5.set_architecture("T5ForConditionalGeneration", true);
  for (const char* const name :
       {"shared.weight", "encoder.block.0.layer.0.SelfAttention.q.weight",
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder.block.0.layer.1.DenseReluDense.wi.weight", "encoder.block.0.layer.1.DenseReluDense.wo.weight"})
    t5.add_normal(name, DType::bf16, {64, 64});
  EXPECT_EQ(config(t5, recipe("fp8")).at("ignore"), (Json{"encoder.block.0.layer.1.DenseReluDense.wo", "lm_head"}));
}

// Of modules that are numbered, and of which the file may have some, a pattern stands for those that it lacks.
TEST(CompressedTensors, NumberedLayersThatStayPlainAreAPattern) {
  MemoryReader detr;
  detr.set_architecture("DeformableDetrForObjectDetection", true);
  detr.add_normal("model.enc_output.weight", DType::f32, {64, 64});
  EXPECT_EQ(config(detr, recipe("fp8")).at("ignore"),
            (Json{"re:bbox_embed.[0-9]+.layers.[0-9]+$", "re:class_embed.[0-9]+$",
                  "re:model.decoder.bbox_embed.[0-9]+.layers.[0-9]+$", "re:model.decoder.class_embed.[0-9]+$"}));
  detr.add_normal("model.decoder.class_embed.0.weight", DType::f32, {64, 64});
  EXPECT_EQ(config(detr, recipe("fp8")).at("ignore"),
            (Json{"model.decoder.class_embed.0", "re:bbox_embed.[0-9]+.layers.[0-9]+$", "re:class_embed.[0-9]+$",
                  "re:model.decoder.bbox_embed.[0-9]+.layers.[0-9]+$"}));
}

// Such names are of no model that transformers has, but a file may hold any.
TEST(CompressedTensors, NamesOfModulesAreNeitherPatternsNorClasses) {
  MemoryReader in = llama(/*tied=*/true);
  for (const char* const name : {"re:.*.weight", "Linear.weight", "Linear.x.weight", "re.weight"})
    in.add_normal(name, DType::bf16, {64, 64});
  Recipe skip = recipe("fp8");
  skip.skips = {"re.*", "Linear.*"};
  EXPECT_EQ(config(in, skip).at("ignore"), (Json{"Linear.x", "lm_head", "re", R"(re:^Linear$)", R"(re:^re\:\.\*$)"}));
}

std::string obstacle_of(const MemoryReader& in, Recipe recipe) {
  recipe.allow_nibble_only = true;
  return obstacle(make_plan(in, recipe));
}

TEST(CompressedTensors, NamesWhatTransformersCannotLoad) {
  EXPECT_EQ(obstacle_of(llama(), recipe("fp8")), "");
  EXPECT_EQ(obstacle_of(llama(), recipe("fp8:format=e5m2")),
            "tensor 'model.layers.0.self_attn.q_proj.weight' (fp8:format=e5m2) is E5M2, but compressed-tensors reads "
            "only E4M3");
  Recipe mixed = recipe("fp8");
  mixed.rules = {{".*up_proj.*", "fp8:scales=block"}};
  EXPECT_EQ(obstacle_of(llama(), mixed),
            "tensor 'model.layers.0.mlp.up_proj.weight' (fp8:scales=block) has a scale per block where others have one "
            "per row");
  mixed.rules = {{".*up_proj.*", "nf4"}};
  EXPECT_EQ(obstacle_of(llama(), mixed),
            "tensor 'model.layers.0.mlp.up_proj.weight' (nf4) is not in a format of compressed-tensors");
  mixed.rules = {{".*embed_tokens.*", "fp8"}};
  EXPECT_EQ(obstacle_of(llama(), mixed), "tensor 'model.embed_tokens.weight' (fp8) is not a linear layer of the model");
  Recipe other = recipe("nf4");
  other.rules = {{".*up_proj.*", "fp8"}};
  EXPECT_EQ(obstacle_of(llama(), other),
            "tensor 'model.layers.0.mlp.up_proj.weight' (fp8) is not in a format of bitsandbytes");
  MemoryReader gpt2;
  gpt2.set_architecture("GPT2LMHeadModel", true);
  gpt2.add_normal("h.0.attn.c_attn.weight", DType::f32, {64, 192});
  EXPECT_EQ(obstacle_of(gpt2, recipe("fp8")),
            "tensor 'h.0.attn.c_attn.weight' (fp8) is a Conv1D, which compressed-tensors leaves as it is");
}

// Layers were chosen as bitsandbytes loads them.
TEST(CompressedTensors, RulesOfAnotherSchemeThatQuantizeNothingAreAnObstacle) {
  Recipe mixed = recipe("bf16");
  mixed.rules = {{".*up_proj.*", "fp8"}, {".*down_proj.*", "nf4"}};
  mixed.skips = {".*down_proj.*"};
  EXPECT_EQ(obstacle_of(llama(), mixed),
            "the last rule that quantizes asks for bitsandbytes, but all quantized tensors are those of "
            "compressed-tensors");
  std::swap(mixed.rules[0], mixed.rules[1]);
  EXPECT_EQ(obstacle_of(llama(), mixed), "");
}

// Its converters take one tensor apart or put several together, and with the scale there are always several.
TEST(CompressedTensors, ArchitecturesWhoseTensorsAreSplitCannotBeLoaded) {
  MemoryReader dino;
  dino.set_architecture("Dinov2Model");
  dino.add_normal("encoder.layer.0.mlp.fc1.weight", DType::f32, {64, 64});
  EXPECT_EQ(obstacle_of(dino, recipe("fp8")),
            "transformers 5.23.0 splits tensors of Dinov2Model when it loads them, which it cannot do with "
            "compressed-tensors");
  EXPECT_EQ(obstacle_of(dino, recipe("nf4")), "");
}

TEST(CompressedTensors, OthersThanTransformersAreSaidToReadTheRest) {
  Recipe wide = recipe("fp8:format=e5m2");
  EXPECT_THROW((void)make_plan(llama(), wide), Error);
  wide.allow_nibble_only = true;
  EXPECT_EQ(config(llama(), wide).at("quant_method"), "nibble");
}

MemoryReader file(DType codes, const Shape& shape, DType scales, const Shape& scale_shape) {
  MemoryReader in;
  in.add({"a.weight", codes, shape}, test::Bytes(element_count(shape), std::byte{0x38}));  // 1 in E4M3
  in.add({"a.weight_scale", scales, scale_shape},
         scales == DType::u8 ? test::Bytes(element_count(scale_shape))
                             : test::stored_as(scales, std::vector<float>(element_count(scale_shape), 2)));
  return in;
}

StoredTensor stored_in(const MemoryReader& in) { return StoredWeights(in)[0].stored; }

// Whoever wrote them.
TEST(CompressedTensors, ShapesOfScalesTellTheStrategy) {
  for (const auto& [shape, codec] : {std::pair<Shape, CodecSpec>{{1}, "fp8:scales=tensor"},
                                     {{}, "fp8:scales=tensor"},
                                     {{300, 1}, "fp8"},
                                     {{3, 2}, "fp8:scales=block"}})
    EXPECT_EQ(stored_in(file(DType::f8_e4m3, {300, 200}, DType::f16, shape)).codec, codec) << to_string(shape);
  EXPECT_EQ(stored_in(file(DType::f8_e5m2, {300, 200}, DType::f16, {1})).codec, "fp8:format=e5m2,scales=tensor");
}

TEST(CompressedTensors, TheTypeOfScalesIsThatOfTheWeightsBefore) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    EXPECT_EQ(stored_in(file(DType::f8_e4m3, {3, 4}, type, {3, 1})).info, (TensorInfo{"a.weight", type, {3, 4}}));
}

TEST(CompressedTensors, WhatIsNotItsOwnIsLeft) {
  EXPECT_EQ(StoredWeights(file(DType::i8, {3, 4}, DType::f32, {3, 1})).size(), 2U);
  EXPECT_EQ(StoredWeights(file(DType::f8_e4m3, {3, 64}, DType::u8, {3, 2})).size(), 2U);  // MXFP8
  MemoryReader alone;
  alone.add({"a.weight", DType::f8_e4m3, {3, 4}}, test::Bytes(12));
  EXPECT_FALSE(StoredWeights(alone)[0].quantized());
}

TEST(CompressedTensors, ScalesThatDoNotFitAreRefused) {
  EXPECT_EQ(
      error_of([] {
        (void)stored_in(file(DType::f8_e4m3, {300, 200}, DType::f32, {2, 2}));
      }),
      "/file0: tensor 'a.weight_scale': shape is 2 x 2; the scales of codes of 300 x 200 are 1 or 300 x 1 or 3 x 2");
}

// ---- as input of a conversion ----------------------------------------------------------------------------------

// Scales of inputs have no meaning without the codes that they were found for.
TEST(CompressedTensors, ScalesOfInputsBelongToTheTensor) {
  MemoryReader in = file(DType::f8_e4m3, {3, 4}, DType::f32, {1});
  in.add_normal("a.input_scale", DType::f32, {1});
  in.add_normal("b.input_scale", DType::f32, {1});
  const StoredWeights stored(in);
  ASSERT_EQ(stored.size(), 2U);
  EXPECT_EQ(stored[0].stored.parts, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_EQ(stored[1].stored.info.name, "b.input_scale");
  MemoryReader large = file(DType::f8_e4m3, {3, 4}, DType::f32, {1});
  large.add_normal("a.input_scale", DType::f32, {2});  // no scale of all inputs, so it is not dropped
  EXPECT_EQ(StoredWeights(large).size(), 2U);
}

// A loader would not know what to do with them.
TEST(CompressedTensors, ScalesOfOutputsAndOfTheCacheAreLeftOut) {
  MemoryReader in = file(DType::f8_e4m3, {3, 4}, DType::f32, {1});
  in.add_normal("a.output_scale", DType::f32, {1});
  in.add({"a.input_zero_point", DType::f8_e4m3, {1}}, test::Bytes(1));
  in.add_normal("a.output_zero_point", DType::f32, {1});
  in.add_normal("attn.k_scale", DType::f32, {1});
  EXPECT_EQ(StoredWeights(in).size(), 2U);  // nothing says whose attn.k_scale is
  in.set_quant_method("compressed-tensors");
  EXPECT_EQ(StoredWeights(in).size(), 1U);
  EXPECT_EQ(StoredWeights(in)[0].stored.parts.size(), 5U);
  MemoryReader plain;
  plain.set_quant_method("compressed-tensors");
  plain.add_normal("attn.k_scale", DType::f32, {1});
  EXPECT_EQ(StoredWeights(plain).size(), 1U);  // nothing is decoded
}

TEST(CompressedTensors, GroupsOfARowAreLeftToOthers) {
  EXPECT_EQ(StoredWeights(file(DType::f8_e4m3, {300, 200}, DType::f32, {300, 4})).size(), 2U);
  EXPECT_EQ(
      error_of([] {
        (void)stored_in(file(DType::f8_e4m3, {300, 200}, DType::f32, {300, 3}));
      }),
      "/file0: tensor 'a.weight_scale': shape is 300 x 3; the scales of codes of 300 x 200 are 1 or 300 x 1 or 3 x 2");
}

std::string refusal(const MemoryReader& in) {
  return error_of([&] { (void)make_plan(in, recipe("nf4")); });
}

// It would be copied as numbers that nobody knows the meaning of.
TEST(CompressedTensors, CodesOfOtherFormsAreNoInput) {
  const auto why = [](std::string_view form, std::string_view method = "compressed-tensors") {
    return fmt::format(
        "/file0: tensor 'a.weight' is {}: quantized already by {} in a form that nibble does not decode; it takes "
        "matrices in FP8 with a scale per tensor, row or block of 128 x 128",
        form, method);
  };
  EXPECT_EQ(refusal(file(DType::f8_e4m3, {300, 200}, DType::f32, {300, 4})), why("F8_E4M3 300 x 200"));
  EXPECT_EQ(refusal(file(DType::i8, {3, 4}, DType::f32, {3, 1})), why("I8 3 x 4"));
  MemoryReader alone;  // its scales are lost
  alone.add({"a.weight", DType::f8_e4m3, {3, 4}}, test::Bytes(12));
  EXPECT_EQ(refusal(alone), "");  // a plain cast to FP8
  alone.set_quant_method("compressed-tensors");
  const std::string scale_is_missing =
      "/file0: tensor 'a.weight' is F8_E4M3 3 x 4, but its scale 'a.weight_scale' is missing";
  EXPECT_EQ(refusal(alone), scale_is_missing);
  alone.set_quant_method("nibble");
  EXPECT_EQ(refusal(alone), scale_is_missing);
  alone.set_quant_method("fp8");
  EXPECT_EQ(refusal(alone),
            "/file0: tensor 'a.weight' is F8_E4M3 3 x 4, but its scale 'a.weight_scale_inv' is missing");
}

// Scales of 2 x 2 fit blocks of 100 x 100 as well: only config.json tells.
TEST(CompressedTensors, BlocksOfOtherShapesAreNoInput) {
  const auto refused = [](const char* config) {
    MemoryReader in = file(DType::f8_e4m3, {200, 200}, DType::f32, {2, 2});
    in.set_quant_method("compressed-tensors", config);
    return refusal(in);
  };
  EXPECT_EQ(refused(R"({"config_groups":{"group_0":{"weights":{"block_structure":[128,128]}}}})"), "");
  EXPECT_EQ(refused(R"({"config_groups":{"group_0":{"weights":{"block_structure":null}}}})"), "");
  EXPECT_EQ(refused(R"({"config_groups":{"group_0":{"weights":null},"group_1":[]}})"), "");
  EXPECT_EQ(refused(R"({"config_groups":7})"), "");
  EXPECT_EQ(refused(R"({"x":NaN})"),
            "/file0: tensor 'a.weight' is quantized already, and the quantization_config of config.json is not strict "
            "JSON (NaN, for example, is not)");
  EXPECT_EQ(refused(R"({"config_groups":{"a":{},"group_0":{"weights":{"block_structure":[100,100]}}}})"),
            "/file0: tensor 'a.weight' is quantized in blocks of [100,100], as config_groups.group_0.weights of "
            "config.json says; nibble takes blocks of "
            "128 x 128");
}

// A scale for each tensor, whatever config.json says.
std::string refusal_of(const std::string& config) {
  MemoryReader in = file(DType::f8_e4m3, {64, 64}, DType::f32, {1});
  in.set_quant_method("compressed-tensors", config);
  return refusal(in);
}

// The shapes of the tensors would fit.
TEST(CompressedTensors, WeightsOfOtherFormsAreNoInput) {
  const auto refused = [](const std::string& weights) {
    std::string text =
        refusal_of(R"({"config_groups":{"a":{"weights":{"type":"float"}},"b":{"weights":)" + weights + "}}}");
    const std::string about = "/file0: tensor 'a.weight' is ";
    if (text.starts_with(about)) text.erase(0, about.size());
    return text;
  };
  EXPECT_EQ(refused(R"({"type":"int"})"),
            R"(quantized with type 'int', as config_groups.b.weights of config.json says; nibble takes 'float')");
  EXPECT_EQ(refused(R"({"num_bits":4})"),
            "quantized with num_bits 4, as config_groups.b.weights of config.json says; nibble takes 8");
  EXPECT_EQ(
      refused(R"({"strategy":"group"})"),
      R"(quantized with strategy 'group', as config_groups.b.weights of config.json says; nibble takes 'tensor' or 'channel' or 'block')");
  EXPECT_EQ(refused(R"({"symmetric":false})"),
            "quantized with symmetric false, as config_groups.b.weights of config.json says; nibble takes true");
  EXPECT_EQ(
      refused(R"({"actorder":"weight"})"),
      R"(quantized with actorder 'weight', as config_groups.b.weights of config.json says; nibble takes null or false)");
  EXPECT_EQ(refused("{}"), "");
  EXPECT_EQ(refused(R"({"actorder":null,"num_bits":8,"strategy":null,"symmetric":true,"type":"float"})"), "");
  for (const char* const strategy : {"tensor", "channel", "block"})
    EXPECT_EQ(refused(R"({"actorder":false,"strategy":")" + std::string(strategy) + "\"}"), "") << strategy;
}

// Decoded, rotated weights would make a model that computes something else.
TEST(CompressedTensors, ModelsThatAreMoreThanTheirWeightsAreNoInput) {
  using testing::HasSubstr;
  const char* const transforms =
      "quantized after transforms such as rotations, as transform_config of config.json says";
  EXPECT_THAT(refusal_of(R"({"transform_config":{"config_groups":{"R1":{"type":"hadamard"}}}})"),
              HasSubstr(transforms));
  EXPECT_THAT(refusal_of(R"({"transform_config":{"other":1}})"), HasSubstr(transforms));
  EXPECT_THAT(refusal_of(R"({"transform_config":"hadamard"})"), HasSubstr(transforms));
  for (const char* const none : {"null", "{}", "[]", R"({"config_groups":{}})", R"({"config_groups":null})"})
    EXPECT_EQ(refusal_of(R"({"transform_config":)" + std::string(none) + "}"), "") << none;
  EXPECT_EQ(refusal_of(R"({"sparsity_config":{"format":"sparse-24-bitmask"}})"),
            "/file0: tensor 'a.weight' is compressed as sparse, as sparsity_config of config.json says: format "
            "'sparse-24-bitmask'; nibble takes 'dense'");
  EXPECT_NE(refusal_of(R"({"sparsity_config":"sparse-bitmask"})"), "");
  for (const char* const none : {"null", "{}", R"({"format":null})", R"({"format":""})", R"({"format":"dense"})"})
    EXPECT_EQ(refusal_of(R"({"sparsity_config":)" + std::string(none) + "}"), "") << none;
}

// Two layers in FP8: one with a scale per row, one with a scale for all.
MemoryReader two_groups(const std::string& config) {
  MemoryReader in;
  in.set_quant_method("compressed-tensors", config);
  const auto add = [&](const std::string& module, const Shape& scales) {
    in.add({module + ".weight", DType::f8_e4m3, {64, 64}}, test::Bytes(64 * 64, std::byte{0x38}));
    in.add({module + ".weight_scale", DType::f32, scales},
           test::stored_as(DType::f32, std::vector<float>(element_count(scales), 2)));
  };
  add("h.0.attn.q_proj", {64, 1});
  add("h.0.mlp.up_proj", {1});
  return in;
}

std::string groups(const std::string& first, const std::string& second, const std::string& ignore = "[]") {
  return R"({"config_groups":{"a":{"targets":)" + first + R"(,"weights":{"strategy":"channel"}},"b":{"targets":)" +
         second + R"(,"weights":{"strategy":"tensor"}}},"ignore":)" + ignore + "}";
}

TEST(CompressedTensors, GroupsThatDifferAreDecodedEachInItsWay) {
  for (const auto& [first, second] :
       {std::pair{R"(["re:.*attn.*"])", R"(["re:.*mlp.*"])"},
        {R"(["h.0.attn.q_proj"])", R"(["Linear"])"},
        {R"(["re:h\\.0\\.attn"])", R"(["SomeMlp"])"},  // from the beginning of a name, and a class
        {R"(["Linear"])", R"(["Linear"])"}}) {
    const MemoryReader in = two_groups(groups(first, second));
    const StoredWeights stored(in);
    ASSERT_EQ(stored.size(), 2U) << first << second;
    EXPECT_EQ(stored[0].stored.codec, "fp8");
    EXPECT_EQ(stored[1].stored.codec, "fp8:scales=tensor");
    EXPECT_EQ(refusal(in), "");
  }
}

// The weights would be decoded by one of two descriptions that contradict each other.
TEST(CompressedTensors, TensorsThatContradictTheirGroupAreNoInput) {
  const std::string about = "/file0: tensor 'h.0.attn.q_proj.weight' is in FP8 with a scale per row, but ";
  const auto expect_refused = [&](const std::string& config, const std::string& why) {
    const MemoryReader in = two_groups(config);
    EXPECT_EQ(refusal(in), about + why);
    EXPECT_EQ(StoredWeights(in).undecodable(0), "in FP8 with a scale per row, but " + why);
  };
  expect_refused(groups(R"(["re:.*mlp.*"])", R"(["re:.*attn.*"])"),
                 "config_groups.b.weights.strategy of config.json is 'tensor'");
  expect_refused(groups(R"(["re:attn"])", R"(["re:.*mlp.*"])"),  // patterns begin where names do
                 "config_groups of config.json has no group with it among its targets");
  expect_refused(groups(R"(["h.0.attn"])", R"(["re:.*mlp.*"])"),
                 "config_groups of config.json has no group with it among its targets");
  for (const char* const ignore : {R"(["h.0.attn.q_proj"])", R"(["lm_head","re:.*attn.*"])", R"(["Linear"])"})
    expect_refused(groups(R"(["Linear"])", R"(["Linear"])", ignore),
                   "ignore of config.json says that it is not quantized");
  EXPECT_EQ(refusal(two_groups(groups(R"(["Linear"])", R"(["Linear"])", R"(["lm_head","re:attn","h.0.attn","Mlp"])"))),
            "");
}

// What a pattern means has to be known before a tensor can be said not to match.
TEST(CompressedTensors, ListsThatCannotBeAppliedAreNoInput) {
  const auto refused = [](const std::string& config) {
    std::string text = refusal(two_groups(config));
    const std::string about =
        "/file0: tensor 'h.0.attn.q_proj.weight' is quantized as lists say that nibble cannot apply: in config.json, ";
    if (text.starts_with(about)) text.erase(0, about.size());
    return text;
  };
  const char* const all = R"(["Linear"])";
  EXPECT_EQ(refused(groups(R"j(["re:(?!x)"])j", all)),
            "config_groups.a.targets has the pattern 're:(?!x)', which RE2 does not take: invalid perl operator: (?!");
  EXPECT_EQ(refused(groups(all, all, R"j(["re:("])j")),
            "ignore has the pattern 're:(', which RE2 does not take: missing ): (");
  // Of 1,000 instructions, and of 12,000.
  std::string large = "re:";
  EXPECT_EQ(refused(groups(all, all, R"(["re:[ab]{1000}"])")), "");
  for (int i = 0; i < 12; ++i) large += "[ab]{1000}";
  EXPECT_THAT(refused(groups(all, all, fmt::format(R"(["{}"])", large))),
              testing::EndsWith("which RE2 does not take: pattern too large - compile failed"));
  EXPECT_EQ(refused(groups(all, R"("Linear")")), "config_groups.b.targets is not a list");
  EXPECT_EQ(refused(groups(all, all, "[7]")), "ignore has an entry that is not a string");
  EXPECT_EQ(refused(groups(all, all, "{}")), "ignore is not a list");
  EXPECT_EQ(refused(groups(all, all, "null")), "");
  std::string patterns;
  for (int i = 0; i < 600; ++i) patterns += fmt::format(R"({}"re:h{}")", i == 0 ? "" : ",", i);
  patterns = "[" + patterns + "]";
  EXPECT_EQ(refused(groups(all, patterns)), "");
  const char* const too_many = "config_groups and ignore have more than 1000 patterns";
  EXPECT_EQ(refused(groups(patterns, patterns)), too_many);
  EXPECT_EQ(refused(groups(patterns, all, patterns)), too_many);
  std::string many = "[\"re:a\"";
  for (int i = 0; i < 1000; ++i) many += ",\"re:a\"";
  EXPECT_EQ(refused(groups(all, all, many + "]")), "ignore has more than 1000 patterns");
  std::string config = R"({"config_groups":{"g":{"targets":[],"weights":{}})";
  for (int i = 0; i < 1000; ++i) config += fmt::format(R"(,"g{}":{{"targets":[],"weights":{{}}}})", i);
  EXPECT_EQ(refused(config + "}}"), "config_groups has more than 1000 groups");
}

// A scale for all weights is the same thing whatever it is called.
TEST(CompressedTensors, OneScaleIsThatOfEveryStrategy) {
  for (const char* const strategy : {"tensor", "channel", "block"}) {
    MemoryReader in = file(DType::f8_e4m3, {64, 64}, DType::f32, {1});
    in.set_quant_method("compressed-tensors", R"({"config_groups":{"g":{"targets":["Linear"],"weights":{"strategy":")" +
                                                  std::string(strategy) + R"("}}}})");
    EXPECT_EQ(refusal(in), "") << strategy;
  }
}

TEST(CompressedTensors, PackedCodesAreNoInput) {
  MemoryReader in;
  in.add({"a.weight_packed", DType::i32, {3, 4}}, test::Bytes(48));
  in.add_normal("a.weight_scale", DType::bf16, {3, 1});
  EXPECT_THAT(refusal(in), testing::HasSubstr("tensor 'a.weight_packed' is I32 3 x 4: quantized already"));
}

TEST(CompressedTensors, NumbersBesideTheWeightsAreTaken) {
  MemoryReader in = file(DType::f8_e4m3, {3, 4}, DType::f32, {1});
  in.set_quant_method("compressed-tensors");
  in.add({"position_ids", DType::i64, {1, 2}}, test::Bytes(16));
  in.add({"mask", DType::boolean, {2, 2}}, test::Bytes(4));
  in.add({"steps", DType::i32, {4}}, test::Bytes(16));
  EXPECT_EQ(refusal(in), "");
}

}  // namespace
}  // namespace nibble::compressed_tensors_test
