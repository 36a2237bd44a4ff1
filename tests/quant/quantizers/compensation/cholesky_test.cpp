#include "quant/quantizers/compensation/cholesky.hpp"

#include <gtest/gtest.h>

#include "core/workers.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/quantizers/compensation/reference.hpp"

namespace nibble::cholesky_test {
namespace {

TEST(Cholesky, TheFactorTimesItsTransposeIsTheMatrix) {
  for (const std::size_t k : std::initializer_list<std::size_t>{1, 2, 63, 64, 65, 200}) {
    const test::Numbers a = test::damped(test::second_moment(k, 2 * k, 1), k, 0.01);
    test::Numbers factored = a;
    ASSERT_EQ(factor_cholesky(factored, k), std::nullopt) << k;
    for (std::size_t r = 0; r < k; ++r)
      for (std::size_t c = 0; c < k; ++c) {
        double product = 0;
        for (std::size_t p = 0; p <= std::min(r, c); ++p) product += factored[r * k + p] * factored[c * k + p];
        if (c <= r) {
          ASSERT_NEAR(product, a[r * k + c], 1e-13 * std::sqrt(a[r * k + r] * a[c * k + c]))
              << k << ' ' << r << ' ' << c;
        } else {
          ASSERT_EQ(factored[r * k + c], a[r * k + c]) << "the upper triangle";
        }
      }
  }
}

TEST(Cholesky, BitsDependNeitherOnTheTargetNorOnThreads) {
  constexpr std::size_t k = 150;
  const test::Numbers a = test::damped(test::second_moment(k, k, 2), k, 0.01);
  test::Numbers expected = a;
  ASSERT_FALSE(factor_cholesky(expected, k));
  test::for_each_target([&](const std::string& target) {
    for (const unsigned threads : {1U, 3U}) {
      test::Numbers factored = a;
      Workers(threads).execute([&] { ASSERT_FALSE(factor_cholesky(factored, k)); });
      EXPECT_EQ(factored, expected) << target << ", " << threads;
    }
  });
}

TEST(Cholesky, NamesTheColumnWhosePivotIsNotPositive) {
  constexpr std::size_t k = 100;
  for (const std::size_t column : std::initializer_list<std::size_t>{0, 40, 99}) {
    test::Numbers a = test::damped(test::second_moment(k, 2 * k, 3), k, 0.01);
    a[column * k + column] = -1;
    EXPECT_EQ(factor_cholesky(a, k), column);
  }
  test::Numbers zero(1);
  EXPECT_EQ(factor_cholesky(zero, 1), 0U);
}

TEST(Cholesky, TellsHowMuchIsDone) {
  constexpr std::size_t k = 256;
  const test::Numbers a = test::damped(test::second_moment(k, k, 4), k, 0.01);
  std::vector<double> told;
  test::Numbers factored = a;
  ASSERT_FALSE(factor_cholesky(factored, k, [&](double share) { told.push_back(share); }));
  // Half of the work is done when half of the columns are.
  EXPECT_EQ(told, (std::vector{0.15625, 0.5, 0.84375, 1.0}));
  test::Numbers stopped = a;
  EXPECT_THROW((void)factor_cholesky(stopped, k, [](double) { throw 1; }), int);
}

}  // namespace
}  // namespace nibble::cholesky_test
