// Files as DeepSeek-V3's.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quant/stream/stored_weights.hpp"
#include "tests/quant/schemes/scheme_support.hpp"

namespace nibble::fp8_blocks_test {
namespace {

using test::MemoryReader;

MemoryReader file(const Shape& scale_shape, DType scales = DType::f32) {
  MemoryReader in;
  in.add({"a.weight", DType::f8_e4m3, {129, 200}}, test::Bytes(129 * 200, std::byte{0x38}));  // 1
  std::vector<float> values(element_count(scale_shape));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.3f + static_cast<float>(i);
  in.add({"a.weight_scale_inv", scales, scale_shape}, test::stored_as(scales, values));
  return in;
}

TEST(Fp8Blocks, AreWeightsOfTheTypeThatTheModelHad) {
  for (const Shape& shape : {Shape{2, 2}, Shape{}}) {
    const MemoryReader in = file(shape);
    const StoredWeights stored(in);
    ASSERT_EQ(stored.size(), 1U);
    EXPECT_EQ(stored[0].stored.info, (TensorInfo{"a.weight", DType::bf16, {129, 200}}));
    EXPECT_EQ(stored[0].stored.codec, shape.empty() ? "fp8:scales=tensor" : "fp8:scales=block");
    EXPECT_EQ(stored[0].scheme->quant_method(), "fp8");
  }
}

TEST(Fp8Blocks, WeightsAreCodesTimesTheScalesInFp32) {
  const MemoryReader in = file({2, 2});
  const StoredWeights stored(in);
  const auto found = stored[0];
  const auto codec = make_codec(found.stored.codec);
  const auto planes = found.scheme->read_planes(in, *codec, found.stored);
  const std::vector<std::span<const std::byte>> rest(planes.begin(), planes.end());
  std::vector<float> weights(129 * 200);
  codec->decoder(found.stored.info, rest)->decode(0, test::Bytes(129 * 200, std::byte{0x38}), weights);
  EXPECT_EQ(weights[0], 0.3f);
  EXPECT_EQ(weights[128], 1.3f);
  EXPECT_EQ(weights[128 * 200], 2.3f);
  EXPECT_EQ(weights.back(), 3.3f);
}

TEST(Fp8Blocks, ScalesOfActivationsBelongToTheTensor) {
  MemoryReader in = file({2, 2});
  in.add_normal("a.activation_scale", DType::bf16, {});
  in.add_normal("a.input_scale", DType::f32, {1});
  EXPECT_EQ(StoredWeights(in).size(), 1U);
  EXPECT_EQ(StoredWeights(in)[0].stored.parts.size(), 4U);
}

// Scales of 2 x 2 fit blocks of 100 x 100 as well: only config.json tells. Where it does not fit, nothing is decoded.
TEST(Fp8Blocks, BlocksOfOtherShapesAreNotDecoded) {
  const auto reason = [](const std::string& config) {
    MemoryReader in = file({2, 2});
    in.set_quant_method("fp8", config);
    const StoredWeights stored(in);
    return std::pair{stored.size(), stored.undecodable(0)};
  };
  EXPECT_EQ(reason("{}"), std::pair(std::size_t{1}, std::string()));
  EXPECT_EQ(reason(R"({"weight_block_size":[128,128]})"), std::pair(std::size_t{1}, std::string()));
  const auto refused = [](const std::string& blocks) {
    return std::pair(std::size_t{2},
                     "quantized in blocks of " + blocks +
                         ", as weight_block_size of config.json says; nibble takes blocks of 128 x 128");
  };
  EXPECT_EQ(reason(R"({"weight_block_size":[100,100]})"), refused("[100,100]"));
  EXPECT_EQ(reason(R"({"weight_block_size":[128,128,1]})"), refused("[128,128,1]"));
  EXPECT_EQ(reason(R"({"weight_block_size":128})"), refused("128"));
  MemoryReader other = file({2, 2});  // no other scheme guesses either
  other.set_quant_method("compressed-tensors", R"({"x":NaN})");
  EXPECT_EQ(StoredWeights(other).size(), 2U);
  // Python's JSON has more numbers.
  for (const char* const config : {R"({"x":NaN})", R"({"x":Infinity})", R"({"x":1e999})", R"({"x":"\ud800"})"})
    EXPECT_THAT(reason(config).second, testing::HasSubstr("the quantization_config of config.json is not strict JSON"));
}

}  // namespace
}  // namespace nibble::fp8_blocks_test
