// measure() of whole checkpoints: which weights are compared with which, and that neither threads nor memory matter.

#include "nibble/measure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <span>

#include "nibble/error.hpp"
#include "tests/quant/jobs/measure/measure_support.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::measure_test {
namespace {

using test::checkpoint;
using test::Converted;
using test::converted;
using test::error_of;
using test::MemoryReader;
using test::plan;
using test::recipe;
using test::with_experts;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(Measure, Conv1dIsComparedAsItIsStored) {
  const MemoryReader in = gpt2();
  for (const char* const to : {"nf4", "int8"}) {
    const Converted out = converted(in, recipe(to));
    const Measurement found = measured(in, {checkpoint(out.reader), plan(in, recipe(to))});
    EXPECT_EQ(names(found), (std::vector<std::string>{"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight",
                                                      "transformer.h.0.attn.c_proj.weight"}));
    EXPECT_EQ(found.tensors[1].info.shape, (Shape{1500, 96}));
    expect_equal(found.candidates[0], found.candidates[1]);
    EXPECT_THAT(found.candidates[0].missing, IsEmpty());
    // As wrong as 4 and 8 bits are, and not as two matrices that have nothing in common.
    for (const std::size_t t : {1U, 2U}) EXPECT_GT(found.candidates[0].tensors[t]->stats.sqnr_db(), 20) << t;

    // The same matrix, transposed beforehand.
    MemoryReader linear;
    std::vector<float> transposed(96 * 1500);
    const std::vector<float> stored = test::normal_weights(96 * 1500, 6, 0.02f);
    for (std::size_t r = 0; r < 96; ++r)
      for (std::size_t c = 0; c < 1500; ++c) transposed[c * 96 + r] = stored[r * 1500 + c];
    linear.set_architecture("LlamaForCausalLM");
    add(linear, q_proj, DType::f32, {1500, 96}, transposed);
    const Measurement expected = measured(linear, {plan(linear, recipe(to))});
    EXPECT_EQ(found.candidates[0].tensors[1]->stats, expected.candidates[0].tensors[0]->stats);
    EXPECT_EQ(found.tensors[1].stats, expected.tensors[0].stats);
    EXPECT_EQ(found.tensors[1].outlier_columns, expected.tensors[0].outlier_columns);
  }
}

// Those that are not quantized keep the shape that they have.
TEST(Measure, Conv1dThatIsCastIsComparedAsItIs) {
  const MemoryReader in = gpt2();
  const Converted out = converted(in, recipe("bf16"));
  const Measurement found = measured(in, {checkpoint(out.reader)});
  EXPECT_EQ(found.tensors[1].info.shape, (Shape{96, 1500}));
  EXPECT_GT(found.candidates[0].tensors[2]->stats.sqnr_db(), 50);
}

TEST(Measure, FusedExpertsAreComparedOneByOne) {
  const MemoryReader in = moe();
  const Converted out = converted(in, with_experts("nf4"));
  const Measurement found = measured(in, {checkpoint(out.reader), plan(in, with_experts("nf4"))});
  ASSERT_EQ(found.tensors.size(), 5U);
  expect_equal(found.candidates[0], found.candidates[1]);
  EXPECT_THAT(found.candidates[0].missing, IsEmpty());
  const std::vector<float> all =
      floats(DType::bf16, test::stored_as(DType::bf16, test::normal_weights(4 * 64 * 96, 8, 0.02f)));
  for (std::size_t e = 0; e < 4; ++e) {
    const std::string name = "model.layers.0.mlp.experts." + std::to_string(e) + ".down_proj.weight";
    EXPECT_EQ(found.tensors[e].info, (TensorInfo{name, DType::bf16, {64, 96}}));
    EXPECT_EQ(found.tensors[e].kind, "mlp.experts.down_proj");
    EXPECT_EQ(found.tensors[e].layer, 0U);
    EXPECT_EQ(found.tensors[e].bytes, 64U * 96 * 2);
    EXPECT_EQ(found.tensors[e].stats, describe_in_units(std::span(all).subspan(e * 64 * 96, 64 * 96)));
    EXPECT_GT(found.candidates[0].tensors[e]->stats.sqnr_db(), 20);
  }
}

TEST(Measure, FusedExpertsThatStayFusedAreComparedAsOne) {
  const MemoryReader in = moe();
  const Converted out = converted(in, recipe("nf4"));
  const Measurement found = measured(in, {checkpoint(out.reader), plan(in, recipe("nf4"))});
  ASSERT_EQ(found.tensors.size(), 2U);
  EXPECT_EQ(found.tensors[0].info.shape, (Shape{4, 64, 96}));
  EXPECT_EQ(found.candidates[0].tensors[0]->stats.square, 0);
  expect_equal(found.candidates[0], found.candidates[1]);
}

TEST(Measure, WhatCannotBeComparedIsNamed) {
  MemoryReader in = llama();
  in.add({"model.layers.0.f8.weight", DType::f8_e4m3, {4}}, std::vector<std::byte>(4));
  in.add({"model.positions", DType::i64, {2}}, std::vector<std::byte>(16));
  MemoryReader test;
  add(test, "model.embed_tokens.weight", DType::f32, {50, 193}, std::vector<float>(50 * 193));  // another shape
  add(test, up_proj, DType::f32, {515, 193}, test::normal_weights(515 * 193, 3, 0.05f));
  test.add({"model.norm.weight", DType::i32, {192}}, std::vector<std::byte>(4 * 192));  // no weights
  test.add({"model.layers.0.f8.weight", DType::f8_e4m3, {4}}, std::vector<std::byte>(4));
  add(test, "model.another.weight", DType::f32, {1}, {1});
  const Measurement found = measured(in, {checkpoint(test), checkpoint(in)});
  EXPECT_THAT(found.candidates[0].missing,
              ElementsAre("model.embed_tokens.weight", q_proj, "model.norm.weight", "model.layers.0.f8.weight"));
  EXPECT_THAT(found.candidates[1].missing, ElementsAre("model.layers.0.f8.weight"));
  // Those that one candidate has are measured, and the other has nothing for them.
  ASSERT_EQ(found.tensors.size(), 4U);
  EXPECT_FALSE(found.candidates[0].tensors[1].has_value());
  EXPECT_TRUE(found.candidates[0].tensors[2].has_value());
  EXPECT_EQ(found.candidates[0].tensors[2]->stats.square, 0);
  EXPECT_EQ(found.candidates[0].bytes, 50 * 193 * 4 + 515 * 193 * 4 + 192 * 4 + 4 + 4U);
}

TEST(Measure, NothingInCommon) {
  const MemoryReader in = llama();
  MemoryReader test;
  test.add({"positions", DType::i64, {2}}, std::vector<std::byte>(16));
  const Measurement found = measured(in, {checkpoint(test)});
  EXPECT_EQ(found.tensors.size(), 0U);
  EXPECT_EQ(found.candidates[0].missing.size(), 4U);
  EXPECT_EQ(measured(test, {checkpoint(in)}).tensors.size(), 0U);
}

TEST(Measure, QuantizedReferenceAndPlainTest) {
  const MemoryReader in = llama();
  for (const char* const to : {"nf4", "int8"}) {
    const Converted out = converted(in, recipe(to));
    const Measurement forth = measured(in, {checkpoint(out.reader)});
    const Measurement back = measured(out.reader, {checkpoint(in)});
    ASSERT_EQ(names(back), names(forth));
    for (std::size_t t = 0; t < 4; ++t) {
      const ErrorStats &a = forth.candidates[0].tensors[t]->stats, &b = back.candidates[0].tensors[t]->stats;
      EXPECT_EQ(a.square, b.square);
      EXPECT_EQ(a.max_abs, b.max_abs);
      EXPECT_EQ(a.max_abs_at, b.max_abs_at);
      EXPECT_EQ(back.tensors[t].bytes, forth.candidates[0].tensors[t]->bytes);
      EXPECT_EQ(back.candidates[0].tensors[t]->bytes, forth.tensors[t].bytes);
      EXPECT_EQ(back.tensors[t].info.shape, forth.tensors[t].info.shape);
    }
    EXPECT_EQ(back.bytes, forth.candidates[0].bytes);
  }
}

TEST(Measure, BothQuantized) {
  const MemoryReader in = llama();
  const Converted fine = converted(in, recipe("int8"));
  const Converted coarse = converted(in, recipe("fp4"));
  const Measurement found = measured(fine.reader, {checkpoint(fine.reader), checkpoint(coarse.reader)});
  ASSERT_EQ(found.tensors.size(), 4U);
  for (std::size_t t = 0; t < 4; ++t) EXPECT_EQ(found.candidates[0].tensors[t]->stats.square, 0);
  EXPECT_NEAR(found.candidates[1].tensors[1]->stats.sqnr_db(), 18.2, 0.3);
  EXPECT_EQ(found.candidates[1].tensors[1]->form, CodecSpec("fp4"));
}

// The first 64 KiB more than is needed at all.
Resources min_memory(const Reader& in, const std::vector<Candidate>& candidates) {
  for (Resources resources{2, 14 << 20};; resources.max_memory += 1 << 16) try {
      (void)measured(in, candidates, resources);
      return resources;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::no_space);
    }
}

// The smallest memory leaves one unit in flight and no room for what is encoded: it goes to a file.
TEST(Measure, FiguresDoNotDependOnThreadsOrMemory) {
  MemoryReader in = llama(DType::bf16);
  for (std::size_t i = 0; i < 60; ++i)
    in.add_normal("model.layers." + std::to_string(i + 2) + ".mlp.up_proj.weight", DType::bf16,
                  {1 + i % 5, 64 * (1 + i % 3)});
  const Converted out = converted(in, recipe("nf4"));
  const std::vector<Candidate> candidates{checkpoint(out.reader), plan(in, recipe("nf4")), plan(in, recipe("int8")),
                                          plan(in, recipe("fp16"))};
  const Measurement first = measured(in, candidates, {1, 1'000'000'000});
  const Resources min = min_memory(in, candidates);
  for (const Resources& resources :
       {Resources{2, 1'000'000'000}, Resources{7, 1'000'000'000}, Resources{64, 400'000'000}, min})
    expect_equal(measured(in, candidates, resources), first);
  EXPECT_LT(min.max_memory, 30'000'000U);
}

// Gathering takes long, so it is done once for all candidates where there is room for the weights. Others are not kept:
// each candidate reads them.
TEST(Measure, TransposedWeightsAreGatheredOnce) {
  const auto reads = [](const MemoryReader& in, const std::vector<Candidate>& candidates, const Resources& resources) {
    const std::uint64_t before = in.reads();
    (void)measured(in, candidates, resources);
    return in.reads() - before;
  };
  const auto expect_reads = [&](const MemoryReader& in, bool once) {
    const std::vector<Candidate> one{plan(in, recipe("nf4"))}, two{plan(in, recipe("nf4")), plan(in, recipe("fp4"))};
    EXPECT_EQ(reads(in, one, {}) == reads(in, two, {}), once);
    EXPECT_LT(reads(in, one, min_memory(in, two)), reads(in, two, min_memory(in, two)));
  };
  expect_reads(gpt2(), true);
  expect_reads(llama(), false);
}

TEST(Measure, ProgressComesInOrderAndCanBeCancelled) {
  class Watch final : public Progress {
   public:
    explicit Watch(std::size_t calls) : max_calls_(calls) {}
    void advance(std::string_view tensor, std::uint64_t done, std::uint64_t total) override {
      EXPECT_GE(done, done_);
      EXPECT_LE(done, total);
      done_ = done;
      total_ = total;
      if (names.empty() || names.back() != tensor) names.emplace_back(tensor);
      ++calls_;
    }
    [[nodiscard]] bool cancelled() const override { return calls_ >= max_calls_; }
    [[nodiscard]] bool is_complete() const { return done_ == total_; }
    [[nodiscard]] std::size_t calls() const { return calls_; }
    std::vector<std::string> names;

   private:
    std::size_t max_calls_;
    std::atomic<std::size_t> calls_ = 0;
    std::uint64_t done_ = 0, total_ = 0;
  };
  const MemoryReader in = llama();
  const std::vector<Candidate> candidates{plan(in, recipe("nf4"))};
  Watch all(1'000'000);
  EXPECT_EQ(names(measure(in, candidates, {}, all)), all.names);
  EXPECT_TRUE(all.is_complete());
  for (const std::size_t calls : {std::size_t{1}, all.calls()}) {  // also with the last of them
    Watch some(calls);
    EXPECT_EQ(error_of([&] { (void)measure(in, candidates, {}, some); }, Errc::interrupted), "interrupted") << calls;
  }
}

}  // namespace
}  // namespace nibble::measure_test
