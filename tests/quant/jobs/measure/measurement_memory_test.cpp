#include "quant/jobs/measure/measurement_memory.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>

#include "core/text/size_text.hpp"
#include "nibble/error.hpp"
#include "quant/jobs/measure/outlier_columns.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::measurement_memory_test {
namespace {

using test::error_of;
using test::MemoryReader;
using test::recipe;

// A reference, what it is compared with, and how much memory that takes.
class Measuring {
 public:
  Measuring(const Reader& in, std::vector<Candidate> candidates, bool counts = false)
      : candidates_(std::move(candidates)), pairing_(in, candidates_), counts_(counts) {
    for (const Candidate& candidate : candidates_)
      codings_.emplace_back(candidate.plan ? candidate.plan->recipe : Recipe{});
  }

  [[nodiscard]] MeasurementMemory within(std::uint64_t max_memory, unsigned threads = 1, std::uint64_t statistics = 0) {
    return measurement_memory(pairing_, candidates_, codings_, {.counts = counts_, .resources = {threads, max_memory}},
                              statistics);
  }

  // The least that is enough.
  [[nodiscard]] std::uint64_t min_bytes(std::uint64_t statistics = 0) {
    std::uint64_t too_little = 0, enough = std::uint64_t{1} << 40;
    while (enough - too_little > 1) {
      const std::uint64_t middle = too_little + (enough - too_little) / 2;
      (error_of([&] { (void)within(middle, 1, statistics); }, Errc::no_space).empty() ? enough : too_little) = middle;
    }
    return enough;
  }

 private:
  std::vector<Candidate> candidates_;
  Pairing pairing_;
  std::deque<Codings> codings_;
  bool counts_;
};

MemoryReader model(std::size_t tensors, const Shape& shape = {64, 64}, const std::string& prefix = "layers.") {
  MemoryReader in;
  for (std::size_t i = 0; i < tensors; ++i)
    in.add({prefix + std::to_string(i) + ".up_proj.weight", DType::bf16, shape},
           std::vector<std::byte>(TensorInfo{{}, DType::bf16, shape}.bytes()));
  return in;
}

std::uint64_t min_to_convert(const MemoryReader& in, const std::string& to) {
  return Measuring(in, {test::plan(in, recipe(to))}).min_bytes();
}

TEST(MeasurementMemory, StatisticsOfACalibrationCount) {
  const MemoryReader in = model(3);
  Measuring measuring(in, {test::plan(in, recipe("nf4"))});
  EXPECT_EQ(measuring.min_bytes(1 << 20), measuring.min_bytes() + (1 << 20));
}

TEST(MeasurementMemory, TooLittleIsSaidWithBothFigures) {
  const MemoryReader in = model(3);
  Measuring measuring(in, {test::checkpoint(in)});
  const std::uint64_t min_bytes = measuring.min_bytes();
  EXPECT_EQ(error_of([&] { (void)measuring.within(min_bytes - 1); }, Errc::no_space),
            fmt::format("measuring needs {} bytes of memory, the limit is {} bytes", min_bytes, min_bytes - 1));
  EXPECT_EQ(error_of([&] { (void)measuring.within(1'000'000); }, Errc::no_space),
            fmt::format("measuring needs {} of memory, the limit is 1.00 MB", size_short(min_bytes)));
}

// One unit in flight and nothing for tensors is enough for all figures.
TEST(MeasurementMemory, TheLeastIsOneUnitAtATime) {
  const MemoryReader in = model(3);
  Measuring measuring(in, {test::plan(in, recipe("nf4"))});
  const std::uint64_t min_bytes = measuring.min_bytes();
  for (const unsigned threads : {1U, 7U, 1000U}) {
    const MeasurementMemory memory = measuring.within(min_bytes, threads);
    EXPECT_EQ(memory.tokens, 1U);
    EXPECT_EQ(memory.tensor_bytes, 0U);
    EXPECT_EQ(memory.threads, threads);
  }
}

TEST(MeasurementMemory, MoreMemoryGoesToUnitsFirst) {
  const MemoryReader in = model(3);
  Measuring measuring(in, {test::plan(in, recipe("nf4"))});
  const std::uint64_t min_bytes = measuring.min_bytes();
  std::size_t tokens = 1;
  for (std::uint64_t more = 0; more < 40'000'000; more += 100'000) {
    const MeasurementMemory memory = measuring.within(min_bytes + more, 4);
    EXPECT_GE(memory.tokens, tokens);
    EXPECT_LE(memory.tokens, 5U);  // one more than threads
    EXPECT_LE((memory.tokens - 1) * unit_weights * 8 + 2 * memory.tensor_bytes, more);
    tokens = memory.tokens;
  }
  EXPECT_EQ(tokens, 5U);
}

// Two tensors may be in work.
TEST(MeasurementMemory, TensorsTakeHalfOfTheRest) {
  const MemoryReader in = model(3);
  Measuring measuring(in, {test::plan(in, recipe("nf4"))});
  EXPECT_EQ(measuring.within(400'000'000, 2).tensor_bytes, measuring.within(300'000'000, 2).tensor_bytes + 50'000'000);
}

TEST(MeasurementMemory, AllProcessorsUnlessSaid) {
  const MemoryReader in = model(1);
  Measuring measuring(in, {test::checkpoint(in)});
  EXPECT_EQ(measuring.within(std::uint64_t{1} << 40, 0).threads, default_threads());
  EXPECT_EQ(measuring.within(std::uint64_t{1} << 40, 0).tokens, default_threads() + 1U);
}

TEST(MeasurementMemory, ResultsAreAsManyAsViews) {
  const MemoryReader plain = model(3);
  EXPECT_EQ(Measuring(plain, {test::checkpoint(plain)}).within(1'000'000'000).results, 3U);
  MemoryReader moe;
  moe.set_architecture("Qwen3MoeForCausalLM");
  moe.add_normal("model.layers.0.mlp.experts.down_proj", DType::bf16, {4, 64, 96});
  moe.add_normal("model.layers.0.self_attn.q_proj.weight", DType::bf16, {96, 64});
  EXPECT_EQ(Measuring(moe, {test::plan(moe, test::with_experts("nf4"))}).within(1'000'000'000).results, 5U);
}

// ---- what grows with a model is in the plan ----------------------------------------------------------------------

TEST(MeasurementMemory, CountsTensorsAndNames) {
  EXPECT_GE(min_to_convert(model(1001), "nf4"), min_to_convert(model(1), "nf4") + 1000 * 600);
  const std::string long_name(1'000'000, 'x');
  EXPECT_GE(min_to_convert(model(1, {64, 64}, long_name), "nf4"), min_to_convert(model(1), "nf4") + 3'000'000);
}

TEST(MeasurementMemory, CountsManyDimensionsAndWhatConfigSays) {
  Shape shape(64, 1);
  EXPECT_GE(min_to_convert(model(1001, shape), "nf4"), min_to_convert(model(1001), "nf4") + 1001 * 60 * 8);
  MemoryReader in = model(1);
  const std::uint64_t before = min_to_convert(in, "nf4");
  in.set_quant_method("nibble", std::string(1'000'000, 'x'));
  EXPECT_EQ(min_to_convert(in, "nf4"), before + 1'000'000);
}

// Of the same parts, unless one of each tensor has a name that tells nothing.
TEST(MeasurementMemory, CountsWhatSchemesFound) {
  constexpr std::size_t tensors = 1000;
  const MemoryReader plain = model(tensors);
  const auto quantized = test::converted(plain, recipe("nf4"));
  MemoryReader unknown;
  const TensorList& parts = quantized.reader.tensors();
  for (std::size_t part = 0; part < parts.size(); ++part) {
    TensorInfo info = parts[part];
    if (const auto dot = info.name.find(".quant_state."); dot != std::string::npos) info.name[dot] = '_';
    unknown.add(info, std::vector<std::byte>(info.bytes()));
  }
  const std::uint64_t kept = StoredWeights(quantized.reader).memory_bytes();
  EXPECT_GE(kept, tensors * 64);
  EXPECT_GE(Measuring(plain, {test::checkpoint(quantized.reader)}).min_bytes(),
            Measuring(plain, {test::checkpoint(unknown)}).min_bytes() + 2 * kept);
}

TEST(MeasurementMemory, CountsCandidates) {
  const MemoryReader in = model(1000);
  const Candidate plan = test::plan(in, recipe("nf4"));
  const std::uint64_t one = Measuring(in, {plan}).min_bytes(), two = Measuring(in, {plan, plan}).min_bytes();
  EXPECT_GE(two, one + unit_weights * 8 + 1000 * sizeof(MeasuredError) / 2);
  EXPECT_GE(Measuring(in, {plan}, true).min_bytes(), one + 1000 * 16 * sizeof(std::uint64_t));
  EXPECT_GE(Measuring(in, {test::checkpoint(in)}).min_bytes(), one / 2);
}

// What is beside the packed weights is read whole: an fp32 absmax for every 64 of them.
TEST(MeasurementMemory, CountsDecoders) {
  const std::uint64_t small = 64 * 64, large = 2048 * 4096;
  const MemoryReader few = model(1), many = model(1, {2048, 4096});
  const Recipe plain = recipe("nf4:double-quant=no");
  EXPECT_GE(Measuring(many, {test::plan(many, plain)}).min_bytes(),
            Measuring(few, {test::plan(few, plain)}).min_bytes() + (large - small) / 64 * 4);
  // The same of a checkpoint, whichever side it is on.
  const auto quantized = test::converted(many, plain), little = test::converted(few, plain);
  EXPECT_GE(Measuring(many, {test::checkpoint(quantized.reader)}).min_bytes(),
            Measuring(few, {test::checkpoint(little.reader)}).min_bytes() + (large - small) / 64 * 4);
  EXPECT_GE(Measuring(quantized.reader, {test::checkpoint(many)}).min_bytes(),
            Measuring(little.reader, {test::checkpoint(few)}).min_bytes() + (large - small) / 64 * 4);
}

// Every thread encodes chunks, and a search with double quantization takes 256 blocks at a time: 2 MiB of bf16 for
// blocks of 4096, and as much for codes at most.
TEST(MeasurementMemory, CountsTheSmallestChunkOfAQuantizer) {
  const MemoryReader in = model(1, {2048, 2048});
  Measuring measuring(in, {test::plan(in, recipe("nf4:block-size=4096,absmax=search"))});
  EXPECT_NE(error_of([&] { (void)measuring.within(24U << 20, 4); }, Errc::no_space), "");
  EXPECT_GE(measuring.within(64 << 20, 4).tokens, 1U);
}

// A sum for every column of a unit and of the tensor; wider matrices are not searched.
TEST(MeasurementMemory, CountsColumnsThatAreSearched) {
  const auto min_bytes = [](const Shape& shape) {
    const MemoryReader in = model(1, shape);
    return Measuring(in, {test::checkpoint(in)}).min_bytes();
  };
  EXPECT_GE(min_bytes({1, max_columns}), min_bytes({1, 1}) + max_columns * (sizeof(float) + sizeof(double)) - 16);
  EXPECT_LT(min_bytes({1, max_columns + 1}), min_bytes({1, 1}) + 1000);
}

}  // namespace
}  // namespace nibble::measurement_memory_test
