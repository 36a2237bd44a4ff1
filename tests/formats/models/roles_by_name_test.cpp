#include <gtest/gtest.h>

#include <iterator>
#include <vector>

#include "formats/models/architectures.hpp"

namespace nibble::roles_by_name_test {
namespace {

TensorInfo matrix(std::string name, std::uint64_t rows = 64, std::uint64_t columns = 64) {
  return {std::move(name), DType::bf16, {rows, columns}};
}

TEST(PlaceByName, IsCareful) {
  const std::vector<TensorInfo> tensors{matrix("blocks.0.attn.qkv.weight", 192, 64),
                                        matrix("lm_head.weight"),
                                        matrix("model.embed_tokens.weight"),
                                        matrix("blocks.0.moe.gate.weight", 8, 64),
                                        matrix("blocks.0.mlp.gate_proj.weight"),
                                        matrix("blocks.0.norm1.weight"),
                                        matrix("words.weight", 32'000, 128),
                                        matrix("h.0.c_attn.weight", 64, 192),
                                        {"h.0.c_attn.bias", DType::bf16, {192}},
                                        {"blocks.0.experts", DType::bf16, {8, 64, 64}},
                                        matrix("pos_embed"),
                                        {"ids.weight", DType::i64, {64, 64}}};
  const TensorList list{std::span(tensors)};
  const auto finder = make_role_finder_by_name(list);
  std::vector<FoundRole> found;
  for (const TensorInfo& tensor : tensors) found.push_back(finder->find(tensor));
  const Role expected[] = {Role::linear,    Role::output_embeddings,
                           Role::embedding, Role::other,
                           Role::linear,    Role::other,
                           Role::embedding, Role::other,
                           Role::other,     Role::other,
                           Role::other,     Role::other};
  ASSERT_EQ(found.size(), std::size(expected));
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].role, expected[i]) << tensors[i].name;
    EXPECT_TRUE(found[i].why.ends_with("by name and shape")) << found[i].why;
  }
}

// GPT-2's Conv1D are [in, out]. A square one looks like a linear layer, and its product would be a wrong one.
TEST(PlaceByName, SquareMatricesBesideTransposedOnesMayBeTransposed) {
  const std::vector<TensorInfo> tensors{
      matrix("decoder.h.0.c_attn.weight", 64, 192), {"decoder.h.0.c_attn.bias", DType::bf16, {192}},
      matrix("decoder.h.0.c_proj.weight"),          {"decoder.h.0.c_proj.bias", DType::bf16, {64}},
      matrix("decoder.h.0.fc.weight", 256, 64),     matrix("encoder.layer.0.query.weight")};
  const TensorList list{std::span(tensors)};
  const auto finder = make_role_finder_by_name(list);
  EXPECT_EQ(finder->find(tensors[2]).role, Role::other);
  EXPECT_EQ(finder->find(tensors[2]).keeps, std::vector<std::string>{"decoder.h.0.c_proj"});
  EXPECT_EQ(finder->find(tensors[4]).role, Role::linear);
  EXPECT_EQ(finder->find(tensors[5]).role, Role::linear);  // the encoder has none
}

}  // namespace
}  // namespace nibble::roles_by_name_test
