#include "quant/jobs/merge/plain_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "quant/schemes/scheme.hpp"
#include "tests/quant/jobs/merge/merged_base.hpp"
#include "tests/support/conversion.hpp"

namespace nibble::plain_reader_test {
namespace {

using test::base;
using test::bytes_of;
using test::MemoryReader;

// What `convert` makes of a checkpoint, to be opened.
std::unique_ptr<MemoryReader> quantized(const MemoryReader& in, const std::string& architecture, const CodecSpec& to) {
  const test::Converted made = test::converted(in, test::recipe(to));
  auto copy = std::make_unique<MemoryReader>();
  copy->set_architecture(architecture, false);
  copy->set_quant_method(std::string(quant_method(made.plan)), quantization_config(made.plan));
  for (std::size_t t = 0; t < made.reader.tensors().size(); ++t)
    copy->add(made.reader.tensors()[t], bytes_of(made.reader, t));
  return copy;
}

TEST(PlainReader, PlainTensorsAreAsStored) {
  const PlainReader reader(base());
  const auto in = base();
  ASSERT_EQ(reader.tensors().size(), 5u);
  for (std::size_t t = 0; t < 5; ++t) {
    EXPECT_EQ(reader.tensors()[t].name, in->tensors()[t].name);
    EXPECT_EQ(reader.tensors().dtype(t), DType::bf16);
    EXPECT_EQ(bytes_of(reader, t), bytes_of(*in, t));
  }
  EXPECT_FALSE(ReaderInternals::was_quantized(reader));
  EXPECT_EQ(reader.model().architecture, "LlamaForCausalLM");
}

TEST(PlainReader, CodesAreFp32) {
  const PlainReader reader(quantized(*base(), "LlamaForCausalLM", "int8"));
  const auto in = base();
  ASSERT_EQ(reader.tensors().size(), 5u);  // no SCB
  EXPECT_TRUE(ReaderInternals::was_quantized(reader));
  EXPECT_TRUE(reader.config()->quantization_config.empty());
  EXPECT_TRUE(reader.config()->quant_method.empty());
  std::size_t decoded = 0;
  for (std::size_t t = 0; t < 5; ++t) {
    const TensorInfo tensor = reader.tensors()[t];
    if (tensor.dtype != DType::f32) continue;
    ++decoded;
    EXPECT_THAT(tensor.name, testing::HasSubstr("self_attn"));
    const std::size_t source = tensor.name.find("k_proj") != std::string::npos ? 2 : 3;
    const auto before = test::numbers_of(DType::bf16, bytes_of(*in, source)),
               after = test::numbers_of(DType::f32, bytes_of(reader, t));
    for (std::size_t row = 0; row < 256; ++row) {
      double absmax = 0;
      for (std::size_t c = 0; c < 256; ++c) absmax = std::max(absmax, std::abs(before[row * 256 + c]));
      for (std::size_t c = 0; c < 256; ++c)
        ASSERT_NEAR(after[row * 256 + c], before[row * 256 + c], absmax / 127 * 0.51) << row << ' ' << c;
    }
  }
  EXPECT_EQ(decoded, 2u);
}

TEST(PlainReader, AnyRangeIsThatPartOfAll) {
  const PlainReader reader(quantized(*base(), "LlamaForCausalLM", "nf4"));
  for (std::size_t t = 0; t < reader.tensors().size(); ++t) {
    const auto all = bytes_of(reader, t);
    const std::uint64_t width = traits(reader.tensors().dtype(t)).bits / 8;
    std::vector<std::byte> part(100 * width);
    reader.read(t, 77 * width, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(77 * width)));
  }
}

// bitsandbytes stores a Conv1D transposed; the model has it as [in, out].
TEST(PlainReader, AConv1dIsTransposedBack) {
  MemoryReader in;
  in.set_architecture("GPT2LMHeadModel", false);
  in.add_normal("transformer.h.0.mlp.c_fc.weight", DType::f32, {64, 128});
  const PlainReader reader(quantized(in, "GPT2LMHeadModel", "int8"));
  ASSERT_EQ(reader.tensors().size(), 1u);
  EXPECT_EQ(reader.tensors()[0].shape, (Shape{64, 128}));
  const auto before = test::numbers_of(DType::f32, bytes_of(in, 0)),
             after = test::numbers_of(DType::f32, bytes_of(reader, 0));
  for (std::size_t i = 0; i < before.size(); ++i) ASSERT_NEAR(after[i], before[i], 0.05) << i;
}

}  // namespace
}  // namespace nibble::plain_reader_test
