#include "quant/stream/codings.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace nibble::codings_test {
namespace {

void expect_made(const Codings& codings, const CodecSpec& spec) {
  const Coding& coding = codings[spec];
  ASSERT_NE(coding.codec, nullptr) << spec.text();
  EXPECT_EQ(coding.codec->spec(), spec);
  EXPECT_NE(coding.quantizer, nullptr) << spec.text();
  EXPECT_EQ(&codings[spec], &coding) << spec.text();
}

// Whatever a recipe names, and what a tensor gets if it cannot be stored as planned.
TEST(Codings, HaveAllCodecsOfARecipe) {
  Recipe recipe;
  recipe.to = "nf4";
  recipe.embeddings = "bf16";
  recipe.lm_head = "int8";
  recipe.experts = "fp4:block-size=32";
  recipe.rules = {{"a.*", "fp4"}, {"b.*", "fp8:scales=row"}};
  const Codings codings(recipe);
  for (const CodecSpec spec :
       {"nf4", "bf16", "int8", "fp4:block-size=32", "fp4", "fp8:scales=row", "keep", "fp32", "fp16"})
    expect_made(codings, spec);
  for (const CodecSpec spec : {"fp8:scales=block", "nf4:block-size=32"})
    EXPECT_THROW((void)codings[spec], std::out_of_range) << spec.text();
}

TEST(Codings, HaveAllCodecsOfAPlan) {
  PlannedTensors tensors;
  for (const CodecSpec spec : {"fp16", "fp8"}) {
    PlannedTensor tensor;
    tensor.codec = spec;
    tensors.push_back(tensor, {});
  }
  const Codings codings(Recipe{}, tensors);
  for (const CodecSpec spec : {"fp16", "fp8", "keep", "fp32"}) expect_made(codings, spec);
}

}  // namespace
}  // namespace nibble::codings_test
