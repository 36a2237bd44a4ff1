// What bitsandbytes calls the planes of a tensor, and what it wrote for the same weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "nibble/nested.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "tests/quant/schemes/scheme_support.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::bitsandbytes_test {
namespace {

using test::bytes_of;

std::string text_of(const test::Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::vector<TensorInfo> infos_of(const Codec& codec, const TensorInfo& tensor) {
  std::vector<TensorInfo> infos;
  for (const Part& part : stored_parts(codec, tensor)) infos.push_back(part.info);
  return infos;
}

TEST(Bitsandbytes, PartsOfDoubleQuant) {
  const TensorInfo tensor{"model.q_proj.weight", DType::bf16, {344, 129}};  // 44376 weights, 694 blocks
  const std::string state = R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [344, 129], )"
                            R"("nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": })";
  const std::vector<TensorInfo> expected{
      {"model.q_proj.weight", DType::u8, {22188, 1}},
      {"model.q_proj.weight.absmax", DType::u8, {694}},
      {"model.q_proj.weight.quant_map", DType::f32, {16}},
      {"model.q_proj.weight.nested_absmax", DType::f32, {3}},
      {"model.q_proj.weight.nested_quant_map", DType::f32, {256}},
      {"model.q_proj.weight.quant_state.bitsandbytes__nf4", DType::u8, {state.size() + 22}}};
  EXPECT_EQ(infos_of(*make_codec("nf4"), tensor), expected);
}

TEST(Bitsandbytes, PartsOfPlainAbsmax) {
  const TensorInfo tensor{"w", DType::f16, {3, 43}};
  const auto codec = make_codec("fp4:block-size=32,double-quant=no");
  const std::string state = R"({"quant_type": "fp4", "blocksize": 32, "dtype": "float16", "shape": [3, 43]})";
  const std::vector<TensorInfo> expected{{"w", DType::u8, {65, 1}},
                                         {"w.absmax", DType::f32, {5}},
                                         {"w.quant_map", DType::f32, {16}},
                                         {"w.quant_state.bitsandbytes__fp4", DType::u8, {state.size()}}};
  EXPECT_EQ(infos_of(*codec, tensor), expected);
  const auto parts = test::stored(*codec, tensor, test::stored_as(DType::f16, test::normal_weights(129, 1)));
  EXPECT_EQ(text_of(parts[3].second), state);
}

TEST(Bitsandbytes, PartsOfInt8HangOnTheModule) {
  const auto codec = make_codec("int8");
  const std::vector<TensorInfo> expected{
      {"a.weight", DType::i8, {3, 4}}, {"a.SCB", DType::f32, {3}}, {"a.weight_format", DType::u8, {}}};
  EXPECT_EQ(infos_of(*codec, {"a.weight", DType::f16, {3, 4}}), expected);
  EXPECT_EQ(infos_of(*codec, {"experts", DType::f16, {3, 4}})[1].name, "experts.SCB");
  const auto parts = test::stored(*codec, {"w", DType::f32, {1, 1}}, bytes_of(std::vector<float>{1.0f}));
  EXPECT_EQ(parts[2].second, test::Bytes{std::byte{0}});
}

TEST(Bitsandbytes, OffsetIsSpelledAsPythonDoes) {
  const auto codec = make_codec("nf4");
  const TensorInfo tensor{"w", DType::f64, {1, 64}};
  const auto state_of = [&](double absmax) {
    return text_of(test::stored(*codec, tensor, bytes_of(std::vector<double>(64, absmax)))[5].second);
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
    EXPECT_EQ(state.size(), stored_parts(*codec, tensor).back().info.bytes());
  }
}

// What does not fit a tensor that was recognized, when its planes are read.
TEST(Bitsandbytes, RefusesPartsThatContradictTheTensor) {
  const auto codec = make_codec("nf4");
  const TensorInfo tensor{"w", DType::f32, {2, 64}};
  const test::StoredParts good = test::stored(*codec, tensor, bytes_of(test::normal_weights(128, 1)));
  const auto error_of = [&](const test::StoredParts& parts) {
    const test::MemoryReader reader = test::reader_of(parts);
    return test::error_of([&] {
      (void)scheme_of(*codec).read_planes(reader, *codec, {tensor, "nf4", {0, 1, 2, 3, 4, 5}});
    });
  };
  const auto with_state = [&](const std::string& state) {
    test::StoredParts parts = good;
    parts.back().first.shape = {state.size()};
    parts.back().second = bytes_of(std::vector<char>(state.begin(), state.end()));
    return parts;
  };
  const std::string name = "tensor 'w.quant_state.bitsandbytes__nf4': ";
  const std::string state = text_of(good.back().second);
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

  test::StoredParts wrong_map = good;
  wrong_map[2].second = bytes_of(std::vector<float>(16, 0.5f));
  EXPECT_EQ(error_of(wrong_map), "tensor 'w.quant_map': value 0 is 0.500000, in nf4 it is -1.000000");
}

class BitsandbytesGolden : public testing::TestWithParam<std::tuple<std::string, std::string, std::uint32_t>> {
 protected:
  static const test::Golden& golden() {
    static const test::Golden file;
    return file;
  }
};

TEST_P(BitsandbytesGolden, EqualsBitsandbytesByteForByte) {
  const auto& [kind, which, blocksize] = GetParam();
  const std::string prefix = kind + "." + which;
  const auto codec = make_codec(four_bit_spec(kind, blocksize, false));
  TensorInfo tensor = golden().info(prefix + ".input");
  tensor.name = prefix;
  for (const auto& [info, bytes] : test::stored(*codec, tensor, golden().bytes(prefix + ".input"))) {
    EXPECT_EQ(info, golden().info(info.name));
    EXPECT_EQ(bytes, golden().bytes(info.name)) << info.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BitsandbytesGolden,
                         testing::Combine(testing::Values("nf4", "fp4"),
                                          testing::Values("float32", "bfloat16", "float16", "edges"),
                                          testing::Values(64)));
INSTANTIATE_TEST_SUITE_P(Small, BitsandbytesGolden,
                         testing::Combine(testing::Values("nf4", "fp4"), testing::Values("32"), testing::Values(32)));
INSTANTIATE_TEST_SUITE_P(Large, BitsandbytesGolden,
                         testing::Combine(testing::Values("nf4", "fp4"), testing::Values("256"), testing::Values(256)));
INSTANTIATE_TEST_SUITE_P(Largest, BitsandbytesGolden,
                         testing::Combine(testing::Values("nf4", "fp4"), testing::Values("4096"),
                                          testing::Values(4096)));

// bitsandbytes sums up the offset in another order and takes the 8-bit codes from a table that is not always nearest.
TEST(Bitsandbytes, DoubleQuantDiffersOnlyWhereItIsCloser) {
  const test::Golden golden;
  const std::string prefix = "nf4.nested";
  TensorInfo tensor = golden.info(prefix + ".input");
  const test::StoredParts parts = test::stored(*make_codec("nf4"), tensor, golden.bytes(prefix + ".input"));
  EXPECT_EQ(parts[0].second, golden.bytes(prefix));
  EXPECT_EQ(parts[2].second, golden.bytes(prefix + ".quant_map"));
  EXPECT_EQ(parts[4].second, golden.bytes(prefix + ".nested_quant_map"));

  const auto state = [](const test::Bytes& bytes) { return nlohmann::json::parse(text_of(bytes)); };
  auto ours = state(parts[5].second), theirs = state(golden.bytes(prefix + ".quant_state.bitsandbytes__nf4"));
  const float offset = theirs["nested_offset"].get<float>();
  EXPECT_NEAR(ours["nested_offset"].get<float>(), offset, 2e-7 * offset);
  ours["nested_offset"] = theirs["nested_offset"];
  EXPECT_EQ(ours, theirs);

  // Given their offset: the same nested absmax, and codes that are theirs or nearer.
  const auto weights = golden.bytes(prefix + ".input");
  const auto plain = test::encode(*make_codec("nf4:double-quant=no"), tensor, weights);
  const auto absmax = test::values_of<float>(plain.planes[1]);
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

}  // namespace
}  // namespace nibble::bitsandbytes_test
