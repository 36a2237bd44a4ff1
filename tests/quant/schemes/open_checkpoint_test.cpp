#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "nibble/checkpoint.hpp"
#include "tests/support/corrupt.hpp"

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
