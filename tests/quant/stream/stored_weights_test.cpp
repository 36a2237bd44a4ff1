#include "quant/stream/stored_weights.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "quant/stream/source.hpp"
#include "tests/quant/schemes/scheme_support.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::stored_weights_test {
namespace {

using test::Bytes;
using test::error_of;
using test::MemoryReader;

using test::reader_of;
using Parts = test::StoredParts;  // to be changed before they are a checkpoint

const TensorInfo matrix{"layer.weight", DType::f32, {70, 65}};

Parts parts_of(const CodecSpec& codec, const TensorInfo& tensor = matrix) {
  const std::vector<float> weights = test::normal_weights(tensor.elements(), 1);
  return test::stored(*make_codec(codec), tensor, test::stored_as(tensor.dtype, weights));
}

std::pair<TensorInfo, Bytes>& part(Parts& parts, std::string_view ending) {
  return *std::find_if(parts.begin(), parts.end(), [&](const auto& each) { return each.first.name.ends_with(ending); });
}

std::string text_of(const Bytes& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// All weights of a tensor, read in pieces of `step`.
std::vector<float> weights_of(const StoredWeights& stored, std::size_t tensor, std::size_t step = 4096) {
  const StoredWeights::Tensor found = stored[tensor];
  Buffers buffers;
  const WeightSource source = open_source(stored, found, buffers);
  std::vector<float> weights(found.stored.info.elements());
  for (std::size_t first = 0; first < weights.size(); first += step) {
    const std::size_t n = std::min(step, weights.size() - first);
    Bytes raw(source.bytes(first, n));
    source.read(first, raw);
    for (std::size_t at = first; at < first + n; at += 4096) {
      std::vector<float> tile(4096);
      const std::size_t m = std::min<std::size_t>(4096, first + n - at);
      const auto decoded = source.decode(first, raw, at, m, tile);
      EXPECT_EQ(decoded.size(), m);
      std::copy(decoded.begin(), decoded.end(), weights.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return weights;
}

// Why a checkpoint of these parts cannot be read, after the name of the file, or nothing.
std::string problem(const Parts& parts) {
  const MemoryReader reader = reader_of(parts);
  const std::string error = error_of([&] {
    const StoredWeights stored(reader);
    Buffers buffers;
    for (std::size_t t = 0; t < stored.size(); ++t) (void)open_source(stored, stored[t], buffers);
  });
  const std::string_view file = "/file0: ";
  if (error.empty()) return error;
  EXPECT_EQ(error.substr(0, file.size()), file);
  return error.substr(file.size());
}

std::vector<std::string> names(const StoredWeights& stored) {
  std::vector<std::string> result;
  for (std::size_t t = 0; t < stored.size(); ++t) result.push_back(stored[t].stored.info.name);
  return result;
}

struct Case {
  std::string id;
  CodecSpec codec;
};

class StoredCodecs : public testing::TestWithParam<Case> {};

// Parts in any order, among others, are the tensor that they were.
TEST_P(StoredCodecs, PartsAreOneTensorAgain) {
  const auto& [id, codec] = GetParam();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const TensorInfo tensor{"layer.weight", dtype, {70, 195}};
    Parts parts = parts_of(codec, tensor);
    const std::size_t own = parts.size();
    std::uint64_t bytes = 0;
    for (const auto& [info, data] : parts) bytes += data.size();
    std::reverse(parts.begin(), parts.end());
    parts.insert(parts.begin(), {{"a.bias", DType::f32, {3}}, test::bytes_of(std::vector<float>{1, 2, 3})});
    parts.push_back({{"layer.weight.other", DType::u8, {2}}, Bytes(2)});
    const MemoryReader reader = reader_of(parts);
    const StoredWeights stored(reader);
    EXPECT_EQ(names(stored), (std::vector<std::string>{"a.bias", "layer.weight", "layer.weight.other"}));
    const StoredWeights::Tensor found = stored[1];
    EXPECT_EQ(found.stored.codec, codec);
    EXPECT_TRUE(found.quantized());
    EXPECT_EQ(found.bytes, bytes);
    EXPECT_EQ(found.stored.parts.size(), own);
    EXPECT_EQ(found.stored.info.shape, tensor.shape);
    if (codec != "int8") {
      EXPECT_EQ(found.stored.info, tensor);
    }
    EXPECT_EQ(stored.find("layer.weight"), 1U);
    EXPECT_EQ(stored.find("a.bias"), 0U);
    EXPECT_EQ(stored.find("layer"), std::nullopt);
    EXPECT_EQ(stored.find(part(parts, codec == "int8" ? "SCB" : ".absmax").first.name), std::nullopt);
    EXPECT_FALSE(stored[0].quantized());
    EXPECT_EQ(stored[0].stored.codec, "keep");
    EXPECT_EQ(weights_of(stored, 0), (std::vector<float>{1, 2, 3}));

    const std::vector<float> weights = test::normal_weights(tensor.elements(), 1);
    const auto made = make_codec(codec);
    const std::vector<float> expected =
        test::decode(*made, tensor, test::encode(*made, tensor, test::stored_as(dtype, weights)));
    EXPECT_EQ(weights_of(stored, 1, 4096), expected);
    EXPECT_EQ(weights_of(stored, 1, 8192), expected);
    EXPECT_EQ(weights_of(stored, 1, 1 << 20), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(All, StoredCodecs,
                         testing::Values(Case{"nf4", "nf4"}, Case{"nf4_plain", "nf4:double-quant=no"},
                                         Case{"nf4_4096", "nf4:block-size=4096"}, Case{"fp4_32", "fp4:block-size=32"},
                                         Case{"fp4_plain", "fp4:double-quant=no"}, Case{"int8", "int8"}),
                         [](const auto& each) { return each.param.id; });

TEST(StoredWeights, OddNumbersOfWeights) {
  for (const std::size_t n : {1U, 63U, 4097U, 8193U, 12'289U})
    for (const char* const codec : {"nf4", "int8"}) {
      const TensorInfo tensor{"w.weight", DType::f32, {1, n}};
      const MemoryReader reader = reader_of(parts_of(codec, tensor));
      const StoredWeights stored(reader);
      ASSERT_EQ(stored.size(), 1U);
      EXPECT_EQ(weights_of(stored, 0), test::round_trip(*make_codec(codec), test::normal_weights(n, 1), {1, n}))
          << codec << ", " << n;
    }
}

TEST(StoredWeights, PlainTensorsAreAsTheyAre) {
  MemoryReader reader;
  const std::vector<float> weights = test::normal_weights(5000, 1);
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    reader.add({std::string(traits(dtype).name), dtype, {5000}}, test::stored_as(dtype, weights));
  reader.add({"empty", DType::f32, {0, 5}}, {});
  reader.add({"scalar", DType::bf16, {}}, test::stored_as(DType::bf16, {0.5f}));
  reader.add({"codes", DType::i8, {2, 2}}, Bytes(4));  // int8 without its scales
  const StoredWeights stored(reader);
  ASSERT_EQ(stored.size(), 7U);
  EXPECT_EQ(weights_of(stored, 0), weights);
  EXPECT_EQ(weights_of(stored, 1), weights);
  EXPECT_NE(weights_of(stored, 2), weights);
  EXPECT_EQ(weights_of(stored, 4), std::vector<float>());
  EXPECT_EQ(weights_of(stored, 5), std::vector<float>{0.5f});
  EXPECT_FALSE(stored[6].quantized());
}

// Every layer of a model, whatever others it has.
TEST(StoredWeights, ManyTensors) {
  Parts parts;
  for (std::size_t i = 0; i < 100; ++i) {
    const TensorInfo tensor{"layers." + std::to_string(i) + ".weight", DType::f32, {3, 20 + i}};
    Parts own = parts_of(i % 3 == 0 ? "nf4" : i % 3 == 1 ? "fp4" : "int8", tensor);
    parts.insert(parts.end(), own.begin(), own.end());
  }
  const MemoryReader reader = reader_of(parts);
  const StoredWeights stored(reader);
  ASSERT_EQ(stored.size(), 100U);
  for (std::size_t i = 0; i < 100; ++i) {
    const StoredWeights::Tensor tensor = stored[i];
    EXPECT_EQ(tensor.stored.info.name, "layers." + std::to_string(i) + ".weight");
    EXPECT_EQ(tensor.stored.codec, i % 3 == 0 ? "nf4" : i % 3 == 1 ? "fp4" : "int8");
    EXPECT_EQ(weights_of(stored, i).size(), 3 * (20 + i));
  }
}

// One of two scales would win, and nobody could tell which is right.
TEST(StoredWeights, PartsOfTwoSchemesContradictEachOther) {
  MemoryReader in;
  in.add_normal("a.weight", DType::f8_e4m3, {3, 4});
  in.add_normal("a.weight_scale", DType::f32, {1});
  EXPECT_EQ(StoredWeights(in).size(), 1U);
  in.add_normal("a.weight_scale_inv", DType::f32, {1});
  EXPECT_EQ(error_of([&] { (void)StoredWeights(in); }),
            "/file0: tensor 'a.weight' has the parts of compressed-tensors and of fp8");
  in.set_quant_method("fp8");  // the scheme that config.json names comes first
  EXPECT_EQ(error_of([&] { (void)StoredWeights(in); }),
            "/file0: tensor 'a.weight' has the parts of fp8 and of compressed-tensors");
}

// A state is parsed when the checkpoint is looked through, and not again for every access.
TEST(StoredWeights, SchemesAreAskedOnce) {
  Parts parts;
  for (const char* const name : {"a.weight", "b.weight", "c.weight"})
    for (auto& part : parts_of("nf4", {name, DType::bf16, {70, 65}})) parts.push_back(std::move(part));
  const MemoryReader reader = reader_of(parts);
  const StoredWeights stored(reader);
  EXPECT_EQ(reader.reads(), 3U);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(names(stored), (std::vector<std::string>{"a.weight", "b.weight", "c.weight"}));
  EXPECT_EQ(stored.undecodable(*stored.find("b.weight")), "");
  EXPECT_EQ(reader.reads(), 3U);
}

TEST(StoredWeights, SaysWhatItKeeps) {
  const auto kept = [](const Parts& parts) {
    const MemoryReader reader = reader_of(parts);
    return StoredWeights(reader).memory_bytes();
  };
  EXPECT_EQ(kept({{{"a.bias", DType::f32, {3}}, Bytes(12)}}), 0U);
  const Parts parts = parts_of("nf4");
  EXPECT_GE(kept(parts), parts.size() * sizeof(std::uint32_t) + sizeof(CodecSpec) + 2 * sizeof(std::uint64_t));
  EXPECT_LE(kept(parts), 80U);
}

// ---- parts that are no tensor ----------------------------------------------------------------------------------

TEST(StoredWeights, MissingPartsAreNamed) {
  for (const CodecSpec codec : {"nf4", "nf4:double-quant=no"}) {
    const Parts all = parts_of(codec);
    EXPECT_EQ(problem(all), "");
    for (std::size_t i = 1; i + 1 < all.size(); ++i) {  // the last is the state: without it they are no tensor
      Parts parts = all;
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_EQ(problem(parts), "tensor 'layer.weight': part '" + all[i].first.name + "' is missing");
    }
  }
}

TEST(StoredWeights, WeightFormatMayBeMissing) {
  Parts parts = parts_of("int8");
  parts.erase(parts.begin() + 2);
  const MemoryReader reader = reader_of(parts);
  const StoredWeights stored(reader);
  ASSERT_EQ(stored.size(), 1U);
  EXPECT_EQ(stored[0].stored.codec, "int8");
  EXPECT_EQ(weights_of(stored, 0), test::round_trip(*make_codec("int8"), test::normal_weights(70 * 65, 1), {70, 65}));
}

TEST(StoredWeights, ContradictionsInInt8) {
  const auto broken = [](const std::function<void(Parts&)>& change) {
    Parts parts = parts_of("int8");
    change(parts);
    return problem(parts);
  };
  EXPECT_EQ(broken([](Parts& parts) { part(parts, "format").second[0] = std::byte{1}; }),
            "tensor 'layer.weight': weight_format is not 0 (row-major)");
  for (const std::uint64_t size : {0U, 2U})
    EXPECT_EQ(broken([&](Parts& parts) {
                part(parts, "format") = {{"layer.weight_format", DType::u8, {size}}, Bytes(size)};
              }),
              "tensor 'layer.weight_format': has " + std::to_string(size) + " bytes, not 1");
  EXPECT_EQ(broken([](Parts& parts) {  // no bytes, so any number of rows fits
              parts[0] = {{"layer.weight", DType::i8, {std::uint64_t{1} << 60, 0}}, {}};
            }),
            "tensor 'layer.weight': SCB has 280 bytes, not 4 for each of 1152921504606846976 rows");
  EXPECT_EQ(broken([](Parts& parts) {
              part(parts, "SCB") = {{"layer.SCB", DType::f32, {69}}, Bytes(69 * 4)};
            }),
            "tensor 'layer.weight': SCB has 276 bytes, not 4 for each of 70 rows");
  EXPECT_EQ(broken([](Parts& parts) {
              part(parts, "SCB") = {{"layer.SCB", DType::f16, {70}}, Bytes(70 * 2)};
            }),
            "tensor 'layer.SCB': type is F16, not F32");
}

TEST(StoredWeights, ContradictionsInFourBits) {
  constexpr const char* state = ".quant_state.bitsandbytes__nf4";
  const auto broken = [](const std::function<void(Parts&)>& change) {
    Parts parts = parts_of("nf4");
    change(parts);
    return problem(parts);
  };
  const auto with_state = [&](const std::string& from, const std::string& to) {
    return broken([&](Parts& parts) {
      auto& [info, bytes] = part(parts, state);
      std::string text = text_of(bytes);
      ASSERT_NE(text.find(from), std::string::npos);
      text.replace(text.find(from), from.size(), to);
      info.shape = {text.size()};
      bytes = test::bytes_of(std::vector<char>(text.begin(), text.end()));
    });
  };
  const std::string of_state = "tensor 'layer.weight" + std::string(state) + "': ";
  EXPECT_EQ(with_state("\"blocksize\": 64", "\"blocksize\": 64 "), "");
  EXPECT_EQ(with_state("{", "["), of_state + "is not a JSON object");
  EXPECT_EQ(with_state("\"blocksize\": 64", "\"blocksize\": 63"),
            of_state + "blocksize is not one of 32, 64, ..., 4096");
  EXPECT_EQ(with_state("\"blocksize\": 64", "\"blocksize\": -64"),
            of_state + "blocksize is not one of 32, 64, ..., 4096");
  EXPECT_EQ(with_state("\"blocksize\": 64", "\"blocksize\": 4294967360"),
            of_state + "blocksize is not one of 32, 64, ..., 4096");
  EXPECT_EQ(with_state("\"blocksize\": 64", "\"blocksize\": \"64\""),
            of_state + "blocksize is not one of 32, 64, ..., 4096");
  EXPECT_EQ(with_state("\"shape\"", "\"form\""), of_state + "shape is missing");
  EXPECT_EQ(with_state("[70, 65]", "70"), of_state + "shape is missing");
  EXPECT_EQ(with_state("[70, 65]", "[70, -65]"), of_state + "shape has a dimension that is not a size");
  EXPECT_EQ(with_state("[70, 65]", "[70, 6.5]"), of_state + "shape has a dimension that is not a size");
  std::string shape = "[70, 65";
  for (int dimension = 2; dimension < 64; ++dimension) shape += ", 1";
  EXPECT_NE(with_state("[70, 65]", shape + "]"), of_state + "shape has more than 64 dimensions");
  EXPECT_EQ(with_state("[70, 65]", shape + ", 1]"), of_state + "shape has more than 64 dimensions");
  EXPECT_EQ(with_state("[70, 65]", "[70, 66]"), "tensor 'layer.weight': has 2275 bytes for 4620 weights");
  EXPECT_EQ(with_state("[70, 65]", "[70, 64]"), "tensor 'layer.weight': has 2275 bytes for 4480 weights");
  EXPECT_EQ(with_state("\"quant_type\": \"nf4\"", "\"quant_type\": \"fp4\""), of_state + "quant_type is fp4, not nf4");
  EXPECT_EQ(with_state("\"nested_blocksize\": 256", "\"nested_blocksize\": 128"),
            of_state + "nested_blocksize is 128, not 256");
  EXPECT_EQ(with_state("\"nested_offset\"", "\"offset\""), of_state + "nested_offset is not a number");
  EXPECT_EQ(with_state("[70, 65]", "[4611686018427387904]"),
            "tensor 'layer.weight': has 2275 bytes for 4611686018427387904 weights");
  // Sizes whose product is beyond 64 bits.
  EXPECT_NE(with_state("[70, 65]", "[4294967296, 4294967296]"), "");
  EXPECT_NE(with_state("[70, 65]", "[18446744073709551615, 18446744073709551615, 3]"), "");

  EXPECT_NE(broken([](Parts& parts) {
              part(parts, ".absmax") = {{"layer.weight.absmax", DType::u8, {71}}, Bytes(71)};
            }),
            "");
  EXPECT_NE(broken([](Parts& parts) {
              part(parts, ".nested_absmax") = {{"layer.weight.nested_absmax", DType::f32, {2}}, Bytes(8)};
            }),
            "");
  EXPECT_EQ(broken([](Parts& parts) { part(parts, ".nested_absmax").first.dtype = DType::i32; }),
            "tensor 'layer.weight.nested_absmax': type is I32, not F32");
  EXPECT_NE(broken([](Parts& parts) {
              part(parts, ".quant_map") = {{"layer.weight.quant_map", DType::f32, {16}}, Bytes(64)};
            }),
            "");
  EXPECT_EQ(
      broken([&](Parts& parts) { part(parts, state).second.assign(part(parts, state).second.size(), std::byte{0}); }),
      of_state + "is not a JSON object");
  EXPECT_EQ(broken([&](Parts& parts) {
              auto& [info, bytes] = part(parts, state);
              bytes.resize(65'537, std::byte{' '});
              info.shape = {bytes.size()};
            }),
            of_state + "has 65537 bytes, more than any quant_state");
}

}  // namespace
}  // namespace nibble::stored_weights_test
