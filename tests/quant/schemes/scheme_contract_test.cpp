// What every scheme owes its callers, for every codec that it stores. Formats and schemes join by being registered.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "nibble/error.hpp"
#include "quant/stream/source.hpp"
#include "tests/quant/schemes/scheme_support.hpp"

namespace nibble::scheme_contract_test {
namespace {

std::vector<std::string_view> quantizing_codecs() {
  std::vector<std::string_view> names;
  for (const std::string_view name : codec_names())
    if (make_codec(name)->quantizes()) names.push_back(name);
  return names;
}

class SchemeContract : public testing::TestWithParam<std::string_view> {
 protected:
  const std::unique_ptr<const Codec> codec = make_codec(GetParam());
  const Scheme& scheme = scheme_of(*codec);
};

const Shape shapes[] = {{70, 195}, {1, 1}, {64, 64}, {3, 4099}};

// A part may hold bytes of the scheme's own, and a plane may be in no part, but no plane is in two parts.
TEST_P(SchemeContract, EveryPartHoldsAPlaneOrItsOwnBytes) {
  for (const Shape& shape : shapes) {
    const TensorInfo tensor{"layer.weight", DType::bf16, shape};
    const test::Bytes weights = test::stored_as(DType::bf16, test::normal_weights(tensor.elements(), 1));
    const std::vector<Part> parts = scheme.parts(*codec, tensor);
    const std::vector<Plane> planes = codec->planes(tensor);
    EXPECT_EQ(parts.front().plane, 0U);
    EXPECT_EQ(parts.front().info.name, tensor.name);
    std::vector<std::size_t> held;
    for (const Part& part : parts) {
      if (!part.plane) continue;
      ASSERT_LT(*part.plane, planes.size());
      EXPECT_EQ(part.info.bytes(), planes[*part.plane].bytes()) << part.info.name;
      held.push_back(*part.plane);
    }
    std::sort(held.begin(), held.end());
    EXPECT_EQ(std::adjacent_find(held.begin(), held.end()), held.end());
    for (const auto& [info, bytes] : test::stored(*codec, tensor, weights))
      EXPECT_EQ(bytes.size(), info.bytes()) << info.name;
    std::uint64_t sum = 0;
    for (const Part& part : parts) sum += part.info.bytes();
    EXPECT_EQ(stored_bytes(*codec, tensor), sum);
  }
}

std::vector<float> weights_of(const StoredWeights& stored, const StoredWeights::Tensor& tensor) {
  Buffers buffers;
  const WeightSource source = open_source(stored, tensor, buffers);
  std::vector<float> weights(tensor.stored.info.elements());
  test::Bytes raw(source.bytes(0, weights.size()));
  source.read(0, raw);
  for (std::size_t at = 0; at < weights.size(); at += 4096) {
    std::vector<float> tile(std::min<std::size_t>(4096, weights.size() - at));
    std::ranges::copy(source.decode(0, raw, at, tile.size(), tile), weights.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return weights;
}

TEST_P(SchemeContract, WhatItStoresIsRecognizedAndDecodesToTheSame) {
  for (const CodecSpec& variant : test::variants(GetParam()))
    for (const Shape& shape : shapes) {
      const auto made = make_codec(variant);
      const TensorInfo tensor{"layer.weight", DType::f16, shape};
      const test::Bytes weights = test::stored_as(DType::f16, test::normal_weights(tensor.elements(), 2));
      const test::Encoded encoded = test::encode(*made, tensor, weights);
      const test::MemoryReader reader = test::reader_of(test::stored(*made, tensor, encoded));
      const StoredWeights stored(reader);
      ASSERT_EQ(stored.size(), 1U);
      const StoredWeights::Tensor found = stored[0];
      EXPECT_EQ(found.scheme, &scheme);
      if (tensor.elements() > 1) {
        EXPECT_EQ(found.stored.codec, test::as_read(variant));  // of a single weight, several may have the same parts
      }
      EXPECT_EQ(found.stored.info, tensor);
      EXPECT_EQ(found.bytes, stored_bytes(*made, tensor));
      EXPECT_EQ(weights_of(stored, found), test::decode(*made, tensor, encoded));
      const auto again = make_codec(found.stored.codec);
      const auto planes = scheme.read_planes(reader, *again, found.stored);
      ASSERT_EQ(planes.size(), encoded.planes.size() - 1);
      for (std::size_t i = 0; i < planes.size(); ++i) EXPECT_EQ(planes[i], encoded.planes[i + 1]) << i;
    }
}

// config.json says who reads the weights, and nibble opens what it says.
TEST_P(SchemeContract, ConfigNamesTheScheme) {
  Plan plan;
  PlannedTensor tensor;
  tensor.info = {"a.weight", DType::bf16, {64, 64}};
  tensor.role = Role::linear;
  tensor.module = "a";
  tensor.quantized = true;
  tensor.codec = codec->spec();
  plan.tensors.push_back(tensor, {});
  EXPECT_EQ(obstacle(plan), "");
  const auto quant_method = [](std::string_view name) { return fmt::format(R"("quant_method":"{}")", name); };
  EXPECT_THAT(quantization_config(plan), testing::HasSubstr(quant_method(scheme.quant_method())));
  plan.nibble_only = true;
  EXPECT_THAT(quantization_config(plan), testing::HasSubstr(quant_method("nibble")));
}

// transformers renames tensors one by one as it loads them: those beside the codes have to be known by name.
TEST_P(SchemeContract, CompanionsAreThePartsBesideTheCodes) {
  const std::vector<std::string> companions = loading_rules(scheme).companions("model.layer.weight");
  const std::vector<Part> parts = scheme.parts(*codec, {"model.layer.weight", DType::bf16, {64, 64}});
  for (std::size_t i = 1; i < parts.size(); ++i) EXPECT_THAT(companions, testing::Contains(parts[i].info.name));
  EXPECT_THAT(companions, testing::Not(testing::Contains("model.layer.weight")));
  for (const std::string& name : companions) EXPECT_THAT(name, testing::StartsWith("model.layer."));
}

TEST_P(SchemeContract, LoadersReplaceLinearLayersAlone) {
  EXPECT_TRUE(scheme.replaces(Role::linear));
  for (const Role role : {Role::embedding, Role::expert, Role::other, Role::unknown})
    EXPECT_FALSE(scheme.replaces(role));
}

// A header that claims too little for a part is an error of the input, whichever part it is.
TEST_P(SchemeContract, PartsThatAreTooShortAreRefused) {
  const TensorInfo tensor{"layer.weight", DType::f32, {70, 65}};
  const test::StoredParts good =
      test::stored(*codec, tensor, test::stored_as(DType::f32, test::normal_weights(tensor.elements(), 3)));
  for (std::size_t i = 0; i < good.size(); ++i) {
    if (!good[i].first.shape.empty() && good[i].second.size() > 1) {
      test::StoredParts parts = good;
      parts[i].first.shape = {parts[i].first.elements() / 2};
      parts[i].second.resize(parts[i].first.bytes());
      const test::MemoryReader reader = test::reader_of(parts);
      try {
        const StoredWeights stored(reader);
        Buffers buffers;
        for (std::size_t t = 0; t < stored.size(); ++t) {
          // Codes alone may be a plain tensor of their type.
          if (stored[t].quantized()) (void)open_source(stored, stored[t], buffers);
        }
        EXPECT_EQ(i, 0U) << parts[i].first.name << " was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::bad_input) << error.what();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Registered, SchemeContract, testing::ValuesIn(quantizing_codecs()),
                         [](const auto& each) { return std::string(each.param); });

// A plan that mixes in what another scheme stores: the loader of the first would misread it.
TEST(Schemes, WhatOthersStoreIsAnObstacle) {
  Plan plan;
  PlannedTensor tensor;
  tensor.info = {"a.weight", DType::f16, {64, 64}};
  tensor.role = Role::linear;
  tensor.quantized = true;
  tensor.codec = "nf4";
  plan.tensors.push_back(tensor, {});
  EXPECT_EQ(obstacle(plan), "");
  tensor.info.name = "b.weight";
  tensor.codec = "fp8";
  plan.tensors.push_back(tensor, {});
  EXPECT_EQ(obstacle(plan), "tensor 'b.weight' (fp8) is not in a format of bitsandbytes");
  // What was asked for decides, whichever comes first in the file.
  plan.recipe.to = "fp8";
  EXPECT_EQ(obstacle(plan), "tensor 'a.weight' (nf4) is not in a format of compressed-tensors");
  plan.recipe.to = "fp16";
  EXPECT_EQ(obstacle(plan), "tensor 'b.weight' (fp8) is not in a format of bitsandbytes");
  EXPECT_EQ(obstacle(Plan()), "");
  EXPECT_EQ(quantization_config(Plan()), "");
}

// Roles are found before there is a plan.
TEST(Schemes, RecipesSayWhichIsMeant) {
  const auto method = [](const Recipe& recipe) {
    const Scheme* const scheme = scheme_of(recipe);
    return scheme == nullptr ? "" : scheme->quant_method();
  };
  Recipe recipe;
  recipe.to = "fp16";
  EXPECT_EQ(method(recipe), "");
  recipe.rules = {{"a", "nf4"}, {"b", "fp8"}, {"c", "bf16"}};
  EXPECT_EQ(method(recipe), "compressed-tensors");
  recipe.to = "int8";
  EXPECT_EQ(method(recipe), "bitsandbytes");
}

TEST(Schemes, SayWhichLayersHaveAComputeType) {
  EXPECT_TRUE(has_compute_dtype(*make_codec("nf4")));
  EXPECT_TRUE(has_compute_dtype(*make_codec("fp4:block-size=32")));
  for (const char* const codec : {"int8", "fp8", "bf16", "keep"}) EXPECT_FALSE(has_compute_dtype(*make_codec(codec)));
}

TEST(Schemes, AreDeclaredByTheirQuantMethods) {
  const auto declared = [](std::string_view method) {
    test::MemoryReader in;
    in.set_quant_method(std::string(method));
    return std::pair(declared_scheme(*in.config()), is_declared_by(in, source_schemes()));
  };
  for (const Scheme* const scheme : schemes())
    EXPECT_EQ(declared(scheme->quant_method()), std::pair(scheme, scheme->is_source())) << scheme->quant_method();
  constexpr const Scheme* none = nullptr;
  EXPECT_EQ(declared("nibble"), std::pair(none, true));
  EXPECT_EQ(declared("gptq"), std::pair(none, false));
  EXPECT_EQ(declared(""), std::pair(none, false));
  EXPECT_FALSE(is_declared_by(test::MemoryReader(), schemes()));
}

TEST(Schemes, WhatIsNotQuantizedIsAPlainTensor) {
  for (const std::string_view name : codec_names()) {
    const auto codec = make_codec(name);
    if (codec->quantizes()) continue;
    EXPECT_THROW((void)scheme_of(*codec), Error) << name;
    const TensorInfo tensor{"a.weight", DType::f16, {3, 5}};
    const std::vector<Part> parts = stored_parts(*codec, tensor);
    ASSERT_EQ(parts.size(), 1U);
    EXPECT_EQ(parts[0].info.name, tensor.name);
    EXPECT_EQ(parts[0].info.shape, tensor.shape);
    EXPECT_EQ(parts[0].info.dtype, codec->cast_type().value_or(tensor.dtype));
  }
}

}  // namespace
}  // namespace nibble::scheme_contract_test
