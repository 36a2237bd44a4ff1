#include "formats/models/layer_and_kind.hpp"

#include <gtest/gtest.h>

namespace nibble::layer_and_kind_test {
namespace {

TEST(LayerAndKind, SplitsNames) {
  const auto expect = [](std::string_view name, std::optional<std::uint64_t> layer, std::string_view kind) {
    const LayerAndKind found = layer_and_kind(name);
    EXPECT_EQ(found.layer, layer) << name;
    EXPECT_EQ(found.kind, kind) << name;
  };
  expect("model.layers.31.self_attn.q_proj.weight", 31, "self_attn.q_proj");
  expect("model.layers.0.mlp.experts.7.down_proj.weight", 0, "mlp.experts.down_proj");
  expect("transformer.h.3.ln_1.bias", 3, "ln_1.bias");
  expect("model.embed_tokens.weight", std::nullopt, "model.embed_tokens");
  expect("lm_head.weight", std::nullopt, "lm_head");
  expect("weight", std::nullopt, "weight");
  expect("", std::nullopt, "");
  expect(".weight", std::nullopt, "");
  expect("blocks.007.w", 7, "w");
  expect("a.12345678901234567890123.b", std::nullopt, "a.12345678901234567890123.b");
  expect("a..b", std::nullopt, "a..b");
  expect("layers.5", 5, "");
}

}  // namespace
}  // namespace nibble::layer_and_kind_test
