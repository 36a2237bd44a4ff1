#include "cli/measurement/judgement.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nibble::cli::judgement_test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

MeasuredWeights weights(DType dtype = DType::f32) {
  MeasuredWeights made;
  made.info = {"w", dtype, {1}};
  return made;
}

MeasuredError error(double db, double expected) {
  MeasuredError made;
  made.stats.count = 1;
  made.stats.reference = 1;
  made.stats.square = std::isinf(db) ? 0 : std::pow(10, -db / 10);
  made.normal_sqnr_db = expected;
  return made;
}

TEST(Judgement, IsByTheMargin) {
  EXPECT_EQ(judge(weights(), error(17.8, 20.7)), Judgement::expected);
  EXPECT_EQ(judge(weights(), error(17.6, 20.7)), Judgement::worse);
  EXPECT_EQ(judge(weights(), error(infinity, 20.7)), Judgement::expected);
  EXPECT_EQ(judge(weights(), error(50, std::nan(""))), Judgement::unknown);
}

// fp32 is exact for every type but fp64, which it rounds.
TEST(Judgement, OfWhatShouldBeExact) {
  EXPECT_EQ(judge(weights(), error(150, infinity)), Judgement::worse);
  EXPECT_EQ(judge(weights(DType::f64), error(150, infinity)), Judgement::unknown);
  EXPECT_EQ(judge(weights(DType::f64), error(10, 20.7)), Judgement::worse);
}

TEST(Judgement, WhatNoFigureTellsOfIsBroken) {
  MeasuredError lost = error(30, 20.7);
  lost.stats.lost = 1;
  EXPECT_EQ(judge(weights(), lost), Judgement::broken);
  MeasuredError nan = error(30, 20.7);
  nan.stats.nan = 1;
  EXPECT_EQ(judge(weights(), nan), Judgement::broken);
  // All NaN, and numbers now.
  MeasuredWeights of_nan = weights();
  of_nan.stats.nan = 1;
  EXPECT_EQ(judge(of_nan, error(infinity, 20.7)), Judgement::broken);
  // All zeros, and not any more.
  MeasuredError from_zero = error(30, 20.7);
  from_zero.stats.reference = 0;
  EXPECT_EQ(judge(weights(), from_zero), Judgement::broken);
}

}  // namespace
}  // namespace nibble::cli::judgement_test
