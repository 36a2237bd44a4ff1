// How 4-bit tensors lie in a checkpoint, and what bitsandbytes wrote for the same weights.
#include "quant/codecs/four_bit/four_bit.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/error.hpp"
#include "nibble/nested.hpp"
#include "nibble/nf4.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::four_bit_test {
namespace {

using test::bytes_of;
using test::Encoded;

std::string text_of(const test::Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

TEST(FourBitLayout, NestedPartsAreThoseOfBitsandbytes) {
  const TensorInfo tensor{"model.q_proj.weight", DType::bf16, {344, 129}};  // 44376 weights, 694 blocks
  const auto parts = make_codec("nf4")->parts(tensor);
  const std::string state = R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [344, 129], )"
                            R"("nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": })";
  const std::vector<TensorInfo> expected{
      {"model.q_proj.weight", DType::u8, {22188, 1}},
      {"model.q_proj.weight.absmax", DType::u8, {694}},
      {"model.q_proj.weight.quant_map", DType::f32, {16}},
      {"model.q_proj.weight.nested_absmax", DType::f32, {3}},
      {"model.q_proj.weight.nested_quant_map", DType::f32, {256}},
      {"model.q_proj.weight.quant_state.bitsandbytes__nf4", DType::u8, {state.size() + 22}}};
  EXPECT_EQ(parts, expected);
}

TEST(FourBitLayout, PlainPartsAreThoseOfBitsandbytes) {
  const TensorInfo tensor{"w", DType::f16, {3, 43}};
  const auto codec = make_codec("fp4", {.blocksize = 32, .double_quant = false});
  const std::string state = R"({"quant_type": "fp4", "blocksize": 32, "dtype": "float16", "shape": [3, 43]})";
  const std::vector<TensorInfo> expected{{"w", DType::u8, {65, 1}},
                                         {"w.absmax", DType::f32, {5}},
                                         {"w.quant_map", DType::f32, {16}},
                                         {"w.quant_state.bitsandbytes__fp4", DType::u8, {state.size()}}};
  EXPECT_EQ(codec->parts(tensor), expected);
  const Encoded encoded = test::encode(*codec, tensor, test::stored_as(DType::f16, test::normal_weights(129, 1)));
  EXPECT_EQ(text_of(encoded.parts[3]), state);
  EXPECT_EQ(codec->bnb_config()->quant_type, "fp4");
  EXPECT_FALSE(codec->bnb_config()->double_quant);
}

TEST(FourBitLayout, OffsetIsSpelledAsPythonDoes) {
  const auto codec = make_codec("nf4");
  const TensorInfo tensor{"w", DType::f64, {1, 64}};
  const auto state_of = [&](double absmax) {
    return text_of(test::encode(*codec, tensor, bytes_of(std::vector<double>(64, absmax))).parts[5]);
  };
  const std::string start =
      R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [1, 64], "nested_blocksize": 256, )"
      R"("nested_dtype": "float32", "nested_offset": )";
  const std::pair<double, std::string> cases[] = {{0.0, "0.0"},
                                                  {1.0, "1.0"},
                                                  {0.1, "0.10000000149011612"},
                                                  {-1234567.0, "1234567.0"},
                                                  {1e15, "999999986991104.0"},
                                                  {0x1p54, "1.8014398509481984e+16"},
                                                  {0x1p53, "9007199254740992.0"},
                                                  {0x1p-13, "0.0001220703125"},
                                                  {0x1p-14, "6.103515625e-05"},
                                                  {1e-5, "9.999999747378752e-06"},
                                                  {0x1p-149, "1.401298464324817e-45"},
                                                  {0x1.fffffep127, "3.4028234663852886e+38"}};
  for (const auto& [absmax, spelled] : cases) {
    const std::string state = state_of(absmax);
    EXPECT_EQ(state, start + spelled + "}" + std::string(22 - spelled.size(), ' '));
    EXPECT_EQ(state.size(), codec->parts(tensor).back().bytes());
  }
}

TEST(FourBitDecoder, RefusesPartsThatContradictTheTensor) {
  const auto codec = make_codec("nf4");
  const TensorInfo tensor{"w", DType::f32, {2, 64}};
  const Encoded good = test::encode(*codec, tensor, bytes_of(test::normal_weights(128, 1)));
  const auto error_of = [&](const Encoded& encoded) {
    try {
      test::decode(*codec, tensor, encoded);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::bad_input);
      return std::string(error.what());
    }
    return std::string();
  };
  const auto with_state = [&](const std::string& state) {
    Encoded encoded = good;
    encoded.parts.back() = bytes_of(std::vector<char>(state.begin(), state.end()));
    return encoded;
  };
  const std::string name = "tensor 'w.quant_state.bitsandbytes__nf4': ";
  std::string state = text_of(good.parts.back());
  EXPECT_EQ(error_of(good), "");
  EXPECT_EQ(error_of(with_state(state + "   ")), "");  // bitsandbytes does not mind either
  EXPECT_EQ(error_of(with_state("")), name + "is not a JSON object");
  EXPECT_EQ(error_of(with_state("[1]")), name + "is not a JSON object");
  EXPECT_EQ(error_of(with_state(state.substr(1))), name + "is not a JSON object");
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string copy = state;
    return with_state(copy.replace(copy.find(from), from.size(), to));
  };
  EXPECT_EQ(error_of(replaced("nf4", "fp4")), name + "quant_type is fp4, not nf4");
  // What is nested is printed by recursion, so not at any depth.
  EXPECT_EQ(error_of(replaced("\"nf4\"", std::string(30'000, '[') + std::string(30'000, ']'))),
            name + "quant_type is " + std::string(16, '[') + std::string(16, ']') + ", not nf4");
  EXPECT_EQ(error_of(replaced("64", "32")), name + "blocksize is 32, not 64");
  EXPECT_EQ(error_of(replaced("[2, 64]", "[64, 2]")), name + "shape is [64,2], not [2,64]");
  EXPECT_EQ(error_of(replaced("nested_offset", "nested_office")), name + "nested_offset is not a number");
  EXPECT_EQ(error_of(replaced("nested_blocksize", "nested_block")), name + "nested_blocksize is missing, not 256");

  Encoded wrong_map = good;
  wrong_map.parts[2] = bytes_of(std::vector<float>(16, 0.5f));
  EXPECT_EQ(error_of(wrong_map), "tensor 'w.quant_map': value 0 is 0.500000, in nf4 it is -1.000000");
  Encoded missing = good;
  missing.parts.erase(missing.parts.begin() + 3);
  EXPECT_EQ(error_of(missing), "tensor 'w': has 5 parts, not 6");
}

class FourBitGolden : public testing::TestWithParam<std::tuple<std::string, std::string, std::uint32_t>> {
 protected:
  static const test::Golden& golden() {
    static const test::Golden file;
    return file;
  }
};

TEST_P(FourBitGolden, EqualsBitsandbytesByteForByte) {
  const auto& [kind, which, blocksize] = GetParam();
  const std::string prefix = kind + "." + which;
  const auto codec = make_codec(kind, {.blocksize = blocksize, .double_quant = false});
  TensorInfo tensor = golden().info(prefix + ".input");
  const Encoded encoded = test::encode(*codec, tensor, golden().bytes(prefix + ".input"));
  tensor.name = prefix;
  const auto parts = codec->parts(tensor);
  ASSERT_EQ(parts.size(), encoded.parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i], golden().info(parts[i].name));
    EXPECT_EQ(encoded.parts[i], golden().bytes(parts[i].name)) << parts[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, FourBitGolden,
                         testing::Combine(testing::Values("nf4", "fp4"),
                                          testing::Values("float32", "bfloat16", "float16", "edges"),
                                          testing::Values(64)));
INSTANTIATE_TEST_SUITE_P(Small, FourBitGolden,
                         testing::Combine(testing::Values("nf4", "fp4"), testing::Values("32"), testing::Values(32)));
INSTANTIATE_TEST_SUITE_P(Large, FourBitGolden,
                         testing::Combine(testing::Values("nf4", "fp4"), testing::Values("256"), testing::Values(256)));
INSTANTIATE_TEST_SUITE_P(Largest, FourBitGolden,
                         testing::Combine(testing::Values("nf4", "fp4"), testing::Values("4096"),
                                          testing::Values(4096)));

// bitsandbytes sums up the offset in another order and takes the 8-bit codes from a table that is not always nearest.
TEST(FourBitGoldenNested, DiffersFromBitsandbytesOnlyWhereItIsCloser) {
  const test::Golden golden;
  const std::string prefix = "nf4.nested";
  TensorInfo tensor = golden.info(prefix + ".input");
  const Encoded encoded = test::encode(*make_codec("nf4"), tensor, golden.bytes(prefix + ".input"));
  EXPECT_EQ(encoded.parts[0], golden.bytes(prefix));
  EXPECT_EQ(encoded.parts[2], golden.bytes(prefix + ".quant_map"));
  EXPECT_EQ(encoded.parts[4], golden.bytes(prefix + ".nested_quant_map"));

  const auto state = [](const test::Bytes& bytes) { return nlohmann::json::parse(text_of(bytes)); };
  auto ours = state(encoded.parts[5]), theirs = state(golden.bytes(prefix + ".quant_state.bitsandbytes__nf4"));
  const float offset = theirs["nested_offset"].get<float>();
  EXPECT_NEAR(ours["nested_offset"].get<float>(), offset, 2e-7 * offset);
  ours["nested_offset"] = theirs["nested_offset"];
  EXPECT_EQ(ours, theirs);

  // Given their offset: the same nested absmax, and codes that are theirs or nearer.
  const auto weights = golden.bytes(prefix + ".input");
  const auto plain = test::encode(*make_codec("nf4", {.double_quant = false}), tensor, weights);
  const auto absmax = test::values_of<float>(plain.parts[1]);
  std::vector<std::uint8_t> codes(absmax.size());
  std::vector<float> nested_absmax((absmax.size() + 255) / 256);
  nested::encode(absmax, offset, codes, nested_absmax);
  EXPECT_EQ(bytes_of(nested_absmax), golden.bytes(prefix + ".nested_absmax"));
  const auto their_codes = test::values_of<std::uint8_t>(golden.bytes(prefix + ".absmax"));
  std::size_t different = 0;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (codes[i] == their_codes[i]) continue;
    ++different;
    const auto distance = [&](std::uint8_t code) {
      return std::abs(nested::codebook[code] - (absmax[i] - offset) / static_cast<double>(nested_absmax[i / 256]));
    };
    EXPECT_LE(distance(codes[i]), distance(their_codes[i]) + 1e-7) << i;
  }
  EXPECT_LE(different, codes.size() / 100);
}

// More absmax values than finish() has in memory at a time.
TEST(FourBitLayout, LargeTensorsAreFinishedInPieces) {
  const TensorInfo tensor{"w", DType::f32, {9'000'001}};
  const auto weights = bytes_of(test::normal_weights(tensor.shape[0], 11));
  const CodecOptions plain_options{.blocksize = 32, .double_quant = false};
  const Encoded plain = test::encode(*make_codec("nf4", plain_options), tensor, weights);
  const Encoded nested = test::encode(*make_codec("nf4", {.blocksize = 32}), tensor, weights);
  const auto absmax = test::values_of<float>(plain.parts[1]);
  ASSERT_EQ(absmax.size(), 281'251U);
  std::vector<std::uint8_t> codes(absmax.size());
  std::vector<float> nested_absmax((absmax.size() + 255) / 256);
  nested::encode(absmax, nested::offset(absmax), codes, nested_absmax);
  EXPECT_EQ(nested.parts[1], bytes_of(codes));
  EXPECT_EQ(nested.parts[3], bytes_of(nested_absmax));
}

}  // namespace
}  // namespace nibble::four_bit_test
