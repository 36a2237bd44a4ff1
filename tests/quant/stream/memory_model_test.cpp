#include "quant/stream/memory_model.hpp"

#include <gtest/gtest.h>

#include "tests/support/conversion.hpp"

namespace nibble::memory_model_test {
namespace {

TEST(MemoryModel, TextsAreNamesAndLongShapes) {
  TensorList tensors;
  tensors.push_back({"abc", DType::f32, {1, 2, 3}});
  tensors.push_back({"de", DType::f32, {}});
  EXPECT_EQ(text_bytes(tensors, 0), 5U + 3 * 8);
  EXPECT_EQ(text_bytes(tensors, 2), 5U + 8);
  EXPECT_EQ(text_bytes(tensors, 4), 5U);
}

TEST(MemoryModel, NeedsAreTheMostOfAnyTensor) {
  test::MemoryReader in;
  in.set_architecture("GPT2LMHeadModel");
  in.add_normal("transformer.h.0.attn.c_attn.weight", DType::bf16, {96, 288});
  in.add_normal("transformer.h.0.mlp.c_fc.weight", DType::bf16, {64, 80'000});
  const auto needs = [&](const char* to, std::uint64_t limit) {
    const Plan plan = make_plan(in, test::recipe(to));
    Codings codings(plan.recipe);
    return needs_of(plan, codings, [&](DType) { return limit; });
  };
  const EncodingNeeds nf4 = needs("nf4", 1 << 20);
  EXPECT_TRUE(nf4.transposes);
  EXPECT_EQ(nf4.shortest_row, 64U);
  const TensorInfo largest{"", DType::bf16, {80'000, 64}};
  const auto codec = make_codec("nf4");
  EXPECT_EQ(nf4.scratch, make_quantizer(*codec, {.sums_errors = true})->scratch_bytes(largest));
  EXPECT_EQ(nf4.encoder, finish_bytes(nf4.scratch));
  EXPECT_GE(nf4.decoder, 64U * 80'000 / 64);
  EXPECT_EQ(nf4.growth, 1);
  EXPECT_DOUBLE_EQ(nf4.kept_share, static_cast<double>(nf4.scratch) / (64 * 80'000 / 2));

  // Rows that are longer than a chunk are read twice.
  EXPECT_EQ(needs("int8", 4096).encoder, finish_bytes(needs("int8", 4096).scratch));
  const auto int8 = make_codec("int8");
  const std::uint64_t scanned = make_quantizer(*int8)->scan_bytes(largest);
  EXPECT_EQ(scanned, 80'000U * 8);
  EXPECT_EQ(needs("int8", 40).encoder, finish_bytes(needs("int8", 40).scratch) + scanned);

  // Compensated tensors are scanned, and their chunks are groups of 16 rows.
  Recipe compensated = test::recipe("nf4");
  compensated.compensate = true;
  const Plan plan = make_plan(in, compensated);
  const EncodingNeeds more = needs_of(plan, Codings(compensated), [](DType) { return 1 << 20; });
  EXPECT_EQ(more.encoder, finish_bytes(5 * 80'000) + 4 * 80'000);
  EXPECT_GT(more.encoder, nf4.encoder);
  EXPECT_EQ(more.least_chunk, 2U * 4096);  // 16 rows of 64 columns, and whole pieces of errors
  EXPECT_GT(more.least_chunk, nf4.least_chunk);

  const EncodingNeeds fp32 = needs("fp32", 4096);
  EXPECT_FALSE(fp32.transposes);
  EXPECT_EQ(fp32.growth, 2);
  EXPECT_EQ(fp32.scratch + fp32.encoder + fp32.decoder, 0U);
}

}  // namespace
}  // namespace nibble::memory_model_test
