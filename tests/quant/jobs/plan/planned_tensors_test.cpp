#include <gtest/gtest.h>

#include "nibble/plan.hpp"

namespace nibble::planned_tensors_test {
namespace {

using Modules = std::vector<std::string>;

PlannedTensor planned(const std::string& name, std::string_view module) {
  return {.info = {name, DType::bf16, {3, 4}},
          .source = 7,
          .source_offset = 96,
          .transposed = true,
          .codec = "nf4",
          .reason = "linear layer",
          .role = Role::linear,
          .module = module,
          .quantized = true,
          .stored_bytes = 123};
}

void expect_equal(const PlannedTensor& found, const PlannedTensor& expected) {
  EXPECT_EQ(found.info, expected.info);
  EXPECT_EQ(found.source, expected.source);
  EXPECT_EQ(found.source_offset, expected.source_offset);
  EXPECT_EQ(found.transposed, expected.transposed);
  EXPECT_EQ(found.codec, expected.codec);
  EXPECT_EQ(found.reason, expected.reason);
  EXPECT_EQ(found.role, expected.role);
  EXPECT_EQ(found.module, expected.module);
  EXPECT_EQ(found.quantized, expected.quantized);
  EXPECT_EQ(found.stored_bytes, expected.stored_bytes);
}

// A module may have the tensor's name, that without ".weight", or another.
TEST(PlannedTensors, GiveBackWhatWasAdded) {
  const std::vector<PlannedTensor> all{planned("a.weight", "a"), planned("a.weight", "a.weight"),
                                       planned("experts.w1", "experts.w1"), planned("b.weight", "model.b"),
                                       planned("c", "")};
  PlannedTensors tensors;
  EXPECT_TRUE(tensors.empty());
  for (const PlannedTensor& each : all) tensors.push_back(each, {});
  ASSERT_EQ(tensors.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) expect_equal(tensors[i], all[i]);
}

TEST(PlannedTensors, RememberWhichModulesStayPlainWithThem) {
  PlannedTensors tensors;
  const PlannedTensor tensor = planned("a.weight", "a");
  for (const Modules& keeps : {Modules{}, Modules{"a"}, Modules{"b"}, Modules{"a", "b"}})
    tensors.push_back(tensor, keeps);
  EXPECT_EQ(tensors.keeps(0), Modules());
  EXPECT_EQ(tensors.keeps(1), Modules{"a"});
  EXPECT_EQ(tensors.keeps(2), Modules{"b"});
  EXPECT_EQ(tensors.keeps(3), (Modules{"a", "b"}));
}

// A copy has texts of its own, and what was moved from is an empty list.
TEST(PlannedTensors, AreCopiedAndMoved) {
  PlannedTensors tensors;
  tensors.push_back(planned("a.weight", "other"), Modules{"b"});
  PlannedTensors copy = tensors;
  PlannedTensor kept = copy[0];
  kept.reason = "kept";
  copy.replace(0, kept);
  expect_equal(tensors[0], planned("a.weight", "other"));
  EXPECT_EQ(copy[0].reason, "kept");
  EXPECT_EQ(copy.keeps(0), Modules{"b"});
  PlannedTensors moved = std::move(tensors);
  expect_equal(moved[0], planned("a.weight", "other"));
  tensors = moved;
  tensors.push_back(planned("b", "b"), {});
  EXPECT_EQ(tensors.size(), 2U);
  EXPECT_EQ(moved.size(), 1U);
  copy = PlannedTensors();
  EXPECT_TRUE(copy.empty());
}

TEST(PlannedTensors, MayBePutTogether) {
  PlannedTensors tensors;
  PlannedTensor whole = planned("a.weight", "a");
  tensors.push_back(whole, {});
  whole.slices = {5, 3, 4};
  tensors.push_back(whole, {});
  const PlannedTensors copy = tensors;
  EXPECT_EQ(copy[0].slices, std::vector<std::size_t>());
  EXPECT_EQ(copy[1].slices, whole.slices);
}

// The new one may be made of the old one's texts, and the modules that stay plain are still those.
TEST(PlannedTensors, AreReplaced) {
  PlannedTensors tensors;
  tensors.push_back(planned("a.weight", "other"), Modules{"other"});
  tensors.push_back(planned("b.weight", "b"), {});
  PlannedTensor kept = tensors[0];
  const std::string reason(100'000, 'r');
  kept.codec = "keep", kept.reason = reason, kept.quantized = false, kept.transposed = false, kept.stored_bytes = 24;
  kept.info.shape = {4, 3};
  tensors.replace(0, kept);
  PlannedTensor expected = planned("a.weight", "other");
  expected.codec = "keep", expected.reason = reason, expected.quantized = false, expected.transposed = false;
  expected.stored_bytes = 24, expected.info.shape = {4, 3};
  expect_equal(tensors[0], expected);
  EXPECT_EQ(tensors.keeps(0), Modules{"other"});
  expect_equal(tensors[1], planned("b.weight", "b"));
}

}  // namespace
}  // namespace nibble::planned_tensors_test
