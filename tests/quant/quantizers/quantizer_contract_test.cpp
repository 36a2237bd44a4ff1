// What every quantizer owes its callers, for every codec and with every option of each. Codecs join by being
// registered.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <thread>

#include "core/files/file_scratch.hpp"
#include "nibble/metrics.hpp"
#include "quant/quantizers/scanned_magnitude.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::quantizer_contract_test {
namespace {

using test::Bytes;
using test::Encoded;

std::vector<CodecSpec> all_specs() {
  std::vector<CodecSpec> specs;
  for (const std::string_view name : codec_names())
    for (const CodecSpec& variant : test::variants(name)) specs.push_back(variant);
  return specs;
}

class QuantizerContract : public testing::TestWithParam<CodecSpec> {
 protected:
  const std::unique_ptr<const Codec> codec = make_codec(GetParam());
};

// A long row, rows of a piece and a half, and many short ones.
const Shape shapes[] = {{1, 40'000}, {7, 6144}, {300, 130}};

Bytes weights_for(const TensorInfo& tensor) {
  return test::stored_as(tensor.dtype, test::normal_weights(tensor.elements(), 5, 0.05f));
}

ErrorSums sum(const std::vector<ErrorSums>& errors) {
  ErrorSums sum;
  for (const ErrorSums& error : errors) sum.add(error);
  return sum;
}

TEST_P(QuantizerContract, FinishHandsOutAllOfTheOtherPlanes) {
  for (const Shape& shape : shapes) {
    const TensorInfo tensor{"w", DType::bf16, shape};
    const Encoded encoded = test::encode(*codec, tensor, weights_for(tensor));
    const std::vector<Plane> planes = codec->planes(tensor);
    ASSERT_EQ(encoded.planes.size(), planes.size());
    for (std::size_t p = 0; p < planes.size(); ++p) EXPECT_EQ(encoded.planes[p].size(), planes[p].bytes()) << p;
  }
}

// Rows of no weights have scales, too: no chunk has said what they are.
TEST_P(QuantizerContract, ScalesOfNoWeightsDoNotDependOnTheScratch) {
  for (const Shape& shape : {Shape{64, 0}, Shape{0, 64}})
    for (const std::uint64_t limit : {1U, 4096U}) {
      const TensorInfo tensor{"w", DType::bf16, shape};
      const auto encode_after = [&](std::byte before) {
        const Bytes left(make_quantizer(*codec)->scratch_bytes(tensor), before);
        MemoryScratch scratch(left.size());
        scratch.write(0, left);
        return test::encode(*codec, tensor, {}, {.limit = limit, .scratch = &scratch});
      };
      EXPECT_EQ(encode_after(std::byte{0x41}), encode_after(std::byte{0})) << to_string(shape) << ", " << limit;
    }
}

TEST_P(QuantizerContract, SaysWhatAScanKeeps) {
  const TensorInfo tensor{"w", DType::bf16, {300, 40'000}};
  const auto quantizer = make_quantizer(*codec);
  if (!quantizer->chunking(tensor, 4096).scan) return;
  const Plane plane = codec->planes(tensor).at(1);
  const TensorInfo scales{{}, plane.dtype, plane.shape};
  EXPECT_EQ(quantizer->scan_bytes(tensor), scanned_magnitude_bytes * scales.elements());
}

TEST_P(QuantizerContract, ErrorSumsAreThoseOfTheDecodedWeights) {
  for (const Shape& shape : shapes) {
    const TensorInfo tensor{"w", DType::f32, shape};
    const Bytes weights = weights_for(tensor);
    std::vector<ErrorSums> errors;
    EncodingError late;
    const Encoded encoded = test::encode(
        *codec, tensor, weights, {.limit = 8192, .quantizer = {.sums_errors = true}, .errors = &errors, .late = &late});
    late.sums.add(sum(errors));
    const ErrorStats expected = compare(test::values_of<float>(weights), test::decode(*codec, tensor, encoded));
    if (expected.square == 0) {
      EXPECT_EQ(late.sums.square, 0);
      continue;
    }
    EXPECT_EQ(late.sums.count, expected.count);
    EXPECT_NEAR(late.sums.sqnr_db(), expected.sqnr_db(), 1e-4);
    EXPECT_NEAR(late.sums.cosine(), expected.cosine(), 1e-7);
  }
}

TEST_P(QuantizerContract, ErrorSumsDoNotDependOnTheChunks) {
  for (const Shape& shape : shapes) {
    const TensorInfo tensor{"w", DType::f16, shape};
    const Bytes weights = weights_for(tensor);
    std::vector<ErrorSums> whole, cut;
    EncodingError late_whole, late_cut;
    (void)test::encode(*codec, tensor, weights,
                       {.quantizer = {.sums_errors = true}, .errors = &whole, .late = &late_whole});
    (void)test::encode(*codec, tensor, weights,
                       {.limit = 4096, .quantizer = {.sums_errors = true}, .errors = &cut, .late = &late_cut});
    EXPECT_EQ(sum(whole), sum(cut));
    EXPECT_EQ(late_whole.sums, late_cut.sums);
    EXPECT_EQ(late_whole.absmax.count, late_cut.absmax.count);
    EXPECT_EQ(late_whole.absmax.sum, late_cut.absmax.sum);
  }
}

// The planes are the same with and without errors, and with scratch memory in a file.
TEST_P(QuantizerContract, WhatIsKeptMeanwhileMayBeAnywhere) {
  const TensorInfo tensor{"w", DType::bf16, {7, 6144}};
  const Bytes weights = weights_for(tensor);
  const Encoded expected = test::encode(*codec, tensor, weights, 4096);
  const auto file = make_file_scratch(std::filesystem::temp_directory_path());
  EXPECT_EQ(test::encode(*codec, tensor, weights, {.limit = 4096, .scratch = file.get()}), expected);
  std::vector<ErrorSums> errors;
  EXPECT_EQ(
      test::encode(*codec, tensor, weights, {.limit = 4096, .quantizer = {.sums_errors = true}, .errors = &errors}),
      expected);
}

void on_two_threads(std::size_t chunks, const std::function<void(std::size_t)>& call) {
  const auto every_second = [&](std::size_t from) {
    for (std::size_t chunk = from; chunk < chunks; chunk += 2) call(chunk);
  };
  const std::jthread other([&] { every_second(1); });
  every_second(0);
}

TEST_P(QuantizerContract, ChunksMayBeEncodedInAnyOrderAndAtTheSameTime) {
  for (const Shape& shape : shapes) {
    const TensorInfo tensor{"w", DType::bf16, shape};
    const Bytes weights = weights_for(tensor);
    const Encoded expected = test::encode(*codec, tensor, weights, 4096);
    EXPECT_EQ(test::encode(*codec, tensor, weights, {.limit = 4096, .order = test::backwards}), expected);
    EXPECT_EQ(test::encode(*codec, tensor, weights, {.limit = 4096, .order = on_two_threads}), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Registered, QuantizerContract, testing::ValuesIn(all_specs()), [](const auto& each) {
  std::string name = each.param.text();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

}  // namespace
}  // namespace nibble::quantizer_contract_test
