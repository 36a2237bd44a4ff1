#include "quant/jobs/merge/merged_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "formats/checkpoint.hpp"
#include "tests/quant/jobs/merge/merged_base.hpp"

namespace nibble::merged_reader_test {
namespace {

using test::AdapterMaker;
using test::base;
using test::bytes_of;
using test::MemoryReader;
using test::merged;

TEST(MergedReader, UpdatedTensorsAreFp32AndOthersAsTheyWere) {
  const auto in = merged(base());
  const auto plain = base();
  ASSERT_EQ(in->tensors().size(), 5u);
  for (std::size_t t = 0; t < 5; ++t) {
    const bool is_updated = t == 0 || t >= 3;
    EXPECT_EQ(in->is_updated(t), is_updated);
    EXPECT_EQ(in->tensors().dtype(t), is_updated ? DType::f32 : DType::bf16);
    EXPECT_EQ(ReaderInternals::model_type(*in, t), DType::bf16);
    if (!is_updated) {
      EXPECT_EQ(bytes_of(*in, t), bytes_of(*plain, t));
    }
  }
}

TEST(MergedReader, AnyRangeIsThatPartOfAll) {
  const auto in = merged(base());
  const std::vector<std::byte> all = bytes_of(*in, 3);
  std::vector<std::byte> part(1000 * sizeof(float) + 1);
  const auto shifted = std::span(part).subspan(1);  // not aligned
  in->read(3, 999 * sizeof(float), shifted);
  EXPECT_TRUE(std::equal(shifted.begin(), shifted.end(), all.begin() + 999 * sizeof(float)));
}

// Only where the architecture is known does the name of a square layer say how it is stored.
TEST(MergedReader, FanInFanOutDecidesIfTheArchitectureIsNotKnown) {
  const auto merge = [](bool is_known, const std::string& fan_in_fan_out) {
    auto in = std::make_unique<MemoryReader>();
    if (is_known) in->set_architecture("LlamaForCausalLM", false);
    in->add_normal(test::attention + "q_proj.weight", DType::f32, {8, 8});
    AdapterMaker maker(R"("r":2,"fan_in_fan_out":)" + fan_in_fan_out);
    maker.add_low_rank(test::attention + "q_proj", 8, 8, 2);
    return bytes_of(*merged(std::move(in), maker.make()), 0);
  };
  EXPECT_EQ(merge(true, "true"), merge(true, "false"));
  EXPECT_NE(merge(false, "true"), merge(false, "false"));
}

TEST(MergedReader, NumbersThatAreNoWeightsAreReplaced) {
  auto in = std::make_unique<MemoryReader>();
  in->add({"steps", DType::i64, {2}}, std::vector<std::byte>(16, std::byte{1}));
  auto weights = std::make_unique<MemoryReader>();
  weights->add({"steps", DType::i64, {2}}, std::vector<std::byte>(16, std::byte{2}));
  const auto reader = merged(std::move(in), Adapter(R"({"peft_type":"LORA"})", std::move(weights)));
  EXPECT_EQ(reader->tensors().dtype(0), DType::i64);
  EXPECT_EQ(bytes_of(*reader, 0), std::vector<std::byte>(16, std::byte{2}));
}

// Experts that the base stores one by one, by which their factors are read.
struct Experts {
  static constexpr std::uint64_t count = 8, rank = 2, in = 16, out = 12;  // gate and up have half of the outputs each
  static constexpr std::uint64_t a_bytes = count * rank * in * sizeof(float),
                                 b_bytes = out * rank * count * sizeof(float);
  std::unique_ptr<MergedReader> reader;
  const MemoryReader* adapter = nullptr;

  Experts() {
    auto base = std::make_unique<MemoryReader>();
    base->set_architecture("Qwen3MoeForCausalLM", false);
    const std::string experts = "model.layers.0.mlp.experts";
    for (std::uint64_t e = 0; e < count; ++e)
      for (const char* name : {"gate_proj", "up_proj"})
        base->add_normal(experts + "." + std::to_string(e) + "." + name + ".weight", DType::f32, {out / 2, in});
    Adapter made = AdapterMaker(R"("r":2,"target_parameters":["mlp.experts.gate_up_proj"])")
                       .add_low_rank(experts, out, in, count * rank)
                       .make();
    adapter = dynamic_cast<const MemoryReader*>(&made.weights());
    reader = merged(std::move(base), std::move(made));
  }
};

TEST(MergedReader, AnExpertReadsItsOwnPartOfA) {
  const Experts experts;
  (void)bytes_of(*experts.reader, 6);
  EXPECT_EQ(experts.adapter->bytes_read(), Experts::b_bytes + Experts::a_bytes / Experts::count);
  (void)bytes_of(*experts.reader, 6);
  EXPECT_EQ(experts.adapter->bytes_read(), Experts::b_bytes + Experts::a_bytes / Experts::count);
}

// The numbers of an expert are all over B, which has to be read whole, but once for all experts.
TEST(MergedReader, ExpertsShareB) {
  const Experts experts;
  for (std::size_t t = 0; t < 2 * Experts::count; ++t) (void)bytes_of(*experts.reader, t);
  EXPECT_EQ(experts.adapter->bytes_read(), Experts::b_bytes + 2 * Experts::a_bytes);  // A for gate, and for up
}

TEST(MergedReader, MemoryIsThatOfTheLargestUpdate) {
  const auto in = merged(base());
  EXPECT_EQ(ReaderInternals::reading_bytes(*in), (256 * 4 + 4 * 256) * sizeof(float));
  const Experts experts;
  const std::uint64_t left = Experts::out / 2 * Experts::rank, right = Experts::rank * 64;  // in tiles of 64 columns
  EXPECT_EQ(ReaderInternals::reading_bytes(*experts.reader), (left + right) * sizeof(float) + Experts::b_bytes);
}

}  // namespace
}  // namespace nibble::merged_reader_test
