#include "quant/stream/conversion_memory.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/error.hpp"
#include "quant/quantizers/scanned_magnitude.hpp"
#include "quant/stream/memory_model.hpp"
#include "quant/stream/stored_weights.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/memory_checkpoint.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::conversion_memory_test {
namespace {

Plan plan_for(Shape shape, std::string to, std::size_t tensors = 1) {
  test::MemoryReader in;
  for (std::size_t i = 0; i < tensors; ++i)
    in.add_normal("layers." + std::to_string(i) + ".up_proj.weight", DType::bf16, shape);
  Recipe recipe;
  recipe.to = std::move(to);
  return make_plan(in, recipe);
}

TEST(ConversionMemory, StaysWithinWhatIsAllowed) {
  const Plan plan = plan_for({512, 512}, "nf4");
  for (const std::uint64_t allowed : {29'000'000U, 40'000'000U, 64'000'000U, 1'000'000'000U})
    for (const unsigned threads : {1U, 2U, 7U, 64U}) {
      const ConversionMemory memory = conversion_memory(plan, {threads, allowed});
      EXPECT_LE(memory.total_bytes, allowed);
      EXPECT_GE(memory.tokens, 1U);
    }
}

TEST(ConversionMemory, TooLittleIsSaidWithBothFigures) {
  EXPECT_THAT(test::error_of(
                  [] {
                    (void)conversion_memory(plan_for({64, 64}, "nf4"), {1, 1'000'000});
                  },
                  Errc::no_space),
              testing::MatchesRegex("this conversion needs 1.\\... MB of memory, the limit is 1.00 MB"));
}

TEST(ConversionMemory, TooLittleSaysWhatWouldDo) {
  const Plan plan = plan_for({64, 64}, "nf4");
  const Remedy remedy = test::remedy_of([&] { (void)conversion_memory(plan, {1, 1'000'000}); });
  EXPECT_EQ(remedy.kind, Remedy::Kind::max_memory);
  EXPECT_LE(conversion_memory(plan, {1, remedy.bytes}).total_bytes, remedy.bytes);
  EXPECT_THROW((void)conversion_memory(plan, {1, remedy.bytes - 1}), Error);
}

TEST(ConversionMemory, CountsStatistics) {
  const Plan plan = plan_for({64, 64}, "nf4");
  const auto total = [&](unsigned threads, const StatisticsMemory& statistics) {
    return conversion_memory(plan, {threads, 4'000'000'000}, statistics).total_bytes;
  };
  const std::uint64_t without = total(2, {});
  EXPECT_EQ(total(2, {.bytes = 7'000'000}), without + 7'000'000);
  EXPECT_EQ(total(2, {.column_bytes = 1'000'000, .tensors = 3}), without + 3'000'000);
  const std::size_t tokens = conversion_memory(plan, {2, 4'000'000'000}).tokens;
  EXPECT_EQ(total(2, {.column_bytes = 1'000'000, .tensors = 100}), without + (tokens + 1) * 1'000'000);

  // Either a factor is made, or threads encode: 2 x (1 MB and twice a chunk of a MiB).
  const CompensationMemory makes{.making_bytes = 50'000'000, .factor_bytes = 10'000'000, .thread_bytes = 1'000'000};
  const CompensationMemory encodes{.making_bytes = 11'000'000, .factor_bytes = 10'000'000, .thread_bytes = 1'000'000};
  EXPECT_EQ(total(2, {.compensation = makes}), without + 50'000'000);
  EXPECT_EQ(total(2, {.compensation = encodes}), without + 10'000'000 + 2 * (1'000'000 + (2 << 20)));

  const StatisticsMemory statistics{.bytes = 7'000'000, .column_bytes = 1'000'000, .tensors = 100};
  const Resources little{1, 5'000'000};
  EXPECT_THAT(test::error_of([&] { (void)conversion_memory(plan, little, statistics); }, Errc::no_space),
              testing::EndsWith("the limit is 5.00 MB"));
  const Remedy remedy = test::remedy_of([&] { (void)conversion_memory(plan, little, statistics); });
  EXPECT_EQ(conversion_memory(plan, {1, remedy.bytes}, statistics).total_bytes, remedy.bytes);
}

// What grows with a model is in the plan: the fp32 absmax of the largest tensor, and what each tensor's names take.
TEST(ConversionMemory, CountsWhatIsKept) {
  const auto total = [](const Plan& plan) { return conversion_memory(plan, {1, 1'000'000'000}).total_bytes; };
  const std::uint64_t small = total(plan_for({64, 64}, "nf4"));
  EXPECT_GE(total(plan_for({4096, 4096}, "nf4")), small + 4 * 4096 * 4096 / 64 - 4096);
  EXPECT_GE(total(plan_for({1 << 14, 64}, "int8")), total(plan_for({64, 64}, "int8")) + 4 * ((1 << 14) - 64));
  EXPECT_GE(total(plan_for({64, 64}, "nf4", 1000)), small + 999 * 256);
  constexpr std::uint64_t hash = 16 + sizeof R"(,"0123456789abcdef0123456789abcdef")" - 1;  // of 32 MiB
  EXPECT_GE(total(plan_for({4096, 4096}, "fp16")), total(plan_for({64, 64}, "fp16")) + 32 * hash);
}

// Where rows are longer than the shortest chunk, they are all looked at before any is encoded.
TEST(ConversionMemory, CountsWhatAScanKeeps) {
  constexpr std::uint64_t rows = 200;
  for (const CodecSpec to : {"int8", "fp8:scales=row"}) {
    const auto total = [&](std::uint64_t columns) {
      test::MemoryReader in;
      const TensorInfo tensor{"up_proj.weight", DType::bf16, {rows, columns}};
      in.add(tensor, std::vector<std::byte>(tensor.bytes()));
      Recipe recipe;
      recipe.to = to;
      return conversion_memory(make_plan(in, recipe), {1, 1'000'000'000}).total_bytes;
    };
    const std::uint64_t longest = min_chunk_bytes / 2;
    EXPECT_GE(total(longest + 1) + 64, total(longest) + rows * scanned_magnitude_bytes) << to.text();
  }
}

// What is not left for an absmax goes to a file; everything else has to fit.
// A search with double quantization takes 256 blocks at a time: 2 MiB of bf16 for blocks of 4096, and the codes.
TEST(ConversionMemory, CountsTheSmallestChunkOfAQuantizer) {
  const auto least = [](const char* to) {
    const Plan plan = plan_for({2048, 2048}, to);
    return test::remedy_of([&] { (void)conversion_memory(plan, {1, 1'000'000}); }).bytes;
  };
  EXPECT_GE(least("nf4:block-size=4096,absmax=search"), least("nf4:block-size=4096") + (2 << 20));
}

TEST(ConversionMemory, ScratchTakesWhatIsLeft) {
  const Plan plan = plan_for({8192, 8192}, "nf4");
  constexpr std::uint64_t scratch = 8 << 20;  // 4 bytes of absmax and 4 of sums for each block
  const ConversionMemory twice = conversion_memory(plan, {2, 1'000'000'000});
  EXPECT_EQ(twice.scratch_bytes, scratch);
  EXPECT_EQ(twice.spare_bytes, scratch);
  const ConversionMemory once = conversion_memory(plan, {2, twice.total_bytes - 1});
  EXPECT_EQ(once.scratch_bytes, scratch);
  EXPECT_EQ(once.spare_bytes, 0U);
  EXPECT_EQ(once.total_bytes, twice.total_bytes - scratch);
  const ConversionMemory less = conversion_memory(plan, {2, once.total_bytes - 1'000'000});
  EXPECT_EQ(less.scratch_bytes, scratch - 1'000'000);
  EXPECT_EQ(less.spare_bytes, 0U);
  EXPECT_EQ(less.total_bytes, once.total_bytes - 1'000'000);
}

// A Conv1D is read in larger chunks, if there is room; without, the chunks of other tensors stay as large as before.
TEST(ConversionMemory, TransposedTensorsTakeMoreAtATime) {
  test::MemoryReader in;
  in.set_architecture("GPT2LMHeadModel", false);
  in.add_normal("transformer.h.0.mlp.c_fc.weight", DType::bf16, {256, 1024});
  Recipe recipe;
  recipe.to = "nf4";
  const Plan plan = make_plan(in, recipe);
  ASSERT_TRUE(plan.tensors[0].transposed);
  const ConversionMemory much = conversion_memory(plan, {2, 1'000'000'000});
  EXPECT_EQ(much.transposed_chunk, 32U);
  EXPECT_GE(much.total_bytes, 2 * 32 * much.chunk_bytes);
  const ConversionMemory less = conversion_memory(plan, {2, much.total_bytes / 2});
  EXPECT_LT(less.transposed_chunk, 32U);
  EXPECT_GE(less.transposed_chunk, 8U);
  EXPECT_EQ(less.chunk_bytes, much.chunk_bytes);
  EXPECT_EQ(conversion_memory(plan, {2, 64'000'000}).transposed_chunk, 8U);
  EXPECT_EQ(conversion_memory(plan_for({64, 64}, "nf4"), {2, 1'000'000'000}).transposed_chunk, 1U);
}

TEST(ConversionMemory, CountsThatConfigIsWrittenAnew) {
  test::MemoryReader in;
  in.add_normal("w", DType::bf16, {64, 64});
  in.set_architecture("X");
  Recipe recipe;
  recipe.to = "fp16";
  const auto total = [&] { return conversion_memory(make_plan(in, recipe), {1, 1'000'000'000}).total_bytes; };
  const std::uint64_t small = total();
  in.set_rewrite_bytes(12'345);
  EXPECT_EQ(total(), small + 12'345);
}

// A tensor that is decoded costs what is known of its parts: here of three, of which one is for inputs.
TEST(ConversionMemory, CountsWhatIsDecoded) {
  test::MemoryReader in;
  constexpr std::size_t tensors = 1000;
  for (std::size_t i = 0; i < tensors; ++i) {
    const std::string module = "layers." + std::to_string(i) + ".up_proj";
    in.add({module + ".weight", DType::f8_e4m3, {4, 64}}, std::vector<std::byte>(4 * 64));
    in.add({module + ".weight_scale", DType::bf16, {4, 1}}, std::vector<std::byte>(4 * 2));
    in.add({module + ".input_scale", DType::bf16, {1}}, std::vector<std::byte>(2));
  }
  Recipe recipe;
  recipe.to = "nf4";
  const Plan plan = make_plan(in, recipe);
  ASSERT_EQ(plan.tensors.size(), tensors);
  Plan plain = plan;
  plain.tensors = {};
  for (PlannedTensor tensor : plan.tensors) {
    tensor.decoded = false;
    plain.tensors.push_back(tensor, {});
  }
  const auto total = [](const Plan& of) { return conversion_memory(of, {1, 1'000'000'000}).total_bytes; };
  EXPECT_GE(total(plan), total(plain) + 2 * StoredWeights(in).memory_bytes());
}

TEST(ConversionMemory, LongNamesCount) {
  test::MemoryReader in;
  in.add_normal(std::string(1'000'000, 'x') + ".weight", DType::bf16, {64, 64});
  Recipe recipe;
  recipe.to = "nf4";
  EXPECT_GE(conversion_memory(make_plan(in, recipe), {1, 1'000'000'000}).total_bytes,
            conversion_memory(plan_for({64, 64}, "nf4"), {1, 1'000'000'000}).total_bytes + 3'000'000);
}

}  // namespace
}  // namespace nibble::conversion_memory_test
