#include "nibble/merge.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "formats/checkpoint.hpp"
#include "quant/jobs/convert/convert.hpp"
#include "quant/jobs/merge/merged_reader.hpp"
#include "quant/jobs/plan/plan.hpp"
#include "tests/support/adapter.hpp"
#include "tests/support/conversion.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::merge_test {
namespace {

using test::AdapterMaker;
using test::Bytes;
using test::error_of;
using test::MemoryReader;
using test::MemoryWriter;

const std::string layer = "model.layers.0.self_attn.";

std::unique_ptr<MemoryReader> base(DType dtype = DType::bf16) {
  auto in = std::make_unique<MemoryReader>();
  in->set_architecture("LlamaForCausalLM", false);
  in->set_dtype(std::string(traits(dtype).torch_name));
  in->add_normal("lm_head.weight", dtype, {96, 256});
  in->add_normal("model.embed_tokens.weight", dtype, {96, 256});
  in->add_normal(layer + "k_proj.weight", dtype, {256, 256});
  in->add_normal(layer + "q_proj.weight", dtype, {256, 256});
  in->add_normal("model.norm.weight", dtype, {256});
  return in;
}

Adapter adapter() {
  return AdapterMaker(R"("r":4,"lora_alpha":2)")
      .add_low_rank(layer + "q_proj", 256, 256, 4)
      .add_low_rank("lm_head", 96, 256, 4)
      .add("model.norm.weight", {256})
      .make();
}

std::unique_ptr<MergedReader> merged(std::unique_ptr<const Reader> in, Adapter with = adapter()) {
  return std::make_unique<MergedReader>(std::make_unique<const PlainReader>(std::move(in)), std::move(with));
}

struct Result {
  std::map<std::string, Bytes> parts;
  Report report;
  Finish finish;
};
Result convert_to(const Reader& in, const CodecSpec& to, const Resources& resources = {}) {
  MemoryWriter out;
  Progress progress;
  const StoredWeights weights(in, {});
  Report report = convert(weights, make_plan(weights, test::recipe(to)), out, resources, progress);
  return {out.parts(), std::move(report), out.finish().value()};
}

Bytes bytes_of(const Reader& in, std::size_t tensor) {
  Bytes bytes(in.tensors().bytes(tensor));
  in.read(tensor, 0, bytes);
  return bytes;
}

TEST(Merge, UpdatedTensorsAreFp32AndOthersAsTheyWere) {
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

TEST(Merge, AnyRangeIsThatPartOfAll) {
  const auto in = merged(base());
  const Bytes all = bytes_of(*in, 3);
  std::vector<std::byte> part(1000 * sizeof(float) + 1);
  const auto shifted = std::span(part).subspan(1);  // not aligned
  in->read(3, 999 * sizeof(float), shifted);
  EXPECT_TRUE(std::equal(shifted.begin(), shifted.end(), all.begin() + 999 * sizeof(float)));
}

// Only where the architecture is known does the name of a square layer say how it is stored.
TEST(Merge, FanInFanOutDecidesIfTheArchitectureIsNotKnown) {
  const auto merge = [](bool is_known, const std::string& fan_in_fan_out) {
    auto in = std::make_unique<MemoryReader>();
    if (is_known) in->set_architecture("LlamaForCausalLM", false);
    in->add_normal(layer + "q_proj.weight", DType::f32, {8, 8});
    AdapterMaker maker(R"("r":2,"fan_in_fan_out":)" + fan_in_fan_out);
    maker.add_low_rank(layer + "q_proj", 8, 8, 2);
    return bytes_of(*merged(std::move(in), maker.make()), 0);
  };
  EXPECT_EQ(merge(true, "true"), merge(true, "false"));
  EXPECT_NE(merge(false, "true"), merge(false, "false"));
}

// What a plan keeps has the base's type, and so has config.json.
TEST(Merge, KeptTensorsHaveTheTypeOfTheBase) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const auto in = merged(base(dtype));
    const Result result = convert_to(*in, "nf4");
    EXPECT_EQ(result.finish.dtype, traits(dtype).torch_name);
    for (const char* name : {"lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"})
      EXPECT_EQ(result.parts.at(name).size(), element_count(in->tensors()[name[0] == 'l'   ? 0
                                                                          : name[6] == 'n' ? 4
                                                                                           : 1]
                                                                .shape) *
                                                  traits(dtype).bits / 8)
          << name;
  }
}

TEST(Merge, BytesDependOnNeitherThreadsNorMemory) {
  for (const char* to : {"bf16", "nf4", "int8"}) {
    const auto in = merged(base());
    const auto parts = convert_to(*in, to).parts;
    EXPECT_EQ(convert_to(*in, to, {.threads = 3}).parts, parts) << to;
    EXPECT_EQ(convert_to(*in, to, {.threads = 1, .max_memory = 20'000'000}).parts, parts) << to;
  }
}

// The codes are those of the merged weights in fp32, not rounded to the base's type in between.
TEST(Merge, IsTheConversionOfTheMergedWeights) {
  const auto in = merged(base());
  MemoryReader same;
  same.set_architecture("LlamaForCausalLM", false);
  for (std::size_t t = 0; t < in->tensors().size(); ++t) same.add(in->tensors()[t], bytes_of(*in, t));
  const auto expected = convert_to(same, "nf4").parts, found = convert_to(*in, "nf4").parts;
  for (const auto& [name, bytes] : expected)
    if (name.starts_with(layer)) {
      EXPECT_EQ(found.at(name), bytes) << name;
    }
}

TEST(Merge, AQuantizedBaseIsDecodedAndKeepsItsCodes) {
  for (const char* codec : {"nf4", "int8", "fp8"}) {
    const test::Converted quantized = test::converted(*base(), test::recipe(codec));
    const auto open = [&] {
      auto copy = std::make_unique<MemoryReader>();
      copy->set_architecture("LlamaForCausalLM", false);
      copy->set_quant_method(std::string(quant_method(quantized.plan)), quantization_config(quantized.plan));
      for (std::size_t t = 0; t < quantized.reader.tensors().size(); ++t)
        copy->add(quantized.reader.tensors()[t], bytes_of(quantized.reader, t));
      return copy;
    };
    const auto in = merged(open());
    EXPECT_TRUE(in->config()->quantization_config.empty());
    EXPECT_EQ(in->tensors().size(), 5u) << codec;
    const Result result = convert_to(*in, codec), plain = convert_to(*in, "bf16");
    EXPECT_TRUE(plain.finish.was_decoded) << codec;
    EXPECT_TRUE(plain.finish.quantization_config.empty());
    for (std::size_t t = 0; t < quantized.reader.tensors().size(); ++t) {
      const std::string name(quantized.reader.tensors().name(t));
      if (name == layer + "k_proj.weight") {
        EXPECT_EQ(result.parts.at(name), bytes_of(quantized.reader, t)) << codec;
      }
    }
  }
}

TEST(Merge, SurvivalIsThatOfEveryQuantizedUpdate) {
  const auto in = merged(base());
  const Progress silent;
  const auto survival = [&](const CodecSpec& to, const Resources& resources = {}) {
    return measure_survival(*in, make_plan(StoredWeights(*in, {}), test::recipe(to)), resources, silent);
  };
  const auto int8 = survival("int8"), nf4 = survival("nf4");
  ASSERT_EQ(int8.size(), 1u);
  ASSERT_EQ(nf4.size(), 1u);
  EXPECT_EQ(nf4[0].name, layer + "q_proj.weight");
  EXPECT_GT(nf4[0].update_norm, 0);
  EXPECT_EQ(nf4[0].update_norm, int8[0].update_norm);
  EXPECT_GT(int8[0].cosine, nf4[0].cosine);
  EXPECT_GT(nf4[0].cosine, 0);
  EXPECT_LT(int8[0].cosine, 1);
  EXPECT_TRUE(survival("bf16").empty());
  const auto again = survival("nf4", {.threads = 3, .max_memory = 100'000});  // encoded into files
  EXPECT_EQ(again[0].ratio, nf4[0].ratio);
  EXPECT_EQ(again[0].cosine, nf4[0].cosine);
  EXPECT_EQ(error_of([&] { (void)measure_survival(*base(), Plan(), {}, silent); }),
            "code 2: no adapter is merged into this checkpoint");
}

TEST(Merge, ErrorsNameTheAdapterAndTheBase) {
  EXPECT_THAT(error_of([&] {
                (void)merged(base(),
                             AdapterMaker(R"("r":4)").add_low_rank("model.layers.1.mlp.up_proj", 8, 8, 4).make());
              }),
              testing::EndsWith(": / has no tensor 'model.layers.1.mlp.up_proj.weight'"));
}

}  // namespace
}  // namespace nibble::merge_test
