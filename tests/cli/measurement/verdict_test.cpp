#include "cli/measurement/verdict.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nibble::cli::verdict_test {
namespace {

MeasuredError error(double db, double expected = 20.7) {
  MeasuredError made;
  made.form = CodecSpec("nf4");
  made.stats.count = 1;
  made.stats.reference = 1;
  made.stats.square = std::isinf(db) ? 0 : std::pow(10, -db / 10);
  made.normal_sqnr_db = expected;
  return made;
}

// Texts of the verdicts on tensors "0", "1", ... of a plain model.
std::vector<std::string> texts(std::vector<MeasuredError> errors) {
  Measurement measurement;
  MeasuredCandidate& candidate = measurement.candidates.emplace_back();
  for (MeasuredError& each : errors) {
    MeasuredWeights& tensor = measurement.tensors.emplace_back();
    tensor.info = {std::to_string(measurement.tensors.size() - 1), DType::f32, {1}};
    tensor.form = DType::f32;
    candidate.tensors.emplace_back(std::move(each));
  }
  std::vector<std::string> found;
  for (const Verdict& verdict : verdicts(measurement, candidate)) found.push_back(verdict.text(measurement));
  return found;
}

using Texts = std::vector<std::string>;
constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(Verdict, AsExpected) {
  EXPECT_EQ(texts({error(20.7), error(20.12), error(20.5)}),
            (Texts{"nf4: 3 tensors at 20.1 to 20.7 dB, as expected (normal weights: 20.7 dB); worst: 1"}));
  EXPECT_EQ(texts({error(20.7)}), (Texts{"nf4: 1 tensor at 20.7 dB, as expected (normal weights: 20.7 dB); worst: 0"}));
}

TEST(Verdict, EveryFormHasItsOwn) {
  MeasuredError other = error(19.2, 19.2);
  other.form = CodecSpec("nf4:block-size=4096");
  EXPECT_EQ(texts({error(20.7), other}),
            (Texts{"nf4: 1 tensor at 20.7 dB, as expected (normal weights: 20.7 dB); worst: 0",
                   "nf4:block-size=4096: 1 tensor at 19.2 dB, as expected (normal weights: 19.2 dB); worst: 1"}));
}

TEST(Verdict, WorseThanExpected) {
  EXPECT_EQ(texts({error(17.71), error(17.69), error(30)}),
            (Texts{"nf4: 3 tensors at 17.7 to 30.0 dB, 1 worse than expected (normal weights: 20.7 dB); worst: 1"}));
}

TEST(Verdict, Broken) {
  MeasuredError lost = error(20);
  lost.stats.lost = lost.stats.nan = 1;
  EXPECT_EQ(texts({error(20), lost}),
            (Texts{"nf4: 2 tensors at 20.0 dB, 1 BROKEN (weights lost: NaN, infinite, beyond fp32, or not 0 where all "
                   "were 0) (normal weights: 20.7 dB); worst: 1"}));
}

TEST(Verdict, WhereAllAreBrokenThereIsNoRange) {
  MeasuredError lost = error(20);
  lost.stats.lost = lost.stats.inf = 1;
  const std::string broken =
      "BROKEN (weights lost: NaN, infinite, beyond fp32, or not 0 where all were 0) (normal weights: 20.7 dB); worst: ";
  EXPECT_EQ(texts({lost, lost}), (Texts{"nf4: 2 tensors, 2 " + broken + "0"}));
  EXPECT_EQ(texts({error(infinity), lost}), (Texts{"nf4: 2 tensors (1 exact), 1 " + broken + "1"}));
}

// Numbers where NaN was are no figure either: the first to look at.
TEST(Verdict, WhatHasNoFigureIsTheWorst) {
  MeasuredError repaired = error(infinity);
  repaired.stats.nan = 3;
  EXPECT_TRUE(texts({error(20), repaired}).front().ends_with("worst: 1"));
}

TEST(Verdict, ExactOrUnknown) {
  EXPECT_EQ(texts({error(infinity)}), (Texts{"nf4: 1 tensor without any error"}));
  EXPECT_EQ(texts({error(infinity, 20), error(20, 20)}),
            (Texts{"nf4: 2 tensors at 20.0 dB (1 exact), as expected (normal weights: 20.0 dB); worst: 1"}));
  EXPECT_EQ(texts({error(12, std::nan(""))}), (Texts{"nf4: 1 tensor at 12.0 dB; worst: 0"}));
}

// What is quantized comes first.
TEST(Verdict, OneForEachFormAndNoneForWhatWasKept) {
  MeasuredError cast = error(55, 55.6), kept = error(infinity);
  cast.form = DType::bf16;
  kept.form = DType::f32;
  EXPECT_EQ(texts({kept, cast, error(20)}),
            (Texts{"nf4: 1 tensor at 20.0 dB, as expected (normal weights: 20.7 dB); worst: 2",
                   "bfloat16: 1 tensor at 55.0 dB, as expected (normal weights: 55.6 dB); worst: 1"}));
  EXPECT_EQ(texts({kept}), Texts{});
}

}  // namespace
}  // namespace nibble::cli::verdict_test
