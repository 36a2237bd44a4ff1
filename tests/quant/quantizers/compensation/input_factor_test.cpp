#include "quant/quantizers/compensation/input_factor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nibble/error.hpp"
#include "tests/quant/codecs/codec_support.hpp"
#include "tests/quant/quantizers/compensation/reference.hpp"

namespace nibble::input_factor_test {
namespace {

InputFactor factor_of(test::Numbers h, std::size_t k, const InputFactor::Options& options = {}) {
  return InputFactor(h, k, options);
}

// U[i, j] / U[j, j], by position.
float element(const InputFactor& factor, std::size_t i, std::size_t j) { return factor.tile(j / 64)[i * 64 + j % 64]; }

std::string error_of(const test::Numbers& h, std::size_t k, const InputFactor::Options& options = {}) {
  try {
    factor_of(h, k, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

// transposed(inverse(U)) is the Cholesky factor of the inverse, so U is the inverse of the reference's factor.
TEST(InputFactor, IsThatOfTheInverse) {
  for (const auto order : {ColumnOrder::stored, ColumnOrder::largest}) {
    constexpr std::size_t k = 96;
    const test::Numbers h = test::second_moment(k, k / 2, 1, 3);  // singular, and the first three inputs are always 0
    const InputFactor factor = factor_of(h, k, {32, order});
    const test::Numbers full = test::damped(h, k, 0.01);
    const test::Numbers of_inverse = test::factor_of_inverse(full, factor.order());
    // inverse(U) by substitution, from the last row up.
    test::Numbers u(k * k);
    for (std::size_t j = 0; j < k; ++j)
      for (std::size_t i = j + 1; i-- > 0;) {
        double sum = i == j ? 1 : 0;
        for (std::size_t p = i + 1; p <= j; ++p) sum -= of_inverse[i * k + p] * u[p * k + j];
        u[i * k + j] = sum / of_inverse[i * k + i];
      }
    double largest = 0;
    for (std::size_t j = 0; j < k; ++j) largest = std::max(largest, u[j * k + j] * u[j * k + j]);
    for (std::size_t j = 0; j < k; ++j) {
      EXPECT_NEAR(factor.importance()[j], u[j * k + j] * u[j * k + j] / largest, 1e-6) << j;
      for (std::size_t i = 0; i < 64 * (j / 64 + 1); ++i) {
        const double expected = i < j ? u[i * k + j] / u[j * k + j] : 0;
        EXPECT_NEAR(element(factor, i, j), expected, 1e-6 * (1 + std::abs(expected))) << i << ' ' << j;
      }
    }
    EXPECT_EQ(factor.damping(), 0.01);
  }
}

TEST(InputFactor, OrdersBlocksAndTheirColumnsByTheirInputs) {
  constexpr std::size_t k = 96;
  test::Numbers h(k * k);
  for (std::size_t i = 0; i < k; ++i) h[i * k + i] = i == 70 ? 50 : i == 40 ? 20 : 1;
  const InputFactor factor = factor_of(h, k, {32, ColumnOrder::largest});
  std::vector<std::uint32_t> expected{70};
  for (std::uint32_t c = 64; c < 96; ++c)
    if (c != 70) expected.push_back(c);
  expected.push_back(40);
  for (std::uint32_t c = 32; c < 64; ++c)
    if (c != 40) expected.push_back(c);
  for (std::uint32_t c = 0; c < 32; ++c) expected.push_back(c);
  EXPECT_EQ(std::vector(factor.order().begin(), factor.order().end()), expected);
}

TEST(InputFactor, InputsThatAreAlwaysZeroPassNothingOn) {
  constexpr std::size_t k = 64;
  const InputFactor some = factor_of(test::second_moment(k, k, 2, 5), k), none = factor_of(test::Numbers(k * k), k);
  for (std::size_t j = 0; j < k; ++j)
    for (std::size_t i = 0; i < j; ++i) {
      EXPECT_TRUE(i >= 5 || element(some, i, j) == 0) << i << ' ' << j;
      EXPECT_EQ(element(none, i, j), 0);
    }
  EXPECT_EQ(none.importance()[0], 1);
}

TEST(InputFactor, ReadsTheUpperTriangleAlone) {
  constexpr std::size_t k = 64;
  test::Numbers h = test::second_moment(k, k, 3);
  const InputFactor whole = factor_of(h, k);
  for (std::size_t r = 0; r < k; ++r)
    for (std::size_t c = 0; c < r; ++c) h[r * k + c] = std::numeric_limits<double>::quiet_NaN();
  const InputFactor upper = factor_of(h, k);
  EXPECT_EQ(std::vector(upper.tile(0), upper.tile(0) + 64 * 64), std::vector(whole.tile(0), whole.tile(0) + 64 * 64));
}

TEST(InputFactor, DampsMoreUntilTheMatrixIsPositiveDefinite) {
  constexpr std::size_t k = 64;
  test::Numbers h(k * k);
  for (std::size_t i = 0; i < k; ++i) h[i * k + i] = 1;
  h[1] = 1.05;  // with 0.01 on the diagonal, the second pivot is 1.01 - 1.05^2 / 1.01; with 0.1 it is positive
  const InputFactor factor = factor_of(h, k);
  EXPECT_DOUBLE_EQ(factor.damping(), 0.1);
  EXPECT_NEAR(element(factor, 0, 1), 1.05 / 1.1, 1e-6);
  h[1] = 1.5;
  EXPECT_EQ(factor_of(h, k).damping(), 1);
  h[1] = 3;
  EXPECT_EQ(error_of(h, k),
            "the second moment of the inputs is not positive definite, even with the mean of its diagonal added to the "
            "diagonal");
}

// The first attempt has factored all blocks but the last one when it fails.
TEST(InputFactor, BeginsAnewWithMoreDamping) {
  constexpr std::size_t k = 128;
  test::Numbers h = test::second_moment(k, 2 * k, 5);
  for (std::size_t i = 0; i < k; ++i) {
    const double root = std::sqrt(h[i * k + i]);
    for (std::size_t j = 0; j < k; ++j) h[i * k + j] /= root, h[j * k + i] /= root;
  }
  h[1] = 1.2;
  const InputFactor found = factor_of(h, k), expected = factor_of(h, k, {.damping = found.damping()});
  EXPECT_GT(found.damping(), 0.01);
  EXPECT_EQ(found.damping(), expected.damping());
  for (std::size_t tile = 0; tile < 2; ++tile) {
    const std::size_t n = 64 * 64 * (tile + 1);
    EXPECT_EQ(std::vector(found.tile(tile), found.tile(tile) + n),
              std::vector(expected.tile(tile), expected.tile(tile) + n));
  }
}

TEST(InputFactor, NamesWhatItCannotUse) {
  constexpr std::size_t k = 64;
  test::Numbers h = test::second_moment(k, k, 4);
  EXPECT_EQ(error_of(h, k, {.blocksize = 128}),
            "compensation needs rows of whole blocks, but 64 columns are not a multiple of the block size 128");
  EXPECT_EQ(error_of(h, k - 1), "a second moment of 4096 numbers is not that of 63 inputs");
  EXPECT_EQ(error_of({}, 0), "a second moment of 0 numbers is not that of 0 inputs");
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double damping : {0.0, -0.01, std::numeric_limits<double>::quiet_NaN(), infinity})
    EXPECT_EQ(error_of(h, k, {.damping = damping}), "the damping of a second moment has to be a finite number above 0")
        << damping;
  h[5 * k + 9] = infinity;
  EXPECT_EQ(error_of(h, k), "the second moment of the inputs is not finite at [5, 9]");
  h[5 * k + 9] = 0;
  h[7 * k + 7] = -1;
  EXPECT_EQ(error_of(h, k), "the second moment of the inputs is negative at [7, 7], where it is a sum of squares");
}

TEST(InputFactor, KeepsWhatItSays) {
  // 1 + 2 tiles of 64 x 64 numbers, and 8 bytes per column.
  EXPECT_EQ(InputFactor::memory_bytes(128), 3U * 64 * 64 * 4 + 128 * 8);
  EXPECT_EQ(InputFactor::memory_bytes(96), 3U * 64 * 64 * 4 + 96 * 8);
  // The matrix and 68 numbers for each column come on top.
  EXPECT_EQ(InputFactor::making_bytes(96), InputFactor::memory_bytes(96) + (96 + 68) * 96 * 8);
}

}  // namespace
}  // namespace nibble::input_factor_test
