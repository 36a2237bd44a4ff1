#include "formats/adapters/base_names.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::base_names_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TensorInfo weight(std::string name, Shape shape = {4, 4}) { return {std::move(name), DType::bf16, std::move(shape)}; }

// Named only.
struct Base {
  TensorList tensors;
  std::unique_ptr<RoleFinder> roles;
  BaseNames names;

  explicit Base(std::vector<TensorInfo> infos, std::string_view architecture = "")
      : tensors(std::span(infos)),
        roles(architecture.empty() ? make_role_finder_by_name(tensors)
                                   : make_role_finder({std::string(architecture)}, tensors, false)),
        names(tensors, *roles) {}
};

TEST(BaseNames, AFirstComponentMayBeMoreOrLess) {
  const Base base({weight("model.q.weight"), weight("head.weight")});
  EXPECT_EQ(base.names.find("model.q.weight"), 0u);
  EXPECT_EQ(base.names.find("q.weight"), 0u);              // the base has "model." more
  EXPECT_EQ(base.names.find("other.model.q.weight"), 0u);  // or a component less
  EXPECT_EQ(base.names.find("other.x.model.q.weight"), std::nullopt);
  EXPECT_EQ(base.names.find("head.weight"), 1u);
}

// Each first component costs a look-up for each name that the base lacks.
TEST(BaseNames, ManyFirstComponentsAreNotTried) {
  std::vector<TensorInfo> tensors{weight("model.q.weight")};
  while (tensors.size() < 64) tensors.push_back(weight("a" + std::to_string(tensors.size()) + ".k.weight"));
  EXPECT_EQ(Base(tensors).names.find("q.weight"), 0u);
  tensors.push_back(weight("b.k.weight"));
  EXPECT_EQ(Base(tensors).names.find("q.weight"), std::nullopt);
  EXPECT_EQ(Base(tensors).names.find("model.q.weight"), 0u);
}

TEST(BaseNames, WhatMayBeSeveralIsNone) {
  const Base base({weight("a.q.weight"), weight("b.q.weight")});
  EXPECT_THAT(base.names.find_all("q.weight"), ElementsAre(0u, 1u));
  EXPECT_EQ(base.names.find("q.weight"), std::nullopt);
  EXPECT_EQ(base.names.find("a.q.weight"), 0u);  // a whole name is clear
}

TEST(BaseNames, NamesInTheModelAreThoseOfTheTable) {
  const Base base({weight("model.layers.0.block_sparse_moe.gate.weight", {2, 4})}, "MixtralForCausalLM");
  EXPECT_EQ(base.names.find("model.layers.0.mlp.gate.weight"), 0u);
}

TEST(BaseNames, ExpertsAreSortedByNumberThenGateBeforeUp) {
  const std::string experts = "model.layers.0.mlp.experts.";
  std::vector<TensorInfo> infos;
  for (const char* expert : {"10", "9"})
    for (const char* name : {".up_proj.weight", ".gate_proj.weight", ".down_proj.weight"})
      infos.push_back(weight(experts + expert + name));
  const Base base(infos, "Qwen3MoeForCausalLM");
  const auto gate_up = base.names.find_experts(experts + "gate_up_proj");
  ASSERT_EQ(gate_up.size(), 4u);
  std::vector<std::size_t> tensors;
  std::vector<std::uint64_t> numbers;
  for (const ExpertMatrix& matrix : gate_up) {
    tensors.push_back(matrix.tensor);
    numbers.push_back(matrix.expert);
  }
  EXPECT_THAT(tensors, ElementsAre(4, 3, 1, 0));
  EXPECT_THAT(numbers, ElementsAre(9, 9, 10, 10));
  EXPECT_FALSE(gate_up[0].second);
  EXPECT_TRUE(gate_up[1].second);
  EXPECT_EQ(base.names.find_experts(experts + "down_proj").size(), 2u);
  EXPECT_EQ(base.names.role(0), Role::expert);
}

TEST(BaseNames, OneTensorIsNoListOfExperts) {
  const Base base({weight("model.layers.0.mlp.experts.gate_up_proj", {2, 4, 4})}, "Qwen3MoeForCausalLM");
  EXPECT_THAT(base.names.find_experts("model.layers.0.mlp.experts.gate_up_proj"), IsEmpty());
  EXPECT_THAT(base.names.find_experts("model.layers.0.mlp.experts.down_proj"), IsEmpty());
  EXPECT_EQ(base.names.find("model.layers.0.mlp.experts.gate_up_proj"), 0u);
}

}  // namespace
}  // namespace nibble::base_names_test
