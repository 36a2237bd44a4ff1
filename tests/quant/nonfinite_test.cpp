#include "quant/nonfinite.hpp"

#include <gtest/gtest.h>

namespace nibble::nonfinite_test {
namespace {

PlannedTensor planned(DType dtype, std::string_view codec, bool quantized) {
  PlannedTensor tensor;
  tensor.info = {"w", dtype, {4, 64}};
  tensor.codec = codec;
  tensor.quantized = quantized;
  return tensor;
}

TEST(CodecInstead, KeepsWhatTheCodecCannotHold) {
  Recipe recipe;
  recipe.to = "int8";
  const Findings nan{.nan = 1}, overflow{.overflow = 1}, huge{.overflow = 1, .overflow_fp32 = 1};
  EXPECT_EQ(codec_instead(recipe, planned(DType::f32, "int8", true), {}), std::nullopt);
  EXPECT_EQ(codec_instead(recipe, planned(DType::f32, "int8", true), nan), "keep");
  EXPECT_EQ(codec_instead(recipe, planned(DType::f64, "int8", true), nan), "fp32");
  EXPECT_EQ(codec_instead(recipe, planned(DType::f64, "int8", true), overflow), "fp32");
  EXPECT_EQ(codec_instead(recipe, planned(DType::f64, "int8", true), huge), "keep");
  EXPECT_EQ(codec_instead(recipe, planned(DType::f64, "fp32", false), huge), "keep");
  EXPECT_EQ(codec_instead(recipe, planned(DType::f64, "fp32", false), nan), std::nullopt);
  EXPECT_EQ(codec_instead(recipe, planned(DType::f32, "fp16", false), overflow), std::nullopt);
  recipe.to = "fp32";
  EXPECT_EQ(codec_instead(recipe, planned(DType::f64, "fp32", false), huge), std::nullopt);
  recipe.to = "int8";
  recipe.nonfinite = Nonfinite::quantize;
  EXPECT_EQ(codec_instead(recipe, planned(DType::f64, "int8", true), huge), std::nullopt);
}

TEST(Describe, NamesTheRangeThatCounts) {
  EXPECT_EQ(describe({.nan = 1, .inf = 2}, "nf4"), "1 NaN, 2 infinite");
  EXPECT_EQ(describe({.nan = 1, .overflow = 3}, "int8"), "1 NaN, 3 beyond fp16");
  EXPECT_EQ(describe({.overflow = 3}, "bf16"), "3 beyond bf16");
  EXPECT_EQ(describe({.overflow = 3, .overflow_fp32 = 1}, "int8"), "3 beyond fp16, 1 of them beyond fp32");
  EXPECT_EQ(describe({.overflow = 3, .overflow_fp32 = 3}, "int8"), "3 beyond fp32");
}

}  // namespace
}  // namespace nibble::nonfinite_test
