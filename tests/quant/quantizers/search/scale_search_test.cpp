// The search against its formula, bit for bit, and against trying all scales.
#include "quant/quantizers/search/scale_search.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "quant/errors/squares.hpp"
#include "quant/quantizers/search/search_ratios.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/quantizers/search/search_support.hpp"

namespace nibble::scale_search_test {
namespace {

using test::bytes_of;

constexpr AbsmaxChoice choices[] = {AbsmaxChoice::search, AbsmaxChoice::search_positive};

// The value of the number of midpoints below v.
float nearest(const FourBitTables& tables, float v) {
  std::size_t number = tables.splits_zero && v > 0 ? 1 : 0;
  for (std::size_t k = 0; k < tables.midpoints; ++k) number += v > tables.midpoint[k] ? 1 : 0;
  return tables.codebook[tables.code[number]];
}

struct Sums {
  float product = 0, square = 0;
  [[nodiscard]] float gain() const { return product * product / square; }
  [[nodiscard]] float scale() const { return product / square; }
};

// Of a block whose largest magnitude is 4095, for a scale relative to that magnitude. `roots` are those of the block's
// columns, the largest of which is 32767; empty: they count alike.
Sums sums_of(const FourBitTables& tables, std::span<const int> weights, float scale, std::span<const int> roots = {}) {
  Sums sums;
  const auto inverse =
      static_cast<int>(std::clamp(std::rint(32737.0f * (4096.0f / 4095) / 8 / scale), -32767.0f, 32767.0f));
  for (std::size_t begin = 0; begin < weights.size(); begin += 64) {
    int product = 0, square = 0;
    for (std::size_t i = begin; i < std::min(begin + 64, weights.size()); ++i) {
      const int w = weights[i];
      const int position = 8 * ((8 * w * inverse + (1 << 14)) >> 15);
      float nearest = -1, last = -1;
      for (const std::uint8_t code : tables.code) {
        const float value = tables.codebook[code];
        if (static_cast<float>(position) > std::rint(32737.0f * ((last + value) / 2))) nearest = value;
        last = value;
      }
      const auto times_root = [&](int x) { return roots.empty() ? x : (x * roots[i] + (1 << 14)) >> 15; };
      const int value = times_root(static_cast<int>(std::rint(4095 * nearest)));
      product += times_root(w) * value;
      square += value * value;
    }
    sums.product += static_cast<float>(product);
    sums.square += static_cast<float>(square);
  }
  return sums;
}

float largest_of(std::span<const float> block) {
  float largest = 0;
  for (const float w : block) largest = std::max(largest, std::abs(w));
  return largest;
}

std::vector<int> in_units(std::span<const float> block) {
  std::vector<int> units;
  for (const float w : block) units.push_back(static_cast<int>(std::rint(w * (4095 / largest_of(block)))));
  return units;
}

std::vector<int> roots_in_units(std::span<const float> roots) {
  std::vector<int> units;
  for (const float r : roots) units.push_back(static_cast<int>(std::rint(r * (32767 / largest_of(roots)))));
  return units;
}

// scale_search.hpp, line by line. `roots` has as many values as a whole block has weights.
float absmax_of(const FourBitTables& tables, std::span<const float> block, std::size_t blocksize, AbsmaxChoice choice,
                std::span<const float> roots = {}) {
  const float largest = largest_of(block);
  if (!(largest >= 1e-30f && largest <= 1e30f)) return largest;
  const std::vector<int> units = in_units(block), roots_of_units = roots_in_units(roots);
  float best = 0, scale = 1;
  const auto consider = [&](const Sums& sums) {
    if (sums.gain() > best) best = sums.gain(), scale = sums.scale();
  };
  const WeightedSearchRatios weighted_ratios(blocksize, choice);
  for (const float ratio : roots.empty() ? search_ratios(blocksize, choice) : weighted_ratios.get())
    consider(sums_of(tables, units, ratio, roots_of_units));
  consider(sums_of(tables, units, scale, roots_of_units));
  const float absmax = largest * scale;
  std::vector<float> weights, decoded;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const float root = roots.empty() ? 1.0f : roots[i];
    weights.push_back(block[i] * root);
    decoded.push_back(nearest(tables, block[i] * (1.0f / absmax)) * absmax * root);
  }
  const ErrorSums sums = compare_squares(weights, decoded);
  return static_cast<float>(absmax * (sums.product / sums.test));
}

std::vector<float> find(const FourBitTables& tables, std::size_t blocksize, AbsmaxChoice choice, DType dtype,
                        std::span<const std::byte> weights, const ColumnsFrom& columns = {}) {
  std::vector<float> absmax(ceil_div(weights.size() / (traits(dtype).bits / 8), blocksize));
  const ScaleSearch search(tables, blocksize, choice);
  SearchedBlocks(search, dtype, weights, columns).find(absmax);
  return absmax;
}

// Blocks of ordinary weights, of zeros, of a single weight, and of all magnitudes; the last is short.
std::vector<float> all_kinds(std::size_t blocksize) {
  std::vector<float> weights = test::normal_weights(37 * blocksize + 7, 11, 0.05f);
  for (std::size_t b = 1; b < 30; ++b) {
    const auto block = std::span(weights).subspan(b * blocksize, blocksize);
    if (b % 5 == 1) std::ranges::fill(block, 0.0f);
    if (b % 5 == 1 && b > 10) block[b] = b % 2 == 0 ? -0.25f : 0.75f;
    if (b % 5 == 2)
      for (float& w : block) w *= std::ldexp(1.0f, static_cast<int>(b) * 9 - 140);
  }
  weights[30 * blocksize] = 3e38f;
  std::ranges::fill(std::span(weights).subspan(31 * blocksize, blocksize), 0.0f);
  weights[31 * blocksize + 1] = -1e-39f;
  for (std::size_t b = 33; b < 35; ++b)  // just below the least magnitude that is searched, and above it
    for (std::size_t i = 0; i < blocksize; ++i)
      weights[b * blocksize + i] = (b == 33 ? 0.99e-30f : 1.01e-30f) / static_cast<float>(1 + i % 7);
  weights[32 * blocksize] = 1.1e30f;
  return weights;
}

TEST(ScaleSearch, IsItsFormulaOnEveryTarget) {
  for (const char* const name : {"nf4", "fp4"})
    for (const std::size_t blocksize : {32U, 64U, 512U})
      for (const AbsmaxChoice choice : choices) {
        const FourBitTables& tables = test::four_bit_tables(name);
        const std::vector<float> weights = all_kinds(blocksize);
        std::vector<float> expected;
        for (std::size_t at = 0; at < weights.size(); at += blocksize)
          expected.push_back(absmax_of(tables, std::span(weights).subspan(at, std::min(blocksize, weights.size() - at)),
                                       blocksize, choice));
        test::for_each_target([&](const std::string& target) {
          EXPECT_EQ(find(tables, blocksize, choice, DType::f32, bytes_of(weights)), expected) << target << name;
        });
      }
}

// The mean squares of columns: exp(spread * a normal number), the fifth `outlier` times as large.
std::vector<float> mean_squares(std::size_t columns, float spread, float outlier = 1) {
  std::vector<float> squares = test::normal_weights(columns, 17);
  for (float& square : squares) square = std::exp(spread * square);
  squares[4] *= outlier;
  return squares;
}

// Rows end within blocks, and the weights begin within a row.
TEST(ScaleSearch, IsItsFormulaWhereColumnsCountDifferently) {
  constexpr std::size_t first = 96, row = 100;
  for (const char* const name : {"nf4", "fp4"})
    for (const std::size_t blocksize : {32U, 64U, 512U})
      for (const AbsmaxChoice choice : choices) {
        const FourBitTables& tables = test::four_bit_tables(name);
        const std::vector<float> weights = all_kinds(blocksize);
        const ColumnWeights columns(mean_squares(row, 2));
        std::vector<float> expected, room(blocksize);
        for (std::size_t at = 0; at < weights.size(); at += blocksize)
          expected.push_back(absmax_of(tables, std::span(weights).subspan(at, std::min(blocksize, weights.size() - at)),
                                       blocksize, choice, columns.roots(first + at, blocksize, room)));
        test::for_each_target([&](const std::string& target) {
          EXPECT_EQ(find(tables, blocksize, choice, DType::f32, bytes_of(weights), {&columns, first}), expected)
              << target << name;
        });
      }
}

// From memory without alignment.
TEST(ScaleSearch, ReadsAllTypesOfWeights) {
  for (const std::size_t blocksize : {32U, 64U, 512U}) {
    const std::vector<float> weights = test::normal_weights(37 * blocksize + 7, 3, 0.05f);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
      const test::Bytes stored = test::stored_as(dtype, weights);
      test::Bytes shifted(1);
      shifted.insert(shifted.end(), stored.begin(), stored.end());
      std::vector<float> same(weights.size());
      for (std::size_t i = 0; i < same.size(); ++i)
        same[i] = dtype == DType::bf16  ? bf16::to_float(bf16::from_float(weights[i]))
                  : dtype == DType::f16 ? fp16::to_float(fp16::from_float(weights[i]))
                                        : weights[i];
      EXPECT_EQ(
          find(test::four_bit_tables("nf4"), blocksize, AbsmaxChoice::search, dtype, std::span(shifted).subspan(1)),
          find(test::four_bit_tables("nf4"), blocksize, AbsmaxChoice::search, DType::f32, bytes_of(same)))
          << traits(dtype).name << blocksize;
    }
  }
}

// The second NaN has bits that would be a large integer.
TEST(ScaleSearch, SaysIfAWeightIsNotFinite) {
  const ScaleSearch search(test::four_bit_tables("nf4"), 64, AbsmaxChoice::search);
  const ScaleSearch of_large(test::four_bit_tables("nf4"), 512, AbsmaxChoice::search);
  test::for_each_target([&](const std::string& target) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::bit_cast<float>(0x7FFF7FFFU),
                            -std::numeric_limits<float>::infinity()})
      for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
        std::vector<float> weights = test::normal_weights(1000, 2), absmax(16);
        for (const std::size_t first : {512U, 700U, 999U}) {
          std::vector<float> large = weights, found(2);
          large[first] = bad;
          const test::Bytes stored = test::stored_as(dtype, large);
          SearchedBlocks(of_large, dtype, stored).find(found);
          EXPECT_TRUE(!std::isnan(found[0]) && std::isnan(found[1])) << target << traits(dtype).name << first;
        }
        weights[999] = bad;
        const test::Bytes stored = test::stored_as(dtype, weights);
        SearchedBlocks(search, dtype, stored).find(absmax);
        for (std::size_t b = 0; b < 16; ++b) EXPECT_EQ(std::isnan(absmax[b]), b == 15) << target << b;
      }
  });
}

// `squares` are the mean squares of the columns; empty: they count alike.
double error_of(const FourBitTables& tables, std::span<const float> block, double scale,
                std::span<const float> squares = {}) {
  double error = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (const float c : tables.codebook) least = std::min(least, (block[i] - scale * c) * (block[i] - scale * c));
    error += squares.empty() ? least : squares[i] * least;
  }
  return error;
}

// The least error over 300 scales of each sign, each refined once.
double least_error(const FourBitTables& tables, std::span<const float> block, AbsmaxChoice choice,
                   std::span<const float> squares = {}) {
  double largest = 0, least = std::numeric_limits<double>::infinity();
  for (const float w : block) largest = std::max<double>(largest, std::abs(w));
  for (const double sign : {1.0, -1.0}) {
    if (sign < 0 && choice == AbsmaxChoice::search_positive) continue;
    for (int i = 0; i < 300; ++i) {
      const double scale = sign * largest * (squares.empty() ? 0.3 + 0.005 * i : 0.1 + 0.005 * i);
      double product = 0, square = 0;
      for (std::size_t k = 0; k < block.size(); ++k) {
        const double c = nearest(tables, static_cast<float>(block[k] / scale)), h = squares.empty() ? 1 : squares[k];
        product += h * block[k] * c;
        square += h * c * c;
      }
      if (square > 0) least = std::min(least, error_of(tables, block, product / square, squares));
    }
  }
  return least;
}

// RMSE within 0.3 % of it, for every blocksize.
TEST(ScaleSearch, LeavesNearlyTheLeastErrorOfAllScales) {
  for (const char* const name : {"nf4", "fp4"})
    for (std::size_t blocksize = 32; blocksize <= 4096; blocksize *= 2)
      for (const AbsmaxChoice choice : choices) {
        const FourBitTables& tables = test::four_bit_tables(name);
        const std::size_t blocks = std::max<std::size_t>(16, 4096 / blocksize);
        const std::vector<float> weights = test::normal_weights(blocks * blocksize, 5);
        const std::vector<float> absmax = find(tables, blocksize, choice, DType::f32, bytes_of(weights));
        double found = 0, least = 0;
        for (std::size_t b = 0; b < blocks; ++b) {
          const auto block = std::span(weights).subspan(b * blocksize, blocksize);
          found += error_of(tables, block, absmax[b]);
          least += least_error(tables, block, choice);
          EXPECT_EQ(absmax[b] < 0 && choice == AbsmaxChoice::search_positive, false);
        }
        EXPECT_LE(std::sqrt(found / least), 1.003) << name << blocksize;
      }
}

// The same for the weighted error: where mean squares vary by a factor of e, and where one of them is 100 times as
// large, too.
TEST(ScaleSearch, LeavesNearlyTheLeastWeightedError) {
  for (const char* const name : {"nf4", "fp4"})
    for (const std::size_t blocksize : {64U, 1024U})
      for (const float outlier : {1.0f, 100.0f}) {
        const FourBitTables& tables = test::four_bit_tables(name);
        const std::size_t blocks = 4096 / blocksize;
        const std::vector<float> weights = test::normal_weights(blocks * blocksize, 5);
        const std::vector<float> squares = mean_squares(weights.size(), 1, outlier);
        const ColumnWeights columns(squares);
        const std::vector<float> absmax =
            find(tables, blocksize, AbsmaxChoice::search, DType::f32, bytes_of(weights), {&columns, 0});
        double found = 0, least = 0;
        for (std::size_t b = 0; b < blocks; ++b) {
          const auto block = std::span(weights).subspan(b * blocksize, blocksize);
          const auto its_squares = std::span(squares).subspan(b * blocksize, blocksize);
          found += error_of(tables, block, absmax[b], its_squares);
          least += least_error(tables, block, AbsmaxChoice::search, its_squares);
        }
        EXPECT_LE(std::sqrt(found / least), 1.003) << name << blocksize << " " << outlier;
      }
}

// Of a block that the largest magnitude stores exactly, all scales leave the same sums.
TEST(ScaleSearch, LosesNothingWhereNothingIsLost) {
  for (const char* const name : {"nf4", "fp4"})
    for (const AbsmaxChoice choice : choices) {
      std::vector<float> weights(4 * 64);
      std::fill_n(weights.begin(), 64, 0.3f);
      std::fill_n(weights.begin() + 64, 64, -0.7f);
      weights[128 + 9] = 0.7f;
      weights[192 + 5] = -3e20f;
      const FourBitTables& tables = test::four_bit_tables(name);
      const std::vector<float> absmax = find(tables, 64, choice, DType::f32, bytes_of(weights));
      std::vector<std::uint8_t> packed(weights.size() / 2);
      std::vector<float> decoded(weights.size());
      encode_four_bit_for(tables, DType::f32, bytes_of(weights), 64, absmax, packed);
      decode_four_bit(tables, packed, absmax, 64, decoded);
      for (std::size_t i = 0; i < weights.size(); ++i)
        EXPECT_NEAR(decoded[i], weights[i], 1e-6 * std::abs(weights[i])) << name << i;
    }
}

// By how much codes for this absmax leave less error than codes of 0.
float gain_of(const FourBitTables& tables, std::span<const float> block, float absmax,
              std::span<const float> roots = {}) {
  const float scale = absmax / largest_of(block);
  if (scale == 0) return 0;
  const Sums sums = sums_of(tables, in_units(block), scale, roots_in_units(roots));
  return scale * (2 * sums.product - scale * sums.square);
}

void expect_the_better_of_two(const char* name, std::size_t blocksize, const ColumnsFrom& columns) {
  const FourBitTables& tables = test::four_bit_tables(name);
  const std::vector<float> weights = test::normal_weights(60 * blocksize + 5, 8, 0.05f);
  std::vector<float> absmax = find(tables, blocksize, AbsmaxChoice::search, DType::f32, bytes_of(weights), columns);
  std::vector<float> other = absmax, expected, room(blocksize);
  std::size_t replaced = 0;
  for (std::size_t b = 0; b < absmax.size(); ++b) {
    absmax[b] *= b % 7 == 3 ? 0.0f : 1 + 0.02f * static_cast<float>(b % 4);
    other[b] *= b % 7 == 5 ? 0.0f : b % 7 == 6 ? -0.05f : 1 - 0.02f * static_cast<float>(b % 5);
    const std::size_t at = b * blocksize;
    const auto block = std::span(weights).subspan(at, std::min(blocksize, weights.size() - at));
    const auto roots = columns.columns == nullptr ? std::span<const float>()
                                                  : columns.columns->roots(columns.first + at, blocksize, room);
    const bool replaces = gain_of(tables, block, other[b], roots) > gain_of(tables, block, absmax[b], roots);
    expected.push_back(replaces ? other[b] : absmax[b]);
    replaced += replaces ? 1 : 0;
  }
  EXPECT_GT(replaced, 10U);
  EXPECT_LT(replaced, 50U);
  const test::Bytes stored = bytes_of(weights);
  test::for_each_target([&](const std::string& target) {
    std::vector<float> better = absmax;
    const ScaleSearch search(tables, blocksize, AbsmaxChoice::search);
    SearchedBlocks(search, DType::f32, stored, columns).take_better(better, other);
    EXPECT_EQ(better, expected) << target << name;
    for (const bool keeps : {false, true}) {
      SearchedBlocks blocks(search, DType::f32, stored, columns, keeps);
      better = absmax;
      std::vector<float> found(absmax.size());
      blocks.find(found);
      blocks.take_better(better, other);
      EXPECT_EQ(better, expected) << target << name << keeps;
      const std::vector<float> before = std::exchange(found, std::vector<float>(absmax.size()));
      blocks.find(found);
      EXPECT_EQ(found, before) << target << name << keeps;
    }
  });
}

TEST(ScaleSearch, TakesTheBetterOfTwo) {
  for (const char* const name : {"nf4", "fp4"})
    for (const std::size_t blocksize : {32U, 128U, 512U}) expect_the_better_of_two(name, blocksize, {});
}

TEST(ScaleSearch, TakesTheBetterOfTwoWhereColumnsCountDifferently) {
  const ColumnWeights columns(mean_squares(100, 2));
  for (const char* const name : {"nf4", "fp4"})
    for (const std::size_t blocksize : {32U, 128U, 512U}) expect_the_better_of_two(name, blocksize, {&columns, 96});
}

TEST(ScaleSearch, KeepsTheAbsmaxOfBlocksThatAreNotSearched) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(), 1.1e30f})
    for (const float kept : {0.0f, 1.0f, -1.0f}) {
      std::vector<float> weights = test::normal_weights(64, 2), absmax{kept};
      weights[9] = bad;
      const std::vector<float> other{kept + 0.01f};
      const ScaleSearch search(test::four_bit_tables("nf4"), 64, AbsmaxChoice::search);
      SearchedBlocks(search, DType::f32, bytes_of(weights)).take_better(absmax, other);
      EXPECT_EQ(absmax[0], kept) << bad;
    }
}

}  // namespace
}  // namespace nibble::scale_search_test
