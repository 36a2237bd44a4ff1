#include "quant/jobs/plan/views.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/corrupt.hpp"
#include "tests/support/memory_checkpoint.hpp"

namespace nibble::views_test {
namespace {

using test::MemoryReader;

PlannedTensor tensor(const Shape& shape) {
  PlannedTensor view;
  view.info = {"model.experts.down_proj", DType::bf16, shape};
  view.source = 7;
  return view;
}

TEST(Views, MostTensorsAreAsTheyAre) {
  for (const Role role : {Role::linear, Role::embedding, Role::expert, Role::other}) {
    const auto views = quantized_views(tensor({4, 6}), role);
    ASSERT_EQ(views.size(), 1U);
    EXPECT_EQ(views[0].info, tensor({4, 6}).info);
    EXPECT_FALSE(views[0].transposed);
    EXPECT_EQ(views[0].source, 7U);
  }
  EXPECT_EQ(quantized_views(tensor({2, 4, 6}), Role::linear).size(), 1U);
}

TEST(Views, Conv1dIsTransposed) {
  const auto views = quantized_views(tensor({4, 6}), Role::conv1d);
  ASSERT_EQ(views.size(), 1U);
  EXPECT_TRUE(views[0].transposed);
  EXPECT_EQ(views[0].info.shape, (Shape{6, 4}));
}

// One that is stored as the codec sees it.
TEST(Views, TransposedTwiceIsAsItWas) {
  PlannedTensor stored = tensor({4, 6});
  stored.transposed = true;
  const auto views = quantized_views(stored, Role::conv1d);
  EXPECT_FALSE(views.at(0).transposed);
  EXPECT_EQ(views.at(0).info.shape, (Shape{6, 4}));
}

TEST(Views, FusedExpertsAreMatrices) {
  const auto views = quantized_views(tensor({3, 4, 6}), Role::expert);
  ASSERT_EQ(views.size(), 3U);
  for (std::size_t e = 0; e < 3; ++e) {
    EXPECT_EQ(views[e].info,
              (TensorInfo{"model.experts." + std::to_string(e) + ".down_proj.weight", DType::bf16, {4, 6}}));
    EXPECT_EQ(views[e].source_offset, e * 4 * 6 * 2);
    EXPECT_EQ(views[e].source, 7U);
  }
  PlannedTensor plain = tensor({2, 4, 6});
  plain.info.name = "down_proj";
  EXPECT_EQ(quantized_views(plain, Role::expert)[1].info.name, "1.down_proj.weight");
  EXPECT_EQ(quantized_views(tensor({2, 0, 6}), Role::expert).size(), 1U);  // there is nothing to be cut
}

TEST(Views, NamesSayWhatTheyWereCutOutOf) {
  for (const char* const name : {"model.experts.down_proj", "down_proj"}) {
    PlannedTensor fused = tensor({2, 4, 6});
    fused.info.name = name;
    for (const PlannedTensor& view : quantized_views(fused, Role::expert)) EXPECT_EQ(fused_name(view.info.name), name);
  }
  for (const char* const name :
       {"down_proj.weight", "model.experts.7.weight", "model.experts.7.down_proj", "a.b.c.weight",
        "experts.07.down_proj.weight", "experts.9999999999.down_proj.weight", ""})
    EXPECT_EQ(fused_name(name), "") << name;
}

// In the order of their numbers, wherever they lie.
TEST(Views, MatricesAreFoundAgain) {
  MemoryReader in;
  in.set_architecture("GptOssForCausalLM", false);
  const std::string experts = "model.layers.0.mlp.experts.";
  for (const char* const number : {"1", "10", "0", "2", "3", "4", "5", "6", "7", "8", "9"})
    in.add_normal(experts + number + ".down_proj.weight", DType::bf16, {64, 32});
  in.add_normal(experts + "3.down_proj_bias.weight", DType::bf16, {64});
  in.add_normal("model.layers.0.self_attn.q_proj.weight", DType::bf16, {64, 64});
  const auto found = [&] {
    const StoredWeights stored(in);
    return CutTensors(stored, *roles_of(stored).finder);
  };
  EXPECT_EQ(found().find(0), nullptr);  // transformers loads it
  in.set_quant_method("nibble");
  const CutTensors cut = found();
  const CutTensor* const whole = cut.find(0);
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(whole->name, experts + "down_proj");
  EXPECT_EQ(whole->first, 0U);
  EXPECT_EQ(whole->slices, (std::vector<std::size_t>{2, 0, 3, 4, 5, 6, 7, 8, 9, 10, 1}));
  EXPECT_EQ(cut.find(10), whole);
  EXPECT_EQ(cut.find(11), nullptr);
  EXPECT_EQ(cut.find(12), nullptr);
}

TEST(Views, MatricesOfOtherTypesAreRefused) {
  MemoryReader in;
  in.set_architecture("GptOssForCausalLM", false);
  in.set_quant_method("nibble");
  const std::string experts = "model.layers.0.mlp.experts.";
  in.add_normal(experts + "0.down_proj.weight", DType::bf16, {2, 4});
  in.add({experts + "1.down_proj.weight", DType::i64, {2, 4}}, std::vector<std::byte>(64));
  const StoredWeights stored(in);
  EXPECT_THAT(test::error_of([&] { (void)CutTensors(stored, *roles_of(stored).finder); }),
              testing::HasSubstr("tensor 'model.layers.0.mlp.experts.1.down_proj.weight' is an expert, cut out of "
                                 "'model.layers.0.mlp.experts.down_proj' by nibble, but it is of type I64"));
}

TEST(Views, PlacesAreThoseOfTheArchitecture) {
  MemoryReader in;
  in.set_architecture("GPT2LMHeadModel");
  in.add_normal("transformer.h.0.attn.c_attn.weight", DType::f32, {96, 288});
  const StoredWeights stored(in);
  const ModelRoles roles = roles_of(stored);
  EXPECT_EQ(roles.model.architecture, "GPT2LMHeadModel");
  EXPECT_TRUE(roles.tied);  // no head is stored
  EXPECT_EQ(roles.finder->find(view_of(stored[0]).info).role, Role::conv1d);

  in.set_architecture("Nobody", true);
  const ModelRoles unknown = roles_of(stored);
  EXPECT_EQ(unknown.model.architecture, "");
  EXPECT_FALSE(unknown.tied);
  EXPECT_EQ(unknown.finder->find(view_of(stored[0]).info).role, Role::linear);
}

}  // namespace
}  // namespace nibble::views_test
