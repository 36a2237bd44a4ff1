#include "quant/stream/nonfinite.hpp"

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
  EXPECT_EQ(codec_instead(recipe, planned(DType::f64, "fp32", false), huge), "keep");  // nothing is quantized there
  recipe.nonfinite = Nonfinite::error;
  EXPECT_EQ(codec_instead(recipe, planned(DType::f64, "fp32", false), huge), std::nullopt);
  // An infinity is what is kept off, also for who would keep it.
  recipe.nonfinite = Nonfinite::keep;
  recipe.on_overflow = OnOverflow::keep;
  EXPECT_EQ(codec_instead(recipe, planned(DType::f64, "fp32", false), huge), "keep");
  for (const OnOverflow policy : {OnOverflow::error, OnOverflow::clamp}) {
    recipe.on_overflow = policy;
    EXPECT_EQ(codec_instead(recipe, planned(DType::f64, "fp32", false), huge), std::nullopt);
  }
}

TEST(PlannedInstead, IsStoredAsItLiesInTheInput) {
  Recipe recipe;
  recipe.to = "nf4";
  Codings codings(recipe);
  PlannedTensor tensor = planned(DType::f32, "nf4", true);
  EXPECT_FALSE(planned_instead(recipe, tensor, {}, codings).has_value());
  tensor.role = Role::conv1d;
  tensor.transposed = true;
  const auto kept = planned_instead(recipe, tensor, {.nan = 1}, codings);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->codec, "keep");
  EXPECT_FALSE(kept->quantized);
  EXPECT_FALSE(kept->transposed);
  EXPECT_EQ(kept->info.shape, (Shape{64, 4}));
  EXPECT_EQ(kept->stored_bytes, 64U * 4 * 4);
  EXPECT_EQ(kept->decided_by, DecidedBy::nonfinite);
  tensor.transposed = false;  // stored as the codec sees it
  EXPECT_TRUE(planned_instead(recipe, tensor, {.nan = 1}, codings)->transposed);
  EXPECT_EQ(planned_instead(recipe, planned(DType::f64, "nf4", true), {.nan = 1}, codings)->stored_bytes, 64U * 4 * 4);
}

TEST(OverflowPolicy, IsAnErrorForFp16UnlessSaidOtherwise) {
  Recipe recipe;
  EXPECT_EQ(overflow_policy(recipe, DType::f16), OnOverflow::error);
  EXPECT_EQ(overflow_policy(recipe, DType::bf16), OnOverflow::keep);
  EXPECT_EQ(overflow_policy(recipe, DType::f32), OnOverflow::keep);
  recipe.on_overflow = OnOverflow::clamp;
  for (const DType cast : {DType::f16, DType::bf16, DType::f32})
    EXPECT_EQ(overflow_policy(recipe, cast), OnOverflow::clamp);
}

// The text and what helps; empty if there is no objection.
std::string text_of(const std::optional<Message>& why) {
  if (!why) return {};
  return why->text + (why->remedy.kind == Remedy::Kind::nonfinite     ? ", nonfinite"
                      : why->remedy.kind == Remedy::Kind::on_overflow ? ", on_overflow"
                                                                      : "");
}

TEST(Objection, ToValuesThatAreOrBecomeNoNumbers) {
  const Findings nan{.nan = 1, .first_nonfinite = 7}, overflow{.overflow = 2, .first_nonfinite = 3};
  const Findings huge{.overflow = 2, .overflow_fp32 = 2, .first_nonfinite = 3};
  const auto of = [&](OnOverflow on_overflow, Nonfinite nonfinite, const PlannedTensor& tensor, const Findings& found) {
    Recipe recipe;
    recipe.to = tensor.codec;
    recipe.on_overflow = on_overflow;
    recipe.nonfinite = nonfinite;
    return text_of(objection(recipe, tensor, found, 256));
  };
  const PlannedTensor fp16 = planned(DType::f32, "fp16", false), bf16 = planned(DType::f32, "bf16", false);
  const PlannedTensor fp32 = planned(DType::f64, "fp32", false), int8 = planned(DType::f32, "int8", true);
  const PlannedTensor nf4 = planned(DType::f64, "nf4", true);
  constexpr auto keep = Nonfinite::keep, strict = Nonfinite::error;
  EXPECT_EQ(of(OnOverflow::automatic, keep, fp16, nan), "");
  EXPECT_EQ(of(OnOverflow::keep, strict, fp16, nan),
            "1 NaN and 0 infinite of 256 weights, the first at 7; none is allowed, nonfinite");
  EXPECT_EQ(of(OnOverflow::automatic, keep, fp16, overflow),
            "2 of 256 weights exceed 65504, the largest fp16, the first at 3, on_overflow");
  EXPECT_EQ(of(OnOverflow::automatic, keep, bf16, overflow), "");
  EXPECT_EQ(of(OnOverflow::error, keep, bf16, overflow),
            "2 of 256 weights exceed 3.39e38, the largest bf16, the first at 3, on_overflow");
  EXPECT_EQ(of(OnOverflow::automatic, keep, fp32, huge), "");
  EXPECT_EQ(of(OnOverflow::error, keep, fp32, huge),
            "2 of 256 weights exceed 3.40e38, the largest fp32, the first at 3, on_overflow");
  // Infinities that a cast would make are refused as those that were there before.
  for (const PlannedTensor& cast : {fp16, bf16, fp32}) {
    EXPECT_EQ(of(OnOverflow::keep, keep, cast, huge), "");
    EXPECT_TRUE(of(OnOverflow::keep, strict, cast, huge).ends_with("; no infinity is allowed, nonfinite"));
    EXPECT_EQ(of(OnOverflow::clamp, strict, cast, huge), "");
  }
  EXPECT_EQ(of(OnOverflow::automatic, keep, int8, overflow), "");
  EXPECT_EQ(of(OnOverflow::automatic, strict, int8, overflow),
            "2 of 256 weights exceed 65504, the largest fp16, the first at 3, nonfinite");
  EXPECT_EQ(of(OnOverflow::automatic, strict, nf4, huge),
            "2 of 256 weights exceed 3.40e38, the largest fp32, the first at 3, nonfinite");
  // An F64 tensor of a quantized model stays F64, unless no such value is allowed.
  Recipe quantizing;
  quantizing.to = "nf4";
  EXPECT_EQ(text_of(objection(quantizing, fp32, huge, 256)), "");
  quantizing.on_overflow = OnOverflow::error;
  EXPECT_EQ(text_of(objection(quantizing, fp32, huge, 256)),
            "2 of 256 weights exceed 3.40e38, the largest fp32, the first at 3, on_overflow");
  quantizing.on_overflow = OnOverflow::automatic;
  quantizing.nonfinite = strict;
  EXPECT_NE(text_of(objection(quantizing, fp32, huge, 256)), "");
}

TEST(Describe, SaysWhatACastStores) {
  Recipe recipe;
  const PlannedTensor bf16 = planned(DType::f32, "bf16", false);
  EXPECT_EQ(describe({.nan = 1}, recipe, bf16), "1 NaN");
  EXPECT_EQ(describe({.nan = 1, .overflow = 3}, recipe, bf16), "1 NaN, 3 beyond bf16, stored as infinity");
  recipe.on_overflow = OnOverflow::clamp;
  EXPECT_EQ(describe({.overflow = 3}, recipe, bf16), "3 beyond bf16, stored as the largest bf16");
}

TEST(Describe, SaysWhatIsQuantizedInstead) {
  Recipe recipe;
  recipe.nonfinite = Nonfinite::quantize;
  const auto said = [&](const Findings& found, std::string_view codec) {
    return describe(found, recipe, planned(DType::f64, codec, true));
  };
  EXPECT_EQ(said({.nan = 1}, "nf4"), "1 NaN; stored instead: 0 for NaN");
  EXPECT_EQ(said({.nan = 1, .inf = 2}, "fp4"),
            "1 NaN, 2 infinite; stored instead: 0 for NaN, the largest finite magnitude of its block for "
            "infinities");
  EXPECT_EQ(said({.overflow = 3, .overflow_fp32 = 3}, "nf4"),
            "3 beyond fp32; stored instead: the largest finite magnitude of its block for values beyond fp32");
  EXPECT_EQ(said({.overflow = 3}, "int8"), "3 beyond fp16; stored instead: 65504 for values beyond fp16");
  EXPECT_EQ(said({.inf = 1, .overflow = 3, .overflow_fp32 = 1}, "int8"),
            "1 infinite, 3 beyond fp16, 1 of them beyond fp32; stored instead: the largest finite magnitude of its row "
            "for values that are infinite or beyond fp32, 65504 for values beyond fp16");
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
