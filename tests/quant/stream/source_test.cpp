#include "quant/stream/source.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "formats/checkpoint.hpp"
#include "tests/quant/schemes/scheme_support.hpp"

namespace nibble::source_test {
namespace {

using test::Bytes;
using test::MemoryReader;

const Shape shape{150, 195};  // more than seven tiles, and rows that begin anywhere in one

// The tensor as a plan without slices or transpositions has it.
PlannedTensor whole(const TensorInfo& info) {
  PlannedTensor view;
  view.info = info;
  return view;
}

// Weights [first, first + n) of a view, as weights() gives them.
Bytes weights_of(const WeightSource& source, std::uint64_t first, std::uint64_t n) {
  Buffers::Loan loan;
  const auto found = source.weights(first, n, loan);
  return {found.begin(), found.end()};
}
Bytes weights_of(const WeightSource& source) { return weights_of(source, 0, source.info().elements()); }

// The same decoded from what read() gives, in units of two tiles.
Bytes decoded(const WeightSource& source) {
  const std::uint64_t all = source.info().elements();
  std::vector<float> values(all);
  for (std::uint64_t first = 0; first < all; first += 8192) {
    const std::uint64_t n = std::min<std::uint64_t>(8192, all - first);
    Bytes raw(source.bytes(first, n));
    source.read(first, raw);
    for (std::uint64_t at = first; at < first + n; at += 4096) {
      std::vector<float> tile(std::min<std::uint64_t>(4096, first + n - at));
      std::ranges::copy(source.decode(first, raw, at, tile.size(), tile),
                        values.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return test::stored_as(source.info().dtype, values);
}

// The bytes of weights in another order, or of some.
template <class Index> Bytes gathered(const Bytes& from, std::size_t width, std::uint64_t n, Index index) {
  Bytes out(n * width);
  for (std::uint64_t i = 0; i < n; ++i) std::memcpy(out.data() + i * width, from.data() + index(i) * width, width);
  return out;
}

struct Stored {
  std::string codec;
  DType dtype;
};

class Sources : public testing::TestWithParam<Stored> {
 protected:
  Sources() {
    const auto codec = make_codec(GetParam().codec);
    const Bytes weights = test::stored_as(info.dtype, test::normal_weights(info.elements(), 1));
    const test::Encoded encoded = test::encode(*codec, info, weights);
    expected = test::stored_as(info.dtype, test::decode(*codec, info, encoded));
    reader.add({"first", DType::f32, {1}}, Bytes(4));
    for (const auto& [part, bytes] : test::stored(*codec, info, encoded)) reader.add(part, bytes);
  }

  [[nodiscard]] WeightSource open(PlannedTensor view) {
    view.source = 1;
    return open_source(stored(), view, buffers);
  }
  // Once all parts are there.
  const StoredWeights& stored() {
    if (!stored_) stored_.emplace(reader);
    return *stored_;
  }

  const TensorInfo info{"w.weight", GetParam().dtype, shape};
  const std::size_t width = traits(info.dtype).bits / 8;
  MemoryReader reader;
  Bytes expected;  // of all weights, as info.dtype stores them
  Buffers buffers;

 private:
  std::optional<StoredWeights> stored_;
};

// Whatever stores them, and wherever a piece begins: what convert reads is what a quantizer takes.
TEST_P(Sources, GiveWeightsOfTheTypeTheyHad) {
  const WeightSource source = open(whole(info));
  EXPECT_EQ(source.info(), info);
  EXPECT_EQ(weights_of(source), expected);
  EXPECT_EQ(decoded(source), expected);
  for (const std::uint64_t first : {0U, 1U, 195U, 4095U, 4096U, 8000U, 29'249U})
    for (const std::uint64_t n : {0U, 1U, 195U, 4096U, 9000U}) {
      if (first + n > info.elements()) continue;
      EXPECT_EQ(weights_of(source, first, n),
                Bytes(expected.begin() + static_cast<std::ptrdiff_t>(first * width),
                      expected.begin() + static_cast<std::ptrdiff_t>((first + n) * width)))
          << first << ", " << n;
    }
}

TEST_P(Sources, OfASlice) {
  PlannedTensor view = whole({"slice", info.dtype, {70, 195}});
  const std::uint64_t begin = 31 * 195;
  view.source_offset = begin * width;
  const WeightSource source = open(view);
  EXPECT_EQ(source.info(), view.info);
  const Bytes slice = gathered(expected, width, 70 * 195, [&](std::uint64_t i) { return begin + i; });
  EXPECT_EQ(weights_of(source), slice);
  EXPECT_EQ(decoded(source), slice);
}

TEST_P(Sources, Transposed) {
  PlannedTensor view = whole({"w.weight", info.dtype, {195, 150}});
  view.transposed = true;
  const WeightSource source = open(view);
  const Bytes transposed =
      gathered(expected, width, info.elements(), [](std::uint64_t i) { return i % 150 * 195 + i / 150; });
  EXPECT_EQ(weights_of(source), transposed);
  EXPECT_EQ(decoded(source), transposed);
  EXPECT_EQ(weights_of(source, 1000, 333), gathered(transposed, width, 333, [](std::uint64_t i) { return 1000 + i; }));
}

// More than the buffer takes at a time.
TEST(Sources, TransposedInSeveralPieces) {
  constexpr std::uint64_t in = 3000, out = 150;
  static_assert(in * out * 2 > 2 * WeightSource::transposed_bytes);
  for (const DType dtype : {DType::bf16, DType::f32, DType::f64}) {
    MemoryReader reader;
    const std::size_t width = traits(dtype).bits / 8;
    const Bytes weights = test::stored_as(dtype, test::normal_weights(in * out, 1));
    reader.add({"w.weight", dtype, {in, out}}, weights);
    PlannedTensor view = whole({"w.weight", dtype, {out, in}});
    view.transposed = true;
    const StoredWeights stored(reader);
    Buffers buffers;
    const WeightSource source = open_source(stored, view, buffers);
    for (const std::uint64_t first : {0U, 1U, 2999U, 4096U, 300'000U})
      EXPECT_EQ(weights_of(source, first, in * out - first),
                gathered(weights, width, in * out - first,
                         [&](std::uint64_t i) { return (first + i) % in * out + (first + i) / in; }))
          << first;
    EXPECT_EQ(weights_of(source, 5000, 7),
              gathered(weights, width, 7, [](std::uint64_t i) { return (5000 + i) % in * out + (5000 + i) / in; }));
  }
}

// Codes are: without the rounding to the type before. Other weights are what they are.
TEST_P(Sources, OfAnotherType) {
  PlannedTensor view = whole(info);
  view.info.dtype = DType::f32;
  const auto codec = make_codec(GetParam().codec);
  const WeightSource source = open(view);
  if (!codec->quantizes()) {
    EXPECT_EQ(source.info().dtype, info.dtype);
    return;
  }
  const Bytes weights = test::stored_as(info.dtype, test::normal_weights(info.elements(), 1));
  const auto exact = test::decode(*codec, info, test::encode(*codec, info, weights));
  EXPECT_EQ(weights_of(source), test::stored_as(DType::f32, exact));
  view.transposed = true;
  view.info.shape = {195, 150};
  EXPECT_EQ(weights_of(open(view)), gathered(test::stored_as(DType::f32, exact), 4, info.elements(),
                                             [](std::uint64_t i) { return i % 150 * 195 + i / 150; }));
}

TEST_P(Sources, InMemoryNothingIsRead) {
  WeightSource source = open(whole(info));
  Bytes raw(source.bytes(0, info.elements()));
  source.read(0, raw);
  source.set_memory(raw);
  Buffers::Loan loan;
  EXPECT_EQ(source.raw(4096, 8192, loan).data(), raw.data() + source.bytes(0, 4096));
  EXPECT_TRUE(loan.bytes().empty());
  EXPECT_EQ(weights_of(source), expected);
  EXPECT_EQ(decoded(source), expected);
}

INSTANTIATE_TEST_SUITE_P(All, Sources,
                         testing::Values(Stored{"keep", DType::f64}, Stored{"keep", DType::bf16},
                                         Stored{"nf4", DType::bf16}, Stored{"nf4", DType::f32},
                                         Stored{"fp4", DType::f16}, Stored{"int8", DType::f16}),
                         [](const auto& each) {
                           return each.param.codec + std::string(traits(each.param.dtype).name);
                         });

// What a codec made is of the type that it stores, whatever the weights were.
TEST(Sources, OfACastHaveItsType) {
  Buffers buffers;
  const Bytes codes = test::stored_as(DType::f16, {1, 2, 3});
  const auto read = [&](std::uint64_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), codes.data() + offset, out.size());
  };
  const WeightSource source({"w", DType::f64, {3}}, make_codec("fp16"), {}, read, buffers, 100);
  EXPECT_EQ(source.info().dtype, DType::f16);
  EXPECT_FALSE(source.is_fp64());
  EXPECT_EQ(source.position(1), 102U);
  EXPECT_EQ(weights_of(source, 1, 2), test::stored_as(DType::f16, {2, 3}));
}

// Each of its own kind and type, in any order of the file.
TEST(Sources, OfSlices) {
  MemoryReader reader;
  const TensorInfo slice{"", DType::bf16, {30, 195}};
  std::vector<Bytes> weights;  // in the order of the file
  for (const char* const codec : {"keep", "nf4", "int8"}) {
    TensorInfo info = slice;
    info.name = std::string(codec) + ".weight";
    const auto made = make_codec(codec);
    const test::Encoded encoded =
        test::encode(*made, info, test::stored_as(DType::bf16, test::normal_weights(info.elements(), 1)));
    weights.push_back(test::stored_as(DType::f32, test::decode(*made, info, encoded)));
    for (const auto& [part, bytes] : test::stored(*made, info, encoded)) reader.add(part, bytes);
  }
  const StoredWeights stored(reader);
  PlannedTensor view = whole({"all", DType::f32, {3, 30, 195}});
  view.slices = {1, 0, 7};
  Bytes expected = weights[1];
  expected.insert(expected.end(), weights[0].begin(), weights[0].end());
  expected.insert(expected.end(), weights[2].begin(), weights[2].end());
  Buffers buffers;
  const WeightSource source = open_source(stored, view, buffers);
  EXPECT_EQ(source.info(), view.info);
  EXPECT_EQ(weights_of(source), expected);
  EXPECT_EQ(decoded(source), expected);
  for (const std::uint64_t first : {0U, 5000U, 5849U, 5850U, 11'000U})
    EXPECT_EQ(weights_of(source, first, 6500), gathered(expected, 4, 6500, [&](std::uint64_t i) { return first + i; }));
}

// Buffers are aligned by where their bytes lie in the file.
TEST(Sources, KnowWhereTheyLie) {
  MemoryReader reader;
  reader.add({"w", DType::f64, {8, 4}}, Bytes(256));
  const StoredWeights stored(reader);
  Buffers buffers;
  PlannedTensor view = whole({"slice", DType::f64, {2, 4}});
  view.source_offset = 64;
  const WeightSource source = open_source(stored, view, buffers);
  EXPECT_TRUE(source.is_fp64());
  EXPECT_EQ(source.position(3), ReaderInternals::position(reader, 0, 64 + 3 * 8));
  EXPECT_EQ(source.bytes(1, 2), 16U);
}

}  // namespace
}  // namespace nibble::source_test
