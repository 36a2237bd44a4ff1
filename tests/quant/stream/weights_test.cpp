#include "nibble/weights.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

#include "nibble/error.hpp"
#include "nibble/xtensor.hpp"
#include "tests/quant/schemes/scheme_support.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::weights_test {
namespace {

using test::error_of;
using test::MemoryReader;

// Every format, beside plain tensors and in any order of parts: the weights are what the codec decodes.
TEST(Weights, AreThoseOfTheCodecHoweverTheyAreStored) {
  std::vector<std::pair<TensorInfo, std::vector<float>>> expected;
  test::StoredParts all;
  for (const std::string_view name : codec_names())
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      const std::string id = std::string(name) + "." + std::string(traits(dtype).name);
      const TensorInfo tensor{id + ".weight", dtype, {41, 4099}};  // more than is decoded at a time
      const auto codec = make_codec(name);
      const test::Encoded encoded =
          test::encode(*codec, tensor, test::stored_as(dtype, test::normal_weights(tensor.elements(), 1)));
      for (auto& part : test::stored(*codec, tensor, encoded)) all.push_back(std::move(part));
      expected.emplace_back(tensor, test::decode(*codec, tensor, encoded));
    }
  std::shuffle(all.begin(), all.end(), std::mt19937(1));
  const MemoryReader reader = test::reader_of(all);
  const WeightReader tensors(reader);
  EXPECT_EQ(tensors.size(), expected.size());
  for (const auto& [tensor, values] : expected) {
    SCOPED_TRACE(tensor.name);
    const Weights found = weights(reader, tensor.name);
    EXPECT_EQ(found.shape, tensor.shape);
    EXPECT_EQ(found.values, values);
    const auto index = tensors.find(tensor.name);
    ASSERT_TRUE(index);
    EXPECT_EQ(tensors[*index].name, tensor.name);
    std::vector<float> again(values.size());
    tensors.read(*index, again);
    EXPECT_EQ(again, values);
  }
}

TEST(Weights, NoWeightsAreNone) {
  MemoryReader reader;
  reader.add({"empty", DType::bf16, {0, 5}}, {});
  reader.add({"scalar", DType::f32, {}}, test::bytes_of(std::vector<float>{0.5f}));
  EXPECT_EQ(weights(reader, "empty").values, std::vector<float>());
  EXPECT_EQ(weights(reader, "empty").shape, (Shape{0, 5}));
  EXPECT_EQ(weights(reader, "scalar").values, std::vector<float>{0.5f});
}

TEST(Weights, WhatCannotBeReadIsSaid) {
  MemoryReader reader;
  reader.add({"ids", DType::i64, {2}}, test::Bytes(16));
  reader.add({"w", DType::f32, {2}}, test::Bytes(8));
  EXPECT_EQ(error_of([&] { (void)weights(reader, "v"); }, Errc::usage), "/: has no tensor 'v'");
  EXPECT_EQ(error_of([&] { (void)weights(reader, "ids"); }, Errc::usage),
            "/: tensor 'ids': type I64 is not a weight type");
  std::vector<float> three(3);
  EXPECT_EQ(error_of([&] { WeightReader(reader).read(1, three); }, Errc::usage), "/: tensor 'w': has 2 weights, not 3");
  const TensorInfo tensor{"layer.weight", DType::f32, {4, 64}};
  test::StoredParts parts =
      test::stored(*make_codec("nf4"), tensor, test::bytes_of(test::normal_weights(tensor.elements(), 1)));
  parts.erase(parts.begin() + 1);
  const MemoryReader broken = test::reader_of(parts);
  EXPECT_EQ(error_of([&] { (void)weights(broken, "layer.weight"); }, Errc::bad_input),
            "/file0: tensor 'layer.weight': part 'layer.weight.absmax' is missing");
}

template <class W>
concept can_be_xtensor = requires(W&& weights) {
  as_xtensor(std::forward<W>(weights));
};

TEST(Weights, AreAnExpressionWithoutACopy) {
  MemoryReader reader;
  reader.add({"w", DType::f32, {2, 3}}, test::bytes_of(std::vector<float>{1, -2, 3, -4, 5, -6}));
  const Weights found = weights(reader, "w");
  static_assert(!can_be_xtensor<Weights&&>, "its memory would be gone");
  static_assert(can_be_xtensor<const Weights&>);
  const auto matrix = as_xtensor(found);
  EXPECT_EQ(matrix(1, 2), -6);
  EXPECT_EQ(&matrix(0, 0), found.values.data());
  const auto row_absmax = xt::amax(xt::abs(matrix), {1});
  EXPECT_EQ(row_absmax(0), 3);
  EXPECT_EQ(row_absmax(1), 6);
}

}  // namespace
}  // namespace nibble::weights_test
