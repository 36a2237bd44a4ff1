// The sums of four_bit_error.cpp against their definition, in fp64 from the first weight to the last.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nibble/fp4.hpp"
#include "nibble/metrics.hpp"
#include "nibble/nested.hpp"
#include "nibble/nf4.hpp"
#include "quant/four_bit.hpp"
#include "quant/four_bit_bf16.hpp"
#include "tests/quant/codec_support.hpp"

namespace nibble::four_bit_error_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t most_weights = 4096;

// As quant/nf4.cpp and quant/fp4.cpp have them.
const FourBitTables nf4_tables_without_steps =
    make_tables(nf4::codebook.value, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 7.234375, 14.84375);
const Bf16Steps bf16_steps = make_bf16_steps(nf4_tables_without_steps);
const FourBitTables nf4_tables = [] {
  FourBitTables tables = nf4_tables_without_steps;
  tables.bf16_steps = &bf16_steps;
  return tables;
}();
const FourBitTables fp4_tables =
    make_tables(fp4::codebook.value, {11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3}, 7.0, 14.71875);

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

ErrorSums summed(const FourBitTables& tables, const Tile& tile) {
  return tile_errors(tables, tile.dtype, tile.stored, tile.packed, tile.absmax, tile.blocksize);
}

// A sum of 4096 products in 32 lanes of fp32: 128 additions each, some more of the lanes, and e itself.
constexpr double tolerance = 140 * 0x1p-24;

void expect_definition(const FourBitTables& tables, const Tile& tile, const std::string& what) {
  SCOPED_TRACE(what + ", " + std::string(traits(tile.dtype).name) + ", " + std::to_string(tile.w.size()) +
               " weights in blocks of " + std::to_string(tile.blocksize));
  std::uint64_t count = 0;
  double square = 0, product = 0, reference = 0, test = 0;
  for (std::size_t i = 0; i < tile.w.size(); ++i) {
    if (!std::isfinite(tile.w[i])) continue;
    const float c = tables.codebook[tile.packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15];
    const double w = tile.w[i], t = c * tile.absmax[i / tile.blocksize], e = t - w;  // t is what is decoded
    ++count, square += e * e, product += w * t, reference += w * w, test += t * t;
  }
  const ErrorSums found = summed(tables, tile);
  EXPECT_EQ(found.count, count);
  // Where signs differ, the bound is that of the sums of magnitudes, by Cauchy and Schwarz.
  const double mixed = std::sqrt(square * test);
  EXPECT_NEAR(found.square, square, tolerance * square);
  EXPECT_NEAR(found.test, test, tolerance * test);
  EXPECT_NEAR(found.product, product, tolerance * (test + mixed));
  EXPECT_NEAR(found.reference, reference, tolerance * (test + 2 * mixed + square));
  test::for_each_target([&](const std::string& target) { EXPECT_EQ(summed(tables, tile), found) << target; });
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
  // fp32 could hold sum e^2, not sum t^2.
  Tile tile(DType::f32, test::normal_weights(1000, 2, 1.5e18f), 64);
  nf4::encode(tile.w, 64, tile.packed, tile.absmax);
  expect_definition(nf4_tables, tile, "1.5e18, encoded");
}

TEST(FourBitErrors, ZerosCostNothing) {
  EXPECT_EQ(summed(nf4_tables, {DType::f32, std::vector<float>(200, 0.0f), 64}), (ErrorSums{.count = 200}));
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
  for (std::size_t i = 0; i < n; i += most_weights)
    found.add(tile_errors(nf4_tables, DType::bf16, std::span(tensor.stored).subspan(2 * i, 2 * most_weights),
                          std::span(tensor.packed).subspan(i / 2, most_weights / 2),
                          std::span(tensor.absmax).subspan(i / blocksize, most_weights / blocksize), blocksize));
  EXPECT_EQ(found.count, n);
  EXPECT_NEAR(found.square, expected.square, 1e-6 * expected.square);
  EXPECT_NEAR(found.product, expected.product, 1e-6 * expected.product);
  EXPECT_NEAR(found.reference, expected.reference, 1e-6 * expected.reference);
  EXPECT_NEAR(found.test, expected.test, 1e-6 * expected.test);
}

// Absmax values before and after double quantization, and any X and T of their tiles.
struct Change {
  std::size_t blocks_per_tile;
  std::vector<TileCross> tiles;
  std::vector<float> absmax, nested_absmax, decoded;
  std::vector<std::uint8_t> codes;
  float offset;
  [[nodiscard]] ErrorSums found() const {
    return change_of_errors(tiles, blocks_per_tile, absmax, codes, nested_absmax, offset);
  }
};

Change change_of(std::size_t n, std::size_t blocks_per_tile, float scale) {
  Change change{blocks_per_tile,
                {},
                test::normal_weights(n, 10, scale),
                std::vector<float>((n + nested::blocksize - 1) / nested::blocksize),
                std::vector<float>(n),
                std::vector<std::uint8_t>(n),
                0};
  for (std::size_t b = 0; b < n; ++b) change.absmax[b] = b % 50 == 7 || b / 32 == 3 ? 0 : std::abs(change.absmax[b]);
  const auto cross = test::normal_weights(n, 12, 0.5f), squares = test::normal_weights(n, 13, 10);
  for (std::size_t b = 0; b < n; b += blocks_per_tile) change.tiles.push_back({cross[b], std::abs(squares[b])});
  change.offset = nested::offset(change.absmax);
  nested::encode(change.absmax, change.offset, change.codes, change.nested_absmax);
  nested::decode(change.codes, change.nested_absmax, nested::codebook, change.offset, change.decoded);
  return change;
}

// With d = a' - a, f = sum d a / sum a^2 and g = sum d^2 / sum a^2: E of a tile changes by 2 f X + g T, the products by
// f (T - X), T by (2 f + g) T. Sums of any sign: so the bound is that of their magnitudes, a few roundings of fp32 for
// each, and one of 16 in a lane. Magnitudes beside which another tile's are next to nothing are no obstacle.
TEST(FourBitErrors, ChangesAreThoseOfTheDefinition) {
  for (const std::size_t blocks_per_tile : {1U, 4U, 16U, 64U, 128U})
    for (const std::size_t n : {0U, 1U, 7U, 16U, 255U, 256U, 257U, 1024U})
      for (const float scale : {1.0f, 1e-38f, 1e-30f, 1e15f, 5e37f, 0.0f}) {
        Change change = change_of(n, blocks_per_tile, scale == 0 ? 1e-30f : scale);
        if (scale == 0 && n > 300) change.absmax[300] = 1, change.decoded[300] = 1.25f;
        if (scale == 0) {
          change.offset = nested::offset(change.absmax);
          nested::encode(change.absmax, change.offset, change.codes, change.nested_absmax);
          nested::decode(change.codes, change.nested_absmax, nested::codebook, change.offset, change.decoded);
        }
        double square = 0, product = 0, test = 0, squares = 0, products = 0, tests = 0;
        for (std::size_t first = 0; first < n; first += blocks_per_tile) {
          double all = 0, f = 0, g = 0, magnitude = 0;
          for (std::size_t b = first; b < std::min(n, first + blocks_per_tile); ++b) {
            const double a = change.absmax[b], d = change.decoded[b] - a;
            all += a * a, f += d * a, g += d * d, magnitude += std::abs(d) * a;
          }
          if (all == 0) continue;
          f /= all, g /= all, magnitude /= all;
          const auto [x, t] = change.tiles[first / blocks_per_tile];
          square += 2 * f * x + g * t, squares += 2 * magnitude * std::abs(x) + g * t;
          product += f * (t - x), products += magnitude * (t + std::abs(x));
          test += (2 * f + g) * t, tests += (2 * magnitude + g) * t;
        }
        SCOPED_TRACE(std::to_string(n) + " in tiles of " + std::to_string(blocks_per_tile) + ", " +
                     testing::PrintToString(scale));
        constexpr double bound = 30 * 0x1p-24;
        const ErrorSums found = change.found();
        EXPECT_EQ(found.count, 0U);
        EXPECT_EQ(found.reference, 0);
        EXPECT_NEAR(found.square, square, bound * squares);
        EXPECT_NEAR(found.product, product, bound * products);
        EXPECT_NEAR(found.test, test, bound * tests);
        EXPECT_TRUE(n <= 16 || squares > 0);
        test::for_each_target([&](const std::string& target) { EXPECT_EQ(change.found(), found) << target; });
      }
}

// SQNR as encoding with double quantization reports it, less that of the decoded weights.
double excess_db(const std::vector<float>& weights, std::uint32_t blocksize, std::uint64_t limit = 1 << 20) {
  const auto codec = make_codec("nf4", {.blocksize = blocksize, .sums_errors = true});
  const TensorInfo tensor{"w.weight", DType::f32, {weights.size() / 64, 64}};
  std::vector<ErrorSums> tiles;
  EncodingError late;
  const auto encoded = test::encode(*codec, tensor, test::bytes_of(weights), limit, false, &tiles, &late);
  ErrorSums sums = late.sums;
  for (const ErrorSums& tile : tiles) sums.add(tile);
  const ErrorStats truth = compare(weights, test::decode(*codec, tensor, encoded));
  EXPECT_NEAR(sums.reference, truth.reference, 1e-6 * truth.reference);
  EXPECT_NEAR(sums.cosine(), truth.cosine(), 1e-4);
  return sums.sqnr_db() - truth.sqnr_db();
}

// What docs/measure.md says of the estimate. It is none where a tile is a block.
TEST(FourBitErrors, DoubleQuantizationIsEstimated) {
  constexpr std::size_t n = (std::size_t{1} << 21) + 5 * most_weights;
  const std::vector<float> normal = test::normal_weights(n, 14, 0.02f), other = test::normal_weights(n, 15);
  EXPECT_NEAR(excess_db(normal, 64), 0, 0.001);
  EXPECT_NEAR(excess_db({normal.begin(), normal.begin() + 4096}, 64), 0, 0.01);
  for (const std::uint64_t limit : {1U, 10000U}) EXPECT_EQ(excess_db(normal, 64, limit), excess_db(normal, 64));
  const auto changed = [&](auto change) {
    std::vector<float> weights = normal;
    for (std::size_t i = 0; i < n; ++i) weights[i] = change(weights[i], i);
    return weights;
  };
  const auto rows = changed([&](float w, std::size_t i) { return w * std::exp(0.5f * other[i / 384]); });
  const auto outliers = changed([](float w, std::size_t i) { return i % 4096 % 600 == 77 ? 20 * w : w; });
  const auto pruned = changed([&](float w, std::size_t i) { return std::abs(other[i]) < 0.67f ? 0.0f : w; });
  const auto heavy = changed([&](float w, std::size_t i) { return w / std::max(std::abs(other[i]), 1e-6f); });
  EXPECT_NEAR(excess_db(rows, 64), 0, 0.02);
  EXPECT_NEAR(excess_db(outliers, 64), 0, 0.02);
  EXPECT_NEAR(excess_db(pruned, 64), 0, 0.02);
  EXPECT_NEAR(excess_db(heavy, 64), 0, 1);  // Cauchy's distribution
  for (const auto* const weights : {&normal, &rows, &outliers, &pruned, &heavy})
    EXPECT_NEAR(excess_db(*weights, 4096), 0, 1e-5);
}

// What encoding tells is what comparing afterwards tells, bit for bit, with the same codes as without.
TEST(FourBitErrors, AreTheSameWhileEncoding) {
  for (const FourBitTables* const tables : {&nf4_tables, &nf4_tables_without_steps, &fp4_tables})
    for (const DType source : {DType::f32, DType::bf16, DType::f16})
      for (std::size_t blocksize = 32; blocksize <= most_weights; blocksize *= 2)
        for (const std::size_t n : {std::size_t{1}, blocksize - 1, blocksize, most_weights - 33, most_weights})
          for (const float special : {0.0f, nan, 1e-42f}) {
            SCOPED_TRACE(std::string(traits(source).name) + ", " + std::to_string(n) + " in blocks of " +
                         std::to_string(blocksize) + ", " + std::to_string(special));
            std::vector<float> weights = test::normal_weights(n, static_cast<unsigned>(n), 0.02f);
            weights[n / 2] = special;
            Tile plain(source, weights, blocksize), tile = plain;
            const std::size_t nonfinite =
                encode_four_bit(*tables, source, plain.stored, blocksize, plain.packed, plain.absmax);
            ErrorSums found;
            EXPECT_EQ(encode_four_bit(*tables, source, tile.stored, blocksize, tile.packed, tile.absmax, found),
                      nonfinite);
            EXPECT_EQ(tile.packed, plain.packed);
            EXPECT_EQ(tile.absmax, plain.absmax);
            EXPECT_EQ(found, summed(*tables, plain));
          }
}

TEST(FourBitErrors, NeedNoAlignment) {
  const Tile tile(DType::f32, test::normal_weights(1000, 7), 32);
  const ErrorSums expected = summed(nf4_tables, tile);
  for (const std::size_t shift : {1U, 2U, 3U}) {
    test::Bytes shifted(shift);
    shifted.insert(shifted.end(), tile.stored.begin(), tile.stored.end());
    EXPECT_EQ(tile_errors(nf4_tables, tile.dtype, std::span(shifted).subspan(shift), tile.packed, tile.absmax,
                          tile.blocksize),
              expected)
        << shift;
  }
}

}  // namespace
}  // namespace nibble::four_bit_error_test
