#include "quant/stream/encode.hpp"

#include <gtest/gtest.h>

#include "quant/stream/codings.hpp"
#include "tests/quant/schemes/scheme_support.hpp"

namespace nibble::encode_test {
namespace {

using test::Bytes;

// Chunks of any size, and ranges of any number of chunks: the codes are those of the whole tensor.
TEST(Encoding, CodesDoNotDependOnHowATensorIsCut) {
  const TensorInfo tensor{"w", DType::f64, {70, 4100}};
  const Bytes weights = test::stored_as(tensor.dtype, test::normal_weights(tensor.elements(), 1));
  test::MemoryReader reader;
  reader.add(tensor, weights);
  const StoredWeights stored(reader);
  Buffers buffers;
  const WeightSource source = open_source(stored, stored[0], buffers);
  for (const std::string_view to : codec_names()) {
    Recipe recipe;
    recipe.to = to;
    const Codings codings(recipe);
    const Coding& coding = codings[to];
    const Bytes expected = test::encode(*coding.codec, tensor, weights).planes[0];
    for (const std::uint64_t limit : {4096U, 50'000U, 1'000'000U}) {
      const Chunking chunking = coding.quantizer->chunking(tensor, limit);
      Encoding encoding(source, tensor, *coding.codec, *coding.quantizer, chunking,
                        std::make_unique<MemoryScratch>(coding.quantizer->scratch_bytes(tensor)));
      const std::uint64_t batch = 3 * chunking.weights, all = tensor.elements();
      Bytes codes(encoding.offset(all));
      const auto for_each_batch = [&](auto&& f) {
        for (std::uint64_t first = 0; first < all; first += batch) f(first, std::min(batch, all - first));
      };
      if (chunking.scan) for_each_batch([&](std::uint64_t first, std::uint64_t n) { encoding.scan(first, n); });
      for_each_batch([&](std::uint64_t first, std::uint64_t n) {
        const std::uint64_t begin = encoding.offset(first), size = encoding.offset(first + n) - begin;
        Bytes told;
        const Findings found =
            encoding.encode(first, n, std::span(codes).subspan(begin, size), nullptr,
                            [&](auto chunk) { told.insert(told.end(), chunk.begin(), chunk.end()); });
        EXPECT_EQ(found.nan + found.inf + found.overflow, 0U);
        EXPECT_TRUE(std::ranges::equal(told, std::span(codes).subspan(begin, size)));
      });
      EXPECT_EQ(codes, expected) << to << ", " << limit;
      EXPECT_NE(encoding.end(), nullptr);
    }
  }
}

// Of all chunks of a range together.
TEST(Encoding, AddsUpWhatItFinds) {
  const TensorInfo tensor{"w", DType::f32, {4, 4096}};
  std::vector<float> weights = test::normal_weights(tensor.elements(), 1);
  weights[5000] = NAN;
  weights[5001] = weights[12'000] = INFINITY;
  test::MemoryReader reader;
  reader.add(tensor, test::stored_as(tensor.dtype, weights));
  const StoredWeights stored(reader);
  Buffers buffers;
  const WeightSource source = open_source(stored, stored[0], buffers);
  Recipe recipe;
  recipe.to = "nf4";
  const Codings codings(recipe);
  const Coding& coding = codings["nf4"];
  Encoding encoding(source, tensor, *coding.codec, *coding.quantizer, coding.quantizer->chunking(tensor, 4096),
                    std::make_unique<MemoryScratch>(coding.quantizer->scratch_bytes(tensor)));
  Bytes codes(encoding.offset(tensor.elements()));
  const Findings found = encoding.encode(0, tensor.elements(), codes, nullptr);
  EXPECT_EQ(found.nan, 1U);
  EXPECT_EQ(found.inf, 2U);
  EXPECT_EQ(found.first_nonfinite, 5000U);
}

}  // namespace
}  // namespace nibble::encode_test
