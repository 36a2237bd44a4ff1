#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "nibble/checkpoint.hpp"
#include "quant/schemes/scheme.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/remedies.hpp"

namespace nibble {
namespace {

using test::error_of;

class OpenCheckpointTest : public testing::Test {
 protected:
  OpenCheckpointTest() { dir_.write("model.safetensors", test::safetensors_with({"p"})); }

  // Why a model with this config.json is refused. Empty if it is not.
  [[nodiscard]] std::string error(std::string_view config, bool accept_quantized = false) const {
    dir_.write("config.json", config);
    const std::string path = (dir_.path() / "config.json").string() + ": ";
    std::string text = error_of([&] { (void)open_checkpoint(dir_.path(), {.accept_quantized = accept_quantized}); });
    if (text.starts_with(path)) text.erase(0, path.size());
    return text;
  }

  test::TempDir dir_;
};

TEST_F(OpenCheckpointTest, WhatNobodyDecodesIsRefused) {
  for (const bool accept_quantized : {false, true}) {
    EXPECT_EQ(error(R"({"quantization_config":{"quant_method":"gptq"}})", accept_quantized),
              "quantized already: quant_method 'gptq' is not supported");
    EXPECT_EQ(error(R"({"compression_config":{"load_in_4bit":false}})", accept_quantized),
              "quantized already: 'compression_config' does not say by which quant_method");
  }
}

// A conversion takes FP8, and what only nibble reads.
TEST_F(OpenCheckpointTest, SourcesOfConversionsAreOpened) {
  for (const char* const method : {"fp8", "compressed-tensors", "nibble"})
    EXPECT_EQ(error(R"({"quantization_config":{"quant_method":")" + std::string(method) + "\"}}"), "") << method;
  constexpr std::string_view inner = R"({"text_config":{"quantization_config":{"quant_method":"fp8"}}})";
  EXPECT_EQ(error(inner),
            "quantized already by fp8, as 'text_config.quantization_config' says: only a key of the outermost object "
            "is taken, as in transformers");
  EXPECT_EQ(error(inner, true), "");
}

// The output would keep the inner one, and be refused itself.
TEST_F(OpenCheckpointTest, PartsThatAreQuantizedInTheirOwnWayAreRefused) {
  constexpr std::string_view two = R"({"text_config":{"decoder":{"quantization_config":{"quant_method":"x"}}},)"
                                   R"("quantization_config":{"quant_method":"fp8"}})";
  EXPECT_EQ(error(two),
            "quantized already by fp8, as 'quantization_config' says, but a part of it in another way, as "
            "'text_config.decoder.quantization_config' says: only a key of the outermost object is taken, as in "
            "transformers");
  EXPECT_EQ(error(two, true), "");
}

// Whether or not a tensor is quantized: the weights may be rotated.
TEST_F(OpenCheckpointTest, ModelsThatCannotBeDecodedAreRefused) {
  constexpr std::string_view rotated =
      R"({"quantization_config":{"quant_method":"compressed-tensors","transform_config":{"config_groups":{"R1":{}}}}})";
  EXPECT_EQ(
      error(rotated),
      "the model is quantized after transforms such as rotations, as transform_config of config.json says; nibble "
      "takes models without transforms");
  EXPECT_EQ(error(rotated, true), "");
}

// Read without config.json, a block of 120 x 128 weights would be taken for one of 128 x 128.
TEST_F(OpenCheckpointTest, QuantizedFilesOfAModelAreOpenedAsItsDirectory) {
  const auto error_of_file = [this](std::string_view dtype, std::string_view config, bool accept_quantized = false) {
    dir_.write("f.safetensors",
               test::safetensors_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":")" +
                                          std::string(dtype) + R"(","shape":[8],"data_offsets":[8,16]}})",
                                      std::string(16, '\0')));
    dir_.write("config.json", config);
    const auto path = dir_.path() / "f.safetensors";
    return error_of([&] { (void)open_checkpoint(path, {.accept_quantized = accept_quantized}); });
  };
  constexpr std::string_view quantized = R"({"quantization_config":{"quant_method":"fp8"}})";
  const std::string dir = dir_.path().string();
  for (const char* const fp8 : {"F8_E4M3", "F8_E5M2"})
    EXPECT_EQ(error_of_file(fp8, quantized),
              dir + "/f.safetensors: tensor 'w' is FP8, and 'quantization_config' of " + dir +
                  "/config.json says how to decode it, which nibble reads only if it opens the directory " + dir);
  EXPECT_EQ(error_of_file("F8_E4M3", quantized, true), "");
  EXPECT_EQ(error_of_file("U8", quantized), "");
  EXPECT_EQ(error_of_file("U8", "no JSON"), "");  // it may be of anything
  EXPECT_EQ(error_of_file("F8_E4M3", "{}"), "");
  std::filesystem::remove(dir_.path() / "config.json");
  EXPECT_EQ(error_of([&] { (void)open_checkpoint(dir_.path() / "f.safetensors"); }), "");
}

// As transformers takes it: without a name, the flags tell, and of equal keys the last one counts.
TEST_F(OpenCheckpointTest, BitsandbytesIsOpenedOnRequest) {
  for (const char* const quantization : {
           R"({"quant_method":"bitsandbytes"})",
           R"({"quant_method":"bitsandbytes_4bit"})",
           R"({"load_in_4bit":true})",
           R"({"load_in_8bit":false,"load_in_8bit":true,"x":NaN})",
       }) {
    const std::string config = R"({"quantization_config":)" + std::string(quantization) + "}";
    EXPECT_EQ(error(config),
              "quantized already by bitsandbytes; plain weights are needed, such as the original model's")
        << config;
    EXPECT_EQ(error(config, true), "") << config;
  }
  EXPECT_EQ(error(R"({"quantization_config":{"load_in_4bit":true,"load_in_4bit":false}})", true),
            "quantized already: 'quantization_config' does not say by which quant_method");
}

// What decodes it takes it, but not half of it.
TEST_F(OpenCheckpointTest, InputsAreWhatAConversionTakes) {
  const auto refusal = [this](std::string_view config, Intake intake) {
    dir_.write("config.json", config);
    return error_of([&] { (void)open_input(dir_.path(), intake, 100'000'000); });
  };
  constexpr std::string_view four_bit = R"({"quantization_config":{"load_in_4bit":true}})";
  EXPECT_NE(refusal(four_bit, Intake::plain), "");
  EXPECT_EQ(test::remedy_of([&] { (void)open_checkpoint(dir_.path()); }).kind, Remedy::Kind::dequantize);
  constexpr std::string_view inner = R"({"text_config":{"quantization_config":{"load_in_4bit":true}}})";
  for (const Intake intake : {Intake::any, Intake::quantized}) {
    EXPECT_EQ(refusal(four_bit, intake), "");
    EXPECT_EQ(refusal("{}", intake), "");
    EXPECT_NE(refusal(inner, intake).find("only a key of the outermost object is taken"), std::string::npos);
    EXPECT_NE(refusal(R"({"quantization_config":{"quant_method":"gptq"}})", intake), "");
  }
  dir_.write("f.safetensors", test::safetensors_with({"a", "p.SCB"}));
  dir_.write("config.json", four_bit);
  const std::string dir = dir_.path().string();
  const auto error_of_file = [&] {
    return error_of([&] { (void)open_input(dir_.path() / "f.safetensors", Intake::any, 100'000'000); });
  };
  EXPECT_EQ(error_of_file(),
            dir + "/f.safetensors: tensor 'p.SCB' is quantized, and 'quantization_config' of " + dir +
                "/config.json says how to decode it, which nibble reads only if it opens the directory " + dir);
  dir_.write("config.json", "{}");
  EXPECT_EQ(error_of_file(), "");
}

// Deleting quantization_config does not make the weights plain.
TEST_F(OpenCheckpointTest, NamesOfPartsTell) {
  const auto path = dir_.path() / "model.safetensors";
  dir_.write("model.safetensors", test::safetensors_with({"p.SCB"}));
  EXPECT_EQ(error("{}"), path.string() +
                             ": tensor 'p.SCB': quantized already by bitsandbytes; plain weights are needed, such as "
                             "the original model's");
  EXPECT_EQ(error("{}", true), "");
  EXPECT_NE(error_of([&] { (void)open_checkpoint(path); }), "");
}

}  // namespace
}  // namespace nibble
