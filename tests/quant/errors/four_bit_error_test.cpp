// The sums of four_bit_error.cpp against their definition, in fp64 from the first weight to the last.

#include "quant/errors/four_bit_error.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "nibble/fp4.hpp"
#include "nibble/metrics.hpp"
#include "nibble/nested.hpp"
#include "nibble/nf4.hpp"
#include "quant/codecs/four_bit/four_bit.hpp"
#include "quant/codecs/four_bit/four_bit_bf16.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::four_bit_error_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t max_weights = 4096;

// As quant/codecs/nf4.cpp and quant/codecs/fp4.cpp have them.
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

// Of each block: E / a^2 = sum (e / a)^2, X / a^2 = sum e c / a, T / a^2 = sum c^2, in fp64.
struct Block {
  double error = 0, cross = 0, test = 0;
};

double cross_of(const FourBitError& error) { return fp16::to_float(error.cross); }
double test_of(const FourBitError& error) { return fp16::to_float(error.test); }

// fp16 is off by one part in 2^11, or by half its smallest number.
constexpr double fp16_error = 0x1p-11;
constexpr double smallest_fp16 = 0x1p-25;

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
    const double a = tile.absmax[i / tile.blocksize], w = tile.w[i];
    const double t = c * tile.absmax[i / tile.blocksize], e = t - w;  // t is what is decoded
    Block& block = blocks[i / tile.blocksize];
    if (a != 0) block.error += e * e / (a * a), block.cross += e * c / a, block.test += static_cast<double>(c) * c;
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
    if (tile.absmax[b] == 0) {
      EXPECT_EQ(found.blocks[b].cross, 0) << "block " << b;
      EXPECT_EQ(found.blocks[b].test, 0) << "block " << b;
      continue;
    }
    const double mixed_of_block = std::sqrt(blocks[b].error * blocks[b].test);
    EXPECT_NEAR(test_of(found.blocks[b]), blocks[b].test, (fp16_error + tolerance) * blocks[b].test) << "block " << b;
    EXPECT_NEAR(cross_of(found.blocks[b]), blocks[b].cross,
                fp16_error * std::abs(blocks[b].cross) + tolerance * mixed_of_block + smallest_fp16)
        << "block " << b;
  }
  test::for_each_target([&](const std::string& target) {
    const Sums again = summed(tables, tile);
    EXPECT_EQ(again.sums, found.sums) << target;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      EXPECT_EQ(again.blocks[b].cross, found.blocks[b].cross) << target;
      EXPECT_EQ(again.blocks[b].test, found.blocks[b].test) << target;
    }
  });
}

TEST(FourBitErrors, AreThoseOfTheDefinition) {
  for (const DType source : {DType::f32, DType::bf16, DType::f16})
    for (std::size_t blocksize = 32; blocksize <= max_weights; blocksize *= 2)
      for (const std::size_t n : {std::size_t{0}, std::size_t{1}, blocksize - 1, blocksize,
                                  std::min(blocksize + 1, max_weights), max_weights - 33, max_weights})
        expect_definition(nf4_tables, {source, test::normal_weights(n, static_cast<unsigned>(n), 0.02f), blocksize},
                          "nf4");
  expect_definition(fp4_tables, {DType::f32, test::normal_weights(max_weights, 1), 64}, "fp4");
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

// A search may choose a negative absmax. If all signs of a block change, the loops add the same squares. Sums in fp64,
// weight by weight, would be rounded otherwise.
TEST(FourBitErrors, ANegativeAbsmaxIsSummedByTheLoops) {
  const std::vector<float> weights = test::normal_weights(max_weights, 6, 0.02f);
  for (const DType source : {DType::f32, DType::bf16, DType::f16}) {
    const Tile tile(source, weights, 64);
    std::vector<float> turned = weights;
    for (std::size_t i = 0; i < max_weights; ++i)
      if (i / 64 % 3 == 1) turned[i] = -turned[i];
    Tile other(source, turned, 64);
    for (std::size_t b = 1; b < other.absmax.size(); b += 3) other.absmax[b] = -other.absmax[b];
    expect_definition(nf4_tables, other, "negative absmax");
    EXPECT_EQ(summed(nf4_tables, other).sums, summed(nf4_tables, tile).sums);
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

// What blocks tell is enough for another absmax a', as double quantization makes it: E + 2 (a' - a) X / a + (a' - a)^2
// T / a^2. Also where a block has little beside its largest weight, and next to no error before.
TEST(FourBitErrors, TellWhatAnotherAbsmaxWouldCost) {
  for (const std::size_t blocksize : {std::size_t{64}, max_weights})
    for (const std::size_t n : {max_weights, std::size_t{1001}})
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
          const double linear = 2 * by * absmax * cross_of(before.blocks[b]);
          square += linear + by * by * test_of(before.blocks[b]);
          moved += std::abs(linear) + by * by * test_of(before.blocks[b]);
        }
        EXPECT_GT(moved, 1e-3 * square);
        EXPECT_NEAR(summed(nf4_tables, tile).sums.square, square, tolerance * square + fp16_error * moved)
            << blocksize << ' ' << n;
      }
}

// What docs/measure.md says of real codes: tile after tile, the sums are those of fp64 to 1e-6.
TEST(FourBitErrors, OfATensorAreRightToOneInAMillion) {
  constexpr std::size_t n = 64 * max_weights, blocksize = 64;
  Tile tensor(DType::bf16, test::normal_weights(n, 8, 0.02f), blocksize);
  nf4::encode(tensor.w, blocksize, tensor.packed, tensor.absmax);
  ErrorSums expected, found;
  for (std::size_t i = 0; i < n; ++i) {
    const float decoded =
        nf4_tables.codebook[tensor.packed[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15] * tensor.absmax[i / blocksize];
    const double w = tensor.w[i], t = decoded;
    expected.add({1, (t - w) * (t - w), w * t, w * w, t * t});
  }
  std::vector<FourBitError> blocks(max_weights / blocksize);
  for (std::size_t i = 0; i < n; i += max_weights)
    sum_four_bit_errors(nf4_tables, DType::bf16, std::span(tensor.stored).subspan(2 * i, 2 * max_weights),
                        std::span(tensor.packed).subspan(i / 2, max_weights / 2),
                        std::span(tensor.absmax).subspan(i / blocksize, max_weights / blocksize), blocksize, blocks,
                        found);
  EXPECT_EQ(found.count, n);
  EXPECT_NEAR(found.square, expected.square, 1e-6 * expected.square);
  EXPECT_NEAR(found.product, expected.product, 1e-6 * expected.product);
  EXPECT_NEAR(found.reference, expected.reference, 1e-6 * expected.reference);
  EXPECT_NEAR(found.test, expected.test, 1e-6 * expected.test);
}

// Without double quantization nobody asks for the blocks.
TEST(FourBitErrors, BlocksAreLeftOutIfNobodyAsks) {
  for (const std::size_t n : {max_weights, std::size_t{1001}})
    for (const float scale : {1.0f, 1e-30f}) {
      const Tile tile(DType::f32, test::normal_weights(n, 9, scale), 64);
      ErrorSums sums;
      sum_four_bit_errors(nf4_tables, tile.dtype, tile.stored, tile.packed, tile.absmax, tile.blocksize, {}, sums);
      EXPECT_EQ(sums, summed(nf4_tables, tile).sums) << n << ' ' << scale;
    }
}

// Blocks before and after double quantization.
struct Change {
  std::vector<FourBitError> errors;
  std::vector<float> absmax, nested_absmax, decoded;
  std::vector<std::uint8_t> codes;
  float offset;
  [[nodiscard]] ErrorSums found() const { return change_of_errors(errors, absmax, codes, nested_absmax, offset); }
};

Change change_of(std::size_t n, float scale) {
  Change change{std::vector<FourBitError>(n),
                test::normal_weights(n, 10, scale),
                std::vector<float>((n + nested::blocksize - 1) / nested::blocksize),
                std::vector<float>(n),
                std::vector<std::uint8_t>(n),
                0};
  const auto cross = test::normal_weights(n, 12, 0.5f), squares = test::normal_weights(n, 13, 10);
  for (std::size_t b = 0; b < n; ++b) {
    change.errors[b] = {fp16::from_float(cross[b]), fp16::from_float(std::abs(squares[b]))};
    change.absmax[b] = b % 50 == 7 ? 0 : std::abs(change.absmax[b]);
  }
  change.offset = nested::offset(change.absmax);
  nested::encode(change.absmax, change.offset, change.codes, change.nested_absmax);
  nested::decode(change.codes, change.nested_absmax, nested::codebook, change.offset, change.decoded);
  return change;
}

// With d = a' - a: E changes by 2 d X / a + d^2 T / a^2, the products by d (T - X) / a, T by d (2 a + d) T / a^2. Sums
// of any sign: so the bound is that of their magnitudes, a few roundings of fp32 for each, and one of 16 in a lane.
TEST(FourBitErrors, ChangesAreThoseOfTheDefinition) {
  for (const std::size_t n : {0U, 1U, 7U, 16U, 255U, 256U, 257U, 16384U})
    for (const float scale : {1.0f, 1e-38f, 1e-30f, 1e15f, 5e37f}) {
      const Change change = change_of(n, scale);
      double square = 0, product = 0, test = 0, squares = 0, products = 0, tests = 0;
      for (std::size_t b = 0; b < n; ++b) {
        const double a = change.absmax[b], d = change.decoded[b] - a;
        const double x = a * cross_of(change.errors[b]), t = test_of(change.errors[b]);
        square += 2 * d * x + d * d * t, squares += std::abs(2 * d * x) + d * d * t;
        product += d * (a * t - x), products += std::abs(d) * (a * t + std::abs(x));
        test += d * (2 * a + d) * t, tests += std::abs(d) * (2 * a + std::abs(d)) * t;
      }
      constexpr double bound = 30 * 0x1p-24;
      const ErrorSums found = change.found();
      EXPECT_EQ(found.count, 0U);
      EXPECT_EQ(found.reference, 0);
      EXPECT_NEAR(found.square, square, bound * squares) << n << ' ' << scale;
      EXPECT_NEAR(found.product, product, bound * products) << n << ' ' << scale;
      EXPECT_NEAR(found.test, test, bound * tests) << n << ' ' << scale;
      EXPECT_TRUE(n <= 16 || squares > 0) << scale;
      test::for_each_target([&](const std::string& target) { EXPECT_EQ(change.found(), found) << target; });
    }
}

// SQNR as encoding with double quantization reports it, less that of the decoded weights.
double excess_db(const std::vector<float>& weights) {
  const auto codec = make_codec("nf4");
  const TensorInfo tensor{"w.weight", DType::f32, {weights.size() / 64, 64}};
  std::vector<ErrorSums> tiles;
  EncodingError late;
  const auto encoded = test::encode(*codec, tensor, test::bytes_of(weights),
                                    {.quantizer = {.sums_errors = true}, .errors = &tiles, .late = &late});
  ErrorSums sums = late.sums;
  for (const ErrorSums& tile : tiles) sums.add(tile);
  return sums.sqnr_db() - compare(weights, test::decode(*codec, tensor, encoded)).sqnr_db();
}

// Also where blocks differ and double quantization is most of the error.
TEST(FourBitErrors, ReportsTheSqnrOfWhatIsDecoded) {
  constexpr std::size_t n = std::size_t{1} << 18;
  const std::vector<float> normal = test::normal_weights(n, 14, 0.02f), other = test::normal_weights(n, 15);
  const auto changed = [&](auto change) {
    std::vector<float> weights = normal;
    for (std::size_t i = 0; i < n; ++i) weights[i] = change(weights[i], i);
    return weights;
  };
  const auto expect_none = [](const std::vector<float>& weights) { EXPECT_NEAR(excess_db(weights), 0, 0.002); };
  expect_none(normal);
  expect_none(changed([&](float w, std::size_t i) { return w * std::exp(0.5f * other[i / 384]); }));      // rows differ
  expect_none(changed([](float w, std::size_t i) { return i % 2048 == 77 ? 100 * w : w; }));              // a channel
  expect_none(changed([&](float w, std::size_t i) { return std::abs(other[i]) < 2.5f ? 0.0f : w; }));     // 99 % pruned
  expect_none(changed([&](float w, std::size_t i) { return w / std::max(std::abs(other[i]), 1e-6f); }));  // Cauchy's
  expect_none(changed([&](float w, std::size_t i) { return i < 64 ? 1e-22f * w : w; }));
  expect_none(changed([&](float w, std::size_t i) {
    const float peak = 0.02f * (1 + 0.1f * other[i / 64]);
    return i / 64 % 2 == 0 ? (i % 64 == 0 ? peak : 0.0f) : std::copysign(peak, w);
  }));
}

// What encoding tells is what comparing afterwards tells, bit for bit, with the same codes as without.
TEST(FourBitErrors, AreTheSameWhileEncoding) {
  for (const FourBitTables* const tables : {&nf4_tables, &nf4_tables_without_steps, &fp4_tables})
    for (const DType source : {DType::f32, DType::bf16, DType::f16})
      for (std::size_t blocksize = 32; blocksize <= max_weights; blocksize *= 2)
        for (const std::size_t n : {std::size_t{1}, blocksize - 1, blocksize, max_weights - 33, max_weights})
          for (const float special : {0.0f, nan, 1e-42f}) {
            SCOPED_TRACE(std::string(traits(source).name) + ", " + std::to_string(n) + " in blocks of " +
                         std::to_string(blocksize) + ", " + std::to_string(special));
            std::vector<float> weights = test::normal_weights(n, static_cast<unsigned>(n), 0.02f);
            weights[n / 2] = special;
            Tile plain(source, weights, blocksize), tile = plain;
            const std::size_t nonfinite =
                encode_four_bit(*tables, source, plain.stored, blocksize, plain.packed, plain.absmax);
            Sums found;
            found.blocks.resize(tile.absmax.size());
            EXPECT_EQ(encode_and_compare_four_bit(*tables, source, tile.stored, blocksize, tile.packed, tile.absmax,
                                                  found.blocks, found.sums),
                      nonfinite);
            EXPECT_EQ(tile.packed, plain.packed);
            EXPECT_EQ(tile.absmax, plain.absmax);
            const Sums after = summed(*tables, plain);
            EXPECT_EQ(found.sums, after.sums);
            for (std::size_t b = 0; b < found.blocks.size(); ++b) {
              EXPECT_EQ(found.blocks[b].cross, after.blocks[b].cross) << b;
              EXPECT_EQ(found.blocks[b].test, after.blocks[b].test) << b;
            }
            ErrorSums without_blocks;
            encode_and_compare_four_bit(*tables, source, tile.stored, blocksize, tile.packed, tile.absmax, {},
                                        without_blocks);
            EXPECT_EQ(without_blocks, after.sums);
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
