// The sums of four_bit_error.cpp against their definition, in fp64 from the first weight to the last.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nibble/fp4.hpp"
#include "nibble/nf4.hpp"
#include "quant/four_bit.hpp"
#include "tests/quant/codec_support.hpp"

namespace nibble::four_bit_error_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t most_weights = 4096;

FourBitTables with_codebook(const float (&codebook)[16]) {
  FourBitTables tables{};
  std::copy(std::begin(codebook), std::end(codebook), tables.codebook.begin());
  return tables;
}
const FourBitTables nf4_tables = with_codebook(nf4::codebook.value);
const FourBitTables fp4_tables = with_codebook(fp4::codebook.value);

// Weights as a checkpoint stores them, and some codes for them: they need not be good ones.
struct Tile {
  Tile(DType source, const std::vector<float>& weights, std::size_t blocksize_)
      : dtype(source),
        blocksize(blocksize_),
        stored(test::stored_as(source, weights)),
        packed((weights.size() + 1) / 2) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      w.push_back(source == DType::bf16  ? bf16::to_float(bf16::from_float(weights[i]))
                  : source == DType::f16 ? fp16::to_float(fp16::from_float(weights[i]))
                                         : weights[i]);
    absmax.resize((weights.size() + blocksize - 1) / blocksize);
    for (std::size_t i = 0; i < w.size(); ++i)
      if (std::isfinite(w[i])) absmax[i / blocksize] = std::max(absmax[i / blocksize], std::abs(w[i]));
    for (std::size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<std::uint8_t>(i * 73 + i / 256 + 5);
  }

  DType dtype;
  std::size_t blocksize;
  test::Bytes stored;
  std::vector<float> w;  // as they are stored
  std::vector<std::uint8_t> packed;
  std::vector<float> absmax;
};

struct Sums {
  ErrorSums sums;
  std::vector<FourBitError> blocks;
};

Sums summed(const FourBitTables& tables, const Tile& tile) {
  Sums found;
  found.blocks.resize(tile.absmax.size());
  sum_four_bit_errors(tables, tile.dtype, tile.stored, tile.packed, tile.absmax, tile.blocksize, found.blocks,
                      found.sums);
  return found;
}

// Of each block: E = sum e^2, X = sum e c, C = sum c^2, in fp64.
struct Block {
  double error = 0, cross = 0, codes = 0;
};

// A sum of 4096 products in 16 lanes of fp32: 256 additions each, some more of the lanes, and e itself.
constexpr double tolerance = 270 * 0x1p-24;

void expect_definition(const FourBitTables& tables, const Tile& tile, const std::string& what) {
  SCOPED_TRACE(what + ", " + std::string(traits(tile.dtype).name) + ", " + std::to_string(tile.w.size()) +
               " weights in blocks of " + std::to_string(tile.blocksize));
  std::vector<Block> blocks(tile.absmax.size());
  std::uint64_t count = 0;
  double square = 0, product = 0, reference = 0, test = 0;
  for (std::size_t i = 0; i < tile.w.size(); ++i) {
    if (!std::isfinite(tile.w[i])) continue;
    const float c = tables.codebook[tile.packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15];
    const double w = tile.w[i], t = c * tile.absmax[i / tile.blocksize], e = t - w;  // t is what is decoded
    Block& block = blocks[i / tile.blocksize];
    block.error += e * e, block.cross += e * c, block.codes += static_cast<double>(c) * c;
    ++count, square += e * e, product += w * t, reference += w * w, test += t * t;
  }
  const Sums found = summed(tables, tile);
  EXPECT_EQ(found.sums.count, count);
  // Where signs differ, the bound is that of the sums of magnitudes, by Cauchy and Schwarz.
  const double mixed = std::sqrt(square * test);
  EXPECT_NEAR(found.sums.square, square, tolerance * square);
  EXPECT_NEAR(found.sums.test, test, tolerance * test);
  EXPECT_NEAR(found.sums.product, product, tolerance * (test + mixed));
  EXPECT_NEAR(found.sums.reference, reference, tolerance * (test + 2 * mixed + square));
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (tile.absmax[b] == 0) continue;  // its codes all stand for 0, unlike those made up here
    EXPECT_NEAR(found.blocks[b].codes, blocks[b].codes, tolerance * blocks[b].codes) << "block " << b;
    EXPECT_NEAR(found.blocks[b].cross, blocks[b].cross, tolerance * std::sqrt(blocks[b].error * blocks[b].codes))
        << "block " << b;
  }
  test::for_each_target([&](const std::string& target) {
    const Sums again = summed(tables, tile);
    EXPECT_EQ(again.sums, found.sums) << target;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      EXPECT_EQ(again.blocks[b].cross, found.blocks[b].cross) << target;
      EXPECT_EQ(again.blocks[b].codes, found.blocks[b].codes) << target;
    }
  });
}

TEST(FourBitErrors, AreThoseOfTheDefinition) {
  for (const DType source : {DType::f32, DType::bf16, DType::f16})
    for (std::size_t blocksize = 32; blocksize <= most_weights; blocksize *= 2)
      for (const std::size_t n : {std::size_t{0}, std::size_t{1}, blocksize - 1, blocksize,
                                  std::min(blocksize + 1, most_weights), most_weights - 33, most_weights})
        expect_definition(nf4_tables, {source, test::normal_weights(n, static_cast<unsigned>(n), 0.02f), blocksize},
                          "nf4");
  expect_definition(fp4_tables, {DType::f32, test::normal_weights(most_weights, 1), 64}, "fp4");
}

// Squares beyond fp32 at either end, alone and beside blocks that are not.
TEST(FourBitErrors, OfAnySize) {
  for (const float scale : {1e-42f, 1e-30f, 1e-13f, 1e-11f, 1e11f, 1e13f, 1e30f}) {
    std::vector<float> weights = test::normal_weights(1000, 2, scale);
    expect_definition(nf4_tables, {DType::f32, weights, 64}, testing::PrintToString(scale));
    for (std::size_t i = 64; i < 128; ++i) weights[i] = 0.5f;
    expect_definition(nf4_tables, {DType::f32, weights, 64}, testing::PrintToString(scale) + " beside others");
    for (std::size_t i = 64; i < 128; ++i) weights[i] = 0;
    expect_definition(nf4_tables, {DType::f32, weights, 64}, testing::PrintToString(scale) + " beside zeros");
  }
}

TEST(FourBitErrors, ZerosCostNothing) {
  const Sums zeros = summed(nf4_tables, {DType::f32, std::vector<float>(200, 0.0f), 64});
  EXPECT_EQ(zeros.sums, (ErrorSums{.count = 200}));
  std::vector<float> weights = test::normal_weights(256, 3);
  std::fill_n(weights.begin() + 64, 64, 0.0f);
  expect_definition(nf4_tables, {DType::f32, weights, 64}, "a block of zeros");
}

// A pair of which either is not finite counts nowhere, wherever it stands; the rest of its tile still does.
TEST(FourBitErrors, NonfiniteWeightsAreLeftOut) {
  for (const DType source : {DType::f32, DType::bf16, DType::f16})
    for (const float special : {nan, -nan, infinity, -infinity})
      for (const std::size_t at : {0U, 63U, 64U, 500U, 999U}) {
        std::vector<float> weights = test::normal_weights(1000, 4);
        weights[at] = special;
        expect_definition(nf4_tables, {source, weights, 64}, std::to_string(special) + " at " + std::to_string(at));
      }
  expect_definition(nf4_tables, {DType::f32, std::vector<float>(100, nan), 32}, "nothing else");
}

TEST(FourBitErrors, AreAddedToWhatIsThere) {
  const Tile tile(DType::bf16, test::normal_weights(300, 5), 64);
  const ErrorSums once = summed(nf4_tables, tile).sums;
  ErrorSums sums{.count = 1, .square = 2, .product = 3, .reference = 4, .test = 5};
  std::vector<FourBitError> blocks(tile.absmax.size());
  sum_four_bit_errors(nf4_tables, tile.dtype, tile.stored, tile.packed, tile.absmax, tile.blocksize, blocks, sums);
  EXPECT_EQ(sums.count, once.count + 1);
  EXPECT_DOUBLE_EQ(sums.square, once.square + 2);
  EXPECT_DOUBLE_EQ(sums.product, once.product + 3);
  EXPECT_DOUBLE_EQ(sums.reference, once.reference + 4);
  EXPECT_DOUBLE_EQ(sums.test, once.test + 5);
}

// What blocks tell is enough for another absmax, as double quantization makes it: E + 2 (a' - a) X + (a' - a)^2 C. Also
// where a block has little beside its largest weight, and next to no error before.
TEST(FourBitErrors, TellWhatAnotherAbsmaxWouldCost) {
  for (const std::size_t blocksize : {std::size_t{64}, most_weights})
    for (const std::size_t n : {most_weights, std::size_t{1001}})
      for (const bool sparse : {false, true}) {
        std::vector<float> weights = test::normal_weights(n, 6);
        for (std::size_t i = 0; i < n && sparse; ++i)
          weights[i] = i % blocksize == 1 ? 1.0f : i % 97 == 0 ? 1e-3f : 0.0f;
        Tile tile(DType::f32, weights, blocksize);
        nf4::encode(tile.w, blocksize, tile.packed, tile.absmax);
        const Sums before = summed(nf4_tables, tile);
        double square = before.sums.square, moved = 0;
        for (std::size_t b = 0; b < tile.absmax.size(); ++b) {
          const float absmax = tile.absmax[b];
          tile.absmax[b] *= b % 2 == 0 ? 1.01f : 0.98f;
          const double by = static_cast<double>(tile.absmax[b]) - absmax;
          const double linear = 2 * by * before.blocks[b].cross;
          square += linear + by * by * before.blocks[b].codes;
          moved += std::abs(linear) + by * by * before.blocks[b].codes;
        }
        EXPECT_GT(moved, 1e-3 * square);
        EXPECT_NEAR(summed(nf4_tables, tile).sums.square, square, tolerance * (square + moved))
            << blocksize << ' ' << n;
      }
}

// What docs/measure.md says of real codes: tile after tile, the sums are those of fp64 to 1e-6.
TEST(FourBitErrors, OfATensorAreRightToOneInAMillion) {
  constexpr std::size_t n = 64 * most_weights, blocksize = 64;
  Tile tensor(DType::bf16, test::normal_weights(n, 8, 0.02f), blocksize);
  nf4::encode(tensor.w, blocksize, tensor.packed, tensor.absmax);
  ErrorSums expected, found;
  for (std::size_t i = 0; i < n; ++i) {
    const float decoded =
        nf4_tables.codebook[tensor.packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15] * tensor.absmax[i / blocksize];
    const double w = tensor.w[i], t = decoded;
    expected.add({1, (t - w) * (t - w), w * t, w * w, t * t});
  }
  std::vector<FourBitError> blocks(most_weights / blocksize);
  for (std::size_t i = 0; i < n; i += most_weights)
    sum_four_bit_errors(nf4_tables, DType::bf16, std::span(tensor.stored).subspan(2 * i, 2 * most_weights),
                        std::span(tensor.packed).subspan(i / 2, most_weights / 2),
                        std::span(tensor.absmax).subspan(i / blocksize, most_weights / blocksize), blocksize, blocks,
                        found);
  EXPECT_EQ(found.count, n);
  EXPECT_NEAR(found.square, expected.square, 1e-6 * expected.square);
  EXPECT_NEAR(found.product, expected.product, 1e-6 * expected.product);
  EXPECT_NEAR(found.reference, expected.reference, 1e-6 * expected.reference);
  EXPECT_NEAR(found.test, expected.test, 1e-6 * expected.test);
}

// Without double quantization nobody asks for the blocks.
TEST(FourBitErrors, BlocksAreLeftOutIfNobodyAsks) {
  for (const std::size_t n : {most_weights, std::size_t{1001}})
    for (const float scale : {1.0f, 1e-30f}) {
      const Tile tile(DType::f32, test::normal_weights(n, 9, scale), 64);
      ErrorSums sums;
      sum_four_bit_errors(nf4_tables, tile.dtype, tile.stored, tile.packed, tile.absmax, tile.blocksize, {}, sums);
      EXPECT_EQ(sums, summed(nf4_tables, tile).sums) << n << ' ' << scale;
    }
}

struct Change {
  std::vector<FourBitError> errors;
  std::vector<float> absmax, decoded;
  [[nodiscard]] ErrorSums found() const { return change_of_errors(errors, absmax, decoded); }
};

Change change_of(std::size_t n, float scale) {
  Change change{std::vector<FourBitError>(n), test::normal_weights(n, 10, scale), test::normal_weights(n, 11, scale)};
  const auto cross = test::normal_weights(n, 12, scale), codes = test::normal_weights(n, 13, 10);
  for (std::size_t b = 0; b < n; ++b) {
    change.errors[b] = {cross[b], std::abs(codes[b])};
    change.absmax[b] = std::abs(change.absmax[b]);
    change.decoded[b] = change.absmax[b] + change.decoded[b] / 100;
  }
  return change;
}

// With d = a' - a: E changes by 2 d X + d^2 C, the products by d (a C - X), a^2 C by d (2 a + d) C. Sums of any sign:
// so the bound is that of their magnitudes, a rounding of fp64 for each block and operation.
TEST(FourBitErrors, ChangesAreThoseOfTheDefinition) {
  for (const std::size_t n : {0U, 1U, 7U, 8U, 9U, 255U, 16384U})
    for (const float scale : {1.0f, 1e-30f, 1e15f}) {
      const Change change = change_of(n, scale);
      double square = 0, product = 0, test = 0, squares = 0, products = 0, tests = 0;
      for (std::size_t b = 0; b < n; ++b) {
        const double a = change.absmax[b], d = change.decoded[b] - a;
        const double x = change.errors[b].cross, c = change.errors[b].codes;
        square += 2 * d * x + d * d * c, squares += std::abs(2 * d * x) + d * d * c;
        product += d * (a * c - x), products += std::abs(d) * (a * c + std::abs(x));
        test += d * (2 * a + d) * c, tests += std::abs(d) * (2 * a + std::abs(d)) * c;
      }
      const double bound = static_cast<double>(n + 10) * 0x1p-52;
      const ErrorSums found = change.found();
      EXPECT_EQ(found.count, 0U);
      EXPECT_EQ(found.reference, 0);
      EXPECT_NEAR(found.square, square, bound * squares) << n << ' ' << scale;
      EXPECT_NEAR(found.product, product, bound * products) << n << ' ' << scale;
      EXPECT_NEAR(found.test, test, bound * tests) << n << ' ' << scale;
      test::for_each_target([&](const std::string& target) { EXPECT_EQ(change.found(), found) << target; });
    }
}

TEST(FourBitErrors, NeedNoAlignment) {
  const Tile tile(DType::f32, test::normal_weights(1000, 7), 32);
  const Sums expected = summed(nf4_tables, tile);
  for (const std::size_t shift : {1U, 2U, 3U}) {
    test::Bytes shifted(shift);
    shifted.insert(shifted.end(), tile.stored.begin(), tile.stored.end());
    std::vector<FourBitError> blocks(tile.absmax.size());
    ErrorSums sums;
    sum_four_bit_errors(nf4_tables, tile.dtype, std::span(shifted).subspan(shift), tile.packed, tile.absmax,
                        tile.blocksize, blocks, sums);
    EXPECT_EQ(sums, expected.sums) << shift;
  }
}

}  // namespace
}  // namespace nibble::four_bit_error_test
