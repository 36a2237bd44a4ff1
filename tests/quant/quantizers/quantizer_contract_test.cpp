// What every quantizer owes its callers, for every codec and with every option of each. Codecs join by being
// registered.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>

#include "core/file_scratch.hpp"
#include "nibble/metrics.hpp"
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

// Runs an encoder over all chunks; `each` is called with the first weight of each and what encodes it.
template <class Each>
Encoded encode_by(const Codec& codec, const TensorInfo& tensor, const Bytes& weights, std::uint64_t limit,
                  Scratch& scratch, const Quantizer& quantizer, Each&& each) {
  const Chunking chunking = quantizer.chunking(tensor, limit);
  const auto encoder = quantizer.encoder(tensor, chunking, scratch);
  const std::uint64_t n = tensor.elements();
  Encoded out;
  const std::vector<Plane> planes = codec.planes(tensor);
  out.planes.resize(planes.size());
  out.planes[0].resize(planes[0].bytes());
  std::vector<std::uint64_t> firsts;
  for (std::uint64_t first = 0; first < n; first += chunking.weights) firsts.push_back(first);
  const auto source = [&](std::uint64_t first) {
    const std::uint64_t end = std::min(n, first + chunking.weights);
    return std::span<const std::byte>(weights).subspan(byte_count(tensor.dtype, first),
                                                       byte_count(tensor.dtype, end - first));
  };
  if (chunking.scan) each(firsts, [&](std::uint64_t first) { encoder->scan(first, source(first)); });
  each(firsts, [&](std::uint64_t first) {
    const std::uint64_t end = std::min(n, first + chunking.weights), at = codec.code_bytes(tensor, first);
    (void)encoder->encode(first, source(first),
                          std::span(out.planes[0]).subspan(at, codec.code_bytes(tensor, end) - at), nullptr);
  });
  class Collect final : public PlaneSink {
   public:
    explicit Collect(std::vector<Bytes>& to) : to_(to) {}
    void write(std::size_t plane, std::span<const std::byte> bytes) override {
      to_.at(plane).insert(to_.at(plane).end(), bytes.begin(), bytes.end());
    }

   private:
    std::vector<Bytes>& to_;
  } rest(out.planes);
  encoder->finish(rest);
  return out;
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

TEST_P(QuantizerContract, ErrorSumsAreThoseOfTheDecodedWeights) {
  for (const Shape& shape : shapes) {
    const TensorInfo tensor{"w", DType::f32, shape};
    const Bytes weights = weights_for(tensor);
    std::vector<ErrorSums> errors;
    EncodingError late;
    const Encoded encoded = test::encode(*codec, tensor, weights, 8192, false, &errors, &late, {.sums_errors = true});
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
    (void)test::encode(*codec, tensor, weights, 1 << 20, false, &whole, &late_whole, {.sums_errors = true});
    (void)test::encode(*codec, tensor, weights, 4096, false, &cut, &late_cut, {.sums_errors = true});
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
  const auto quantizer = make_quantizer(*codec);
  const auto in_order = [](const auto& firsts, auto&& call) { std::ranges::for_each(firsts, call); };
  EXPECT_EQ(encode_by(*codec, tensor, weights, 4096, *file, *quantizer, in_order).planes, expected.planes);
  std::vector<ErrorSums> errors;
  EXPECT_EQ(test::encode(*codec, tensor, weights, 4096, false, &errors, nullptr, {.sums_errors = true}), expected);
}

TEST_P(QuantizerContract, ChunksMayBeEncodedInAnyOrderAndAtTheSameTime) {
  for (const Shape& shape : shapes) {
    const TensorInfo tensor{"w", DType::bf16, shape};
    const Bytes weights = weights_for(tensor);
    const Encoded expected = test::encode(*codec, tensor, weights, 4096);
    EXPECT_EQ(test::encode(*codec, tensor, weights, 4096, /*backwards=*/true), expected);
    const auto quantizer = make_quantizer(*codec);
    MemoryScratch scratch(quantizer->scratch_bytes(tensor));
    const auto on_two_threads = [](const auto& firsts, auto&& call) {
      const auto every_second = [&](std::size_t from) {
        for (std::size_t i = from; i < firsts.size(); i += 2) call(firsts[i]);
      };
      std::jthread other([&] { every_second(1); });
      every_second(0);
    };
    EXPECT_EQ(encode_by(*codec, tensor, weights, 4096, scratch, *quantizer, on_two_threads).planes, expected.planes);
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
