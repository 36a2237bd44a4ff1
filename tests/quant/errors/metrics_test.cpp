// Sums over weights, and the figures from them, against their definition. One file, as quant/errors/metrics.cpp is:
// what compare() and describe() say is held against the same sums in fp64.

#include "nibble/metrics.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "nibble/error.hpp"
#include "nibble/xtensor.hpp"
#include "quant/errors/squares.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::metrics_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float subnormal = std::numeric_limits<float>::denorm_min();

// Around the block and the tile, and more than one of them.
constexpr std::size_t sizes[] = {0, 1, 2, 63, 64, 65, 4095, 4096, 4097, 3 * 4096 + 17};

using Vector = xt::xtensor<double, 1>;

Vector vector_of(const std::vector<float>& values) { return xt::cast<double>(as_xtensor<1>(values, {values.size()})); }

// The sums as the header says, in fp64 from the first weight to the last.
struct Sums {
  Sums(const std::vector<float>& weights, const std::vector<float>& others) {
    const Vector all_w = vector_of(weights);
    const Vector all_t = vector_of(others);
    nan = count_if(all_t, [](double t) { return std::isnan(t); });
    inf = count_if(all_t, [](double t) { return std::isinf(t); });
    const xt::xtensor<bool, 1> finite = xt::isfinite(all_w) && xt::isfinite(all_t);
    const Vector w = xt::filter(all_w, finite);
    const Vector e = xt::filter(all_t, finite) - w;
    const xt::xtensor<bool, 1> not_zero = xt::not_equal(w, 0.0);
    const Vector e_there = xt::filter(e, not_zero);
    const Vector w_there = xt::filter(w, not_zero);
    count = e.size();
    nonzero = w_there.size();
    magnitude = xt::sum(xt::abs(e))();
    square = xt::sum(e * e)();
    product = xt::sum(w * (w + e))();
    reference = xt::sum(w * w)();
    test = xt::sum((w + e) * (w + e))();
    relative = xt::sum(xt::abs(e_there / w_there))();
    max_abs = count == 0 ? 0 : xt::amax(xt::abs(e))();
    double block = 0;
    for (std::size_t i = 0; i < all_w.size(); ++i) {
      const double difference = all_t(i) - all_w(i);
      block = (i % metric_block == 0 ? 0 : block) + (std::isfinite(difference) ? difference * difference : 0);
      worst_square = std::max(worst_square, block);
    }
  }

  template <class F> static std::uint64_t count_if(const Vector& values, F&& f) {
    return static_cast<std::uint64_t>(std::count_if(values.begin(), values.end(), f));
  }

  std::uint64_t count = 0, nonzero = 0, nan = 0, inf = 0;
  double magnitude = 0, square = 0, product = 0, reference = 0, test = 0, relative = 0, max_abs = 0, worst_square = 0;
};

// Each sum is of 16 fp32 products: 4 + 2 additions, a product and e itself, each rounded by 2^-24 at most.
constexpr double tolerance = 8 * 0x1p-24;

void expect_sums(const std::vector<float>& reference, const std::vector<float>& test, const std::string& what) {
  SCOPED_TRACE(what + ", " + std::to_string(reference.size()) + " weights");
  const Sums expected(reference, test);
  const ErrorStats stats = compare(reference, test);
  EXPECT_EQ(stats.count, expected.count);
  EXPECT_EQ(stats.nonzero, expected.nonzero);
  EXPECT_EQ(stats.nan, expected.nan);
  EXPECT_EQ(stats.inf, expected.inf);
  EXPECT_NEAR(stats.magnitude, expected.magnitude, tolerance * expected.magnitude);
  EXPECT_NEAR(stats.square, expected.square, tolerance * expected.square);
  EXPECT_NEAR(stats.reference, expected.reference, tolerance * expected.reference);
  EXPECT_NEAR(stats.test, expected.test, tolerance * expected.test);
  EXPECT_NEAR(stats.relative, expected.relative, tolerance * expected.relative);
  // Signs differ in this one: its bound is that of the sum of magnitudes, by Cauchy and Schwarz.
  EXPECT_NEAR(stats.product, expected.product, tolerance * std::sqrt(expected.reference * expected.test));
  EXPECT_NEAR(stats.max_abs, expected.max_abs, tolerance * expected.max_abs);
  EXPECT_NEAR(stats.worst_square, expected.worst_square, tolerance * expected.worst_square);
  if (expected.max_abs > 0) {
    const double there = std::abs(static_cast<double>(test.at(stats.max_abs_at)) - reference[stats.max_abs_at]);
    EXPECT_NEAR(there, expected.max_abs, tolerance * expected.max_abs) << "at " << stats.max_abs_at;
    ASSERT_EQ(stats.worst_square_at % metric_block, 0U);
    ASSERT_LT(stats.worst_square_at, reference.size());
    const std::size_t n = std::min(metric_block, reference.size() - stats.worst_square_at);
    const auto begin = static_cast<std::ptrdiff_t>(stats.worst_square_at), end = begin + static_cast<std::ptrdiff_t>(n);
    const Sums block({reference.begin() + begin, reference.begin() + end}, {test.begin() + begin, test.begin() + end});
    EXPECT_NEAR(block.square, expected.worst_square, tolerance * expected.worst_square);
    float absmax = 0;
    for (auto weight = reference.begin() + begin; weight != reference.begin() + end; ++weight)
      if (std::isfinite(*weight)) absmax = std::max(absmax, std::abs(*weight));
    EXPECT_EQ(stats.worst_absmax, absmax);
  }
  test::for_each_target([&](const std::string& target) { EXPECT_EQ(compare(reference, test), stats) << target; });
}

// A reference, and what a quantization of about 10 % error makes of it.
std::pair<std::vector<float>, std::vector<float>> pair_of(std::size_t n, float scale) {
  std::vector<float> reference = test::normal_weights(n, static_cast<unsigned>(n) + 1, scale);
  std::vector<float> test = test::normal_weights(n, static_cast<unsigned>(n) + 2, 0.1f * scale);
  for (std::size_t i = 0; i < n; ++i) test[i] = i % 7 == 3 ? reference[i] : reference[i] + test[i];
  for (std::size_t i = 0; i < n; i += 11) reference[i] = i % 2 == 0 ? 0.0f : -0.0f;
  return {std::move(reference), std::move(test)};
}

TEST(Compare, SumsAreThoseOfTheFormulas) {
  for (const std::size_t n : sizes)
    for (const float scale : {1e-42f, 1e-30f, 1e-18f, 1e-9f, 1e-4f, 0.02f, 1.0f, 1e5f, 1e14f, 1e18f, 1e30f, 1e37f}) {
      const auto [reference, test] = pair_of(n, scale);
      expect_sums(reference, test, std::to_string(scale));
    }
}

// An int8 or fp16 cast, whose errors are far below the weights, and a test that has nothing to do with them.
TEST(Compare, ErrorsOfAnySize) {
  for (const std::size_t n : sizes)
    for (const float size : {1e-7f, 1e-5f, 1e-3f, 10.0f, 1e6f}) {
      const std::vector<float> reference = test::normal_weights(n, 1);
      std::vector<float> test = test::normal_weights(n, 2, size);
      for (std::size_t i = 0; i < n; ++i) test[i] += reference[i];
      expect_sums(reference, test, "errors of " + std::to_string(size));
    }
}

TEST(Compare, NonfiniteWeightsAreCountedAndLeftOut) {
  for (const std::size_t n : sizes) {
    if (n == 0) continue;
    for (const float special : {nan, -nan, infinity, -infinity}) {
      for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
        auto [reference, test] = pair_of(n, 1);
        reference[at] = special;
        expect_sums(reference, test, "in the reference");
        test[at] = special;
        expect_sums(reference, test, "in both");
        test[n - 1 - at] = special;
        reference[at] = 1;
        expect_sums(reference, test, "in the test");
      }
    }
    const auto [reference, test] = pair_of(n, 1);
    const std::vector<float> nothing(n, nan);
    expect_sums(nothing, test, "no reference");
    expect_sums(reference, nothing, "no test");
    const ErrorStats none = compare(reference, nothing);
    EXPECT_EQ(none.nan, n);
    EXPECT_EQ(none.count, 0U);
    EXPECT_TRUE(std::isnan(none.rmse()) && std::isnan(none.sqnr_db()) && std::isnan(none.cosine()));
  }
}

TEST(Compare, ZerosAndSubnormals) {
  for (const std::size_t n : sizes) {
    const std::vector<float> zeros(n, 0.0f);
    const std::vector<float> negative(n, -0.0f);
    const std::vector<float> smallest(n, subnormal);
    const std::vector<float> ones(n, 1.0f);
    expect_sums(zeros, negative, "zeros");
    expect_sums(zeros, ones, "for zeros");
    expect_sums(ones, zeros, "to zeros");
    expect_sums(smallest, zeros, "from subnormals");
    expect_sums(zeros, smallest, "to subnormals");
    expect_sums(ones, negative, "to -0");
    EXPECT_EQ(compare(zeros, negative).square, 0.0);
    EXPECT_EQ(compare(zeros, ones).nonzero, 0U);
  }
}

// Squares that fp32 cannot hold, beside weights whose squares it can: the smallest error is still none but 0.
TEST(Compare, TinyErrorsBesideLargeWeights) {
  for (const std::size_t n : sizes) {
    if (n == 0) continue;
    std::vector<float> reference(n, 1.0f);
    reference[n / 2] = 1e-25f;
    std::vector<float> test = reference;
    test[n / 2] = 3e-25f;
    expect_sums(reference, test, "one tiny error");
    const ErrorStats stats = compare(reference, test);
    EXPECT_EQ(stats.max_abs_at, n / 2);
    EXPECT_TRUE(std::isfinite(stats.sqnr_db()));
    EXPECT_GT(stats.rmse(), 0);
    if (n == 1) continue;
    reference[n / 2] = 0;
    test[n / 2] = subnormal;
    expect_sums(reference, test, "the tiniest");
    EXPECT_TRUE(std::isfinite(compare(reference, test).sqnr_db()));
  }
}

TEST(Compare, LargestNumbersDoNotOverflow) {
  constexpr float largest = std::numeric_limits<float>::max();
  for (const std::size_t n : sizes) {
    if (n == 0) continue;
    const std::vector<float> reference(n, largest);
    const std::vector<float> test(n, -largest);
    expect_sums(reference, test, "fp32's largest");
    EXPECT_NEAR(compare(reference, test).rmse(), 2.0 * largest, 1e-9 * largest);
    EXPECT_NEAR(compare(reference, test).cosine(), -1, 1e-12);
  }
}

TEST(Compare, EqualWeightsHaveNoError) {
  for (const std::size_t n : sizes) {
    const std::vector<float> weights = pair_of(n, 0.02f).first;
    const ErrorStats stats = compare(weights, weights);
    EXPECT_EQ(stats.max_abs, 0);
    if (n < 3) continue;
    EXPECT_EQ(stats.rmse(), 0);
    EXPECT_EQ(stats.sqnr_db(), std::numeric_limits<double>::infinity());
    EXPECT_EQ(stats.cosine(), 1);
    EXPECT_EQ(stats.mean_rel(), 0);
    EXPECT_EQ(stats.rel_rmse(), 0);
  }
  const std::vector<float> zeros(3, 0.0f);
  EXPECT_EQ(compare(zeros, zeros).relative_square(), 0);
}

TEST(Compare, NothingHasNoFigures) {
  const ErrorStats stats = compare({}, {});
  EXPECT_EQ(stats, ErrorStats());
  for (const double figure :
       {stats.mae(), stats.rmse(), stats.rel_rmse(), stats.sqnr_db(), stats.cosine(), stats.mean_rel()})
    EXPECT_TRUE(std::isnan(figure));
}

TEST(Compare, FiguresByHand) {
  const std::vector<float> reference{3, -4, 0, 0}, test{3, -2, 1, 0};
  const ErrorStats stats = compare(reference, test);
  EXPECT_DOUBLE_EQ(stats.mae(), 0.75);
  EXPECT_DOUBLE_EQ(stats.rmse(), std::sqrt(1.25));
  EXPECT_DOUBLE_EQ(stats.rel_rmse(), std::sqrt(5.0 / 25));
  EXPECT_EQ(stats.relative_square(), 5.0 / 25);
  EXPECT_DOUBLE_EQ(stats.sqnr_db(), 10 * std::log10(25.0 / 5));
  EXPECT_DOUBLE_EQ(stats.cosine(), 17 / std::sqrt(25.0 * 14));
  EXPECT_DOUBLE_EQ(stats.mean_rel(), 0.25);
  EXPECT_EQ(stats.max_abs, 2);
  EXPECT_EQ(stats.max_abs_at, 1U);
}

// A reference of zeros has no relative error; what stands for it is as wrong as can be.
TEST(Compare, ErrorsOfZerosAreInfinitelyLarge) {
  const ErrorStats stats = compare(std::vector<float>(100, 0.0f), std::vector<float>(100, 1.0f));
  EXPECT_EQ(stats.sqnr_db(), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(stats.relative_square(), std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(stats.cosine()));
  EXPECT_TRUE(std::isnan(stats.mean_rel()));
}

// However much smaller or larger: the sums are rounded, and a cosine must not show it, nor be above 1.
TEST(Compare, CosineOfParallelWeights) {
  for (const std::size_t n : {std::size_t{5}, std::size_t{4096}, std::size_t{3 * 4096 + 17}})
    for (unsigned seed = 0; seed < 20; ++seed) {
      const std::vector<float> reference = test::normal_weights(n, seed);
      for (const float factor : {1e-30f, 1e-20f, 1e-6f, 1e-3f, 0.5f, 1.0000001f, 3.0f, 1e6f, 1e20f}) {
        for (const float sign : {1.0f, -1.0f}) {
          std::vector<float> test = reference;
          for (float& weight : test) weight *= sign * factor;
          const double cosine = compare(reference, test).cosine();
          EXPECT_LE(std::abs(cosine), 1) << factor;
          EXPECT_NEAR(cosine, sign, 1e-6) << factor;
        }
      }
    }
}

// What is missing from 1 is told to all its digits: fp16 and int8 differ there.
TEST(Compare, CosineNearOne) {
  const std::vector<float> reference = test::normal_weights(50'000, 1);
  for (const double size : {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.4, 0.49, 0.51, 0.6, 1.0, 2.0, 100.0}) {
    std::vector<float> test = test::normal_weights(50'000, 2, static_cast<float>(size));
    for (std::size_t i = 0; i < test.size(); ++i) test[i] += reference[i];
    const Sums sums(reference, test);
    // 1 - cos is sin^2 / (1 + cos): the part of e that is not along w, over t.
    const double along = sums.product - sums.reference;
    const double sine2 = (sums.square - along * along / sums.reference) / sums.test;
    const double expected = sine2 / (1 + std::sqrt(1 - sine2));
    EXPECT_NEAR(1 - compare(reference, test).cosine(), expected, 1e-5 * expected + 1e-15) << size;
  }
}

TEST(Compare, FirstOfTheLargestErrorsIsNamed) {
  for (const std::size_t n : sizes)
    for (const std::size_t first : {std::size_t{0}, n / 3, n - 1}) {
      if (n == 0) continue;
      const std::vector<float> reference(n, 1.0f);
      std::vector<float> test(n, 1.25f);
      for (std::size_t i = first; i < n; i += 5) test[i] = i % 2 == 0 ? 3.0f : -1.0f;
      const ErrorStats stats = compare(reference, test, 40'960);
      EXPECT_EQ(stats.max_abs, 2);
      EXPECT_EQ(stats.max_abs_at, 40'960 + first) << n;
    }
}

// Ties within a tile and beyond it; small numbers are summed in another way.
TEST(Compare, WorstBlockIsTheFirstOfTheLargestSums) {
  for (const float scale : {1.0f, 0x1p-90f}) {
    const std::vector<float> reference(3 * 4096 + 17, scale);
    for (const std::size_t block : {0U, 1U, 62U, 63U, 64U, 100U, 190U}) {
      std::vector<float> test = reference;
      test[200] = 7 * scale;  // more than any weight of the block, less than all of them
      for (const std::size_t each : {block, block + 1, std::size_t{191}})
        for (std::size_t i = 0; i < 64; ++i) test[64 * each + i] = 0.0f;
      const ErrorStats stats = compare(reference, test, 8192);
      EXPECT_EQ(stats.worst_square, 64.0 * scale * scale);
      EXPECT_EQ(stats.worst_square_at, 8192 + 64 * block);
      EXPECT_EQ(stats.worst_rmse(), scale);
      EXPECT_EQ(stats.worst_absmax, scale);
    }
  }
}

// One tile after the other gives the very same sums, which is how measure() has them from many threads.
TEST(Compare, TilesAddUpToTheWhole) {
  auto [reference, test] = pair_of(20 * 4096 + 17, 1);
  reference[5000] = nan;
  test[9000] = infinity;
  for (std::size_t i = 12 * 4096; i < 13 * 4096; ++i) reference[i] = 0;
  const ErrorStats whole = compare(reference, test);
  ErrorStats sum;
  for (std::size_t i = 0; i < reference.size(); i += 4096) {
    const std::size_t n = std::min<std::size_t>(4096, reference.size() - i);
    sum.add(compare(std::span(reference).subspan(i, n), std::span(test).subspan(i, n), i));
  }
  EXPECT_EQ(sum, whole);
  // Pieces of several tiles associate otherwise: equal but for the last bits of fp64.
  ErrorStats pieces;
  for (std::size_t i = 0; i < reference.size(); i += 3 * 4096) {
    const std::size_t n = std::min<std::size_t>(3 * 4096, reference.size() - i);
    pieces.add(compare(std::span(reference).subspan(i, n), std::span(test).subspan(i, n), i));
  }
  EXPECT_EQ(pieces.max_abs_at, whole.max_abs_at);
  EXPECT_EQ(pieces.worst_square_at, whole.worst_square_at);
  EXPECT_NEAR(pieces.square, whole.square, 1e-14 * whole.square);
}

// In 32 lanes 128 products of a tile are added up in fp32: as many roundings, those of the lanes, a product and e.
TEST(CompareSquares, SumsAreThoseOfTheFormulas) {
  constexpr double bound = 135 * 0x1p-24;
  for (const std::size_t n : {0U, 1U, 63U, 64U, 65U, 127U, 4095U, 4096U})
    for (const float scale : {1e-42f, 1e-30f, 1e-4f, 0.02f, 1e5f, 1e18f, 1e37f})
      for (const bool has_nan : {false, true}) {
        auto pair = pair_of(n, scale);
        const auto& reference = pair.first;
        auto& test = pair.second;
        if (has_nan && n > 0) test[n / 2] = nan;
        SCOPED_TRACE(std::to_string(scale) + ", " + std::to_string(n) + " weights");
        const Sums expected(reference, test);
        const ErrorSums found = compare_squares(reference, test);
        EXPECT_EQ(found.count, expected.count);
        EXPECT_NEAR(found.square, expected.square, bound * expected.square);
        EXPECT_NEAR(found.reference, expected.reference, bound * expected.reference);
        EXPECT_NEAR(found.test, expected.test, bound * expected.test);
        EXPECT_NEAR(found.product, expected.product, bound * (expected.reference + expected.test));
        test::for_each_target(
            [&](const std::string& target) { EXPECT_EQ(compare_squares(reference, test), found) << target; });
      }
}

// What docs/measure.md says of int8 and casts.
TEST(CompareSquares, OfATensorAreRightToOneInAMillion) {
  ErrorSums expected, found;
  for (unsigned tile = 0; tile < 64; ++tile) {
    const std::vector<float> reference = test::normal_weights(4096, tile, 0.02f);
    std::vector<float> test(reference);
    for (float& weight : test) weight = bf16::to_float(bf16::from_float(weight));
    const Sums sums(reference, test);
    expected.add({sums.count, sums.square, sums.product, sums.reference, sums.test});
    found.add(compare_squares(reference, test));
  }
  EXPECT_NEAR(found.square, expected.square, 1e-6 * expected.square);
  EXPECT_NEAR(found.product, expected.product, 1e-6 * expected.product);
  EXPECT_NEAR(found.reference, expected.reference, 1e-6 * expected.reference);
  EXPECT_NEAR(found.test, expected.test, 1e-6 * expected.test);
}

TEST(Compare, SizesHaveToAgree) {
  const std::vector<float> four(4), five(5);
  try {
    (void)compare(four, five);
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::usage);
    EXPECT_STREQ(error.what(), "4 weights cannot be compared with 5");
  }
}

// ---- what weights are like ---------------------------------------------------------------------------------------

void expect_description(const std::vector<float>& weights, const std::string& what) {
  SCOPED_TRACE(what + ", " + std::to_string(weights.size()) + " weights");
  const float pivot = choose_pivot(weights);
  const WeightStats stats = describe(weights, pivot);
  const Vector all = vector_of(weights);
  const Vector w = xt::filter(all, xt::isfinite(all));
  EXPECT_EQ(stats.count, w.size());
  EXPECT_EQ(stats.nan, Sums::count_if(all, [](double x) { return std::isnan(x); }));
  EXPECT_EQ(stats.inf, Sums::count_if(all, [](double x) { return std::isinf(x); }));
  EXPECT_EQ(stats.blocks, (weights.size() + metric_block - 1) / metric_block);
  Vector absmax = xt::zeros<double>({stats.blocks});
  for (std::size_t i = 0; i < weights.size(); ++i)
    if (std::isfinite(weights[i])) absmax(i / metric_block) = std::max(absmax(i / metric_block), std::abs(all(i)));
  if (stats.blocks > 0) {
    EXPECT_EQ(stats.absmax_min, xt::amin(absmax)());
    EXPECT_EQ(stats.absmax_max, xt::amax(absmax)());
    EXPECT_NEAR(stats.absmax_mean(), xt::mean(absmax)(), 1e-12 * xt::mean(absmax)());
    EXPECT_NEAR(stats.absmax_std(), xt::stddev(absmax)(), 2e-7 * xt::mean(absmax)());
  }
  test::for_each_target([&](const std::string& target) { EXPECT_EQ(describe(weights, pivot), stats) << target; });
  if (w.size() == 0) {
    EXPECT_TRUE(std::isnan(stats.mean()) && std::isnan(stats.rms()) && std::isnan(stats.kurtosis()));
    return;
  }
  const double mean = xt::mean(w)();
  const double rms = std::sqrt(xt::mean(w * w)());
  const Vector x = w - mean;
  const double variance = xt::mean(x * x)();
  EXPECT_NEAR(stats.mean(), mean, tolerance * rms);
  EXPECT_NEAR(stats.rms(), rms, tolerance * rms);
  if (variance > 1e-9 * rms * rms) {
    const double kurtosis = xt::mean(x * x * x * x)() / (variance * variance);
    EXPECT_NEAR(stats.kurtosis(), kurtosis, 4 * tolerance * kurtosis);
  }
}

TEST(Describe, FiguresAreThoseOfTheFormulas) {
  for (const std::size_t n : sizes)
    for (const float scale : {1e-42f, 1e-30f, 1e-12f, 1e-4f, 0.02f, 1.0f, 1e6f, 1e9f, 1e30f, 1e37f}) {
      std::vector<float> weights = test::normal_weights(n, static_cast<unsigned>(n), scale);
      expect_description(weights, "normal, " + std::to_string(scale));
      for (float& weight : weights) weight += 3 * scale;
      expect_description(weights, "shifted, " + std::to_string(scale));
    }
}

TEST(Describe, NonfiniteWeightsAreCountedAndLeftOut) {
  for (const std::size_t n : sizes)
    for (const float special : {nan, infinity, -infinity}) {
      std::vector<float> weights = test::normal_weights(n, 1);
      if (n > 0) weights[n / 2] = special;
      expect_description(weights, "one");
      expect_description(std::vector<float>(n, special), "all");
    }
}

TEST(Describe, KurtosisOfNormalWeightsIsThree) {
  const std::vector<float> weights = test::normal_weights(1 << 20, 3, 0.02f);
  // The standard deviation of the estimate is sqrt(24 / n) = 0.0048.
  EXPECT_NEAR(describe(weights, choose_pivot(weights)).kurtosis(), 3, 0.02);
  EXPECT_NEAR(describe(weights, 0).kurtosis(), 3, 0.02);
}

// The weights of a LayerNorm: the moments are small differences of large sums, unless they are about the mean.
TEST(Describe, KurtosisAboutAMeanThatIsNotZero) {
  std::vector<float> weights = test::normal_weights(1 << 20, 4, 0.01f);
  for (float& weight : weights) weight += 1;
  const WeightStats stats = describe(weights, choose_pivot(weights));
  EXPECT_NEAR(stats.kurtosis(), 3, 0.02);
  EXPECT_NEAR(stats.mean(), 1, 5e-5);
  EXPECT_NEAR(stats.rms(), std::sqrt(1.0001), 5e-5);
}

TEST(Describe, WeightsThatAreAllEqualHaveNoKurtosis) {
  for (const float value : {0.0f, 1.0f, 0.1f, -1e-30f, subnormal, 3e38f})
    for (const std::size_t n : sizes) {
      const std::vector<float> weights(n, value);
      const WeightStats stats = describe(weights, choose_pivot(weights));
      EXPECT_TRUE(std::isnan(stats.kurtosis())) << value << ", " << n << " weights";
      if (n == 0) continue;
      EXPECT_FLOAT_EQ(static_cast<float>(stats.rms()), std::abs(value));
      EXPECT_FLOAT_EQ(static_cast<float>(stats.mean()), value);
    }
}

// The published mean of the absmax of 64 normal weights.
TEST(Describe, AbsmaxOfNormalBlocks) {
  const std::vector<float> weights = test::normal_weights(1 << 21, 5);
  const WeightStats stats = describe(weights, 0);
  EXPECT_NEAR(stats.absmax_mean(), 2.598, 0.416 / std::sqrt(32768.0) * 4);
  EXPECT_NEAR(stats.absmax_std(), 0.416, 0.01);
}

TEST(Describe, TilesAddUpToTheWhole) {
  std::vector<float> weights = test::normal_weights(20 * 4096 + 17, 6);
  weights[5000] = nan;
  for (std::size_t i = 12 * 4096; i < 13 * 4096; ++i) weights[i] = 0;
  const float pivot = choose_pivot(weights);
  WeightStats sum;
  sum.pivot = pivot;
  for (std::size_t i = 0; i < weights.size(); i += 4096)
    sum.add(describe(std::span(weights).subspan(i, std::min<std::size_t>(4096, weights.size() - i)), pivot));
  EXPECT_EQ(sum, describe(weights, pivot));
}

// In eight lanes, the same on every CPU target: a sum may differ from that of one value after the other by roundings.
TEST(SpreadOfValues, IsThatOfOneAfterTheOther) {
  for (const std::size_t n : {0U, 1U, 7U, 8U, 9U, 100U, 16384U}) {
    std::vector<float> values = test::normal_weights(n, 20);
    for (float& value : values) value = std::abs(value);
    Spread expected, found;
    for (const float value : values) expected.add(value);
    found.add(values);
    EXPECT_EQ(found.count, expected.count) << n;
    EXPECT_NEAR(found.sum, expected.sum, 1e-12 * expected.sum) << n;
    EXPECT_NEAR(found.square, expected.square, 1e-12 * expected.square) << n;
    EXPECT_EQ(found.min, expected.min) << n;
    EXPECT_EQ(found.max, expected.max) << n;
    test::for_each_target([&](const std::string& target) {
      Spread again;
      again.add(values);
      EXPECT_EQ(again, found) << n << ' ' << target;
    });
    if (n == 0) continue;
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      const float kept = std::exchange(values[at], 1e6f);
      Spread large;
      large.add(values);
      EXPECT_EQ(large.max, 1e6f) << at << " of " << n;
      values[at] = 1e-6f;
      Spread small;
      small.add(values);
      EXPECT_EQ(small.min, 1e-6f) << at << " of " << n;
      values[at] = kept;
    }
  }
}

TEST(ChoosePivot, IsTheMeanOfTheFirstFiniteWeights) {
  EXPECT_EQ(choose_pivot({}), 0.0f);
  EXPECT_EQ(choose_pivot(std::vector<float>{nan, infinity}), 0.0f);
  EXPECT_EQ(choose_pivot(std::vector<float>{nan, 2, 4, -infinity}), 3.0f);
  std::vector<float> weights(5000, 1.0f);
  weights[4096] = 1e9f;
  EXPECT_EQ(choose_pivot(weights), 1.0f);
  EXPECT_EQ(choose_pivot(std::vector<float>(4096, 3e38f)), 3e38f);
}

}  // namespace
}  // namespace nibble::metrics_test
