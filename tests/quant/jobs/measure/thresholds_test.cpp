#include "nibble/thresholds.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::thresholds_test {
namespace {

using Figure = Threshold::Figure;
using test::error_of;

TEST(Threshold, FiguresHaveNames) {
  EXPECT_EQ(to_string(Figure::max_rmse), "max-rmse");
  EXPECT_EQ(to_string(Figure::min_sqnr_db), "min-sqnr");
  EXPECT_EQ(to_string(Figure::min_cosine), "min-cosine");
}

// Tensors named a, b, ... with these figures, for one candidate.
Measurement measurement_of(const std::vector<ErrorStats>& stats) {
  Measurement measurement;
  MeasuredCandidate& candidate = measurement.candidates.emplace_back();
  for (std::size_t t = 0; t < stats.size(); ++t) {
    measurement.tensors.emplace_back().info.name = std::string(1, static_cast<char>('a' + t));
    candidate.tensors.emplace_back().emplace().stats = stats[t];
  }
  return measurement;
}

// An error at right angles to a weight of 1.
ErrorStats error_of_rmse(double rmse) {
  ErrorStats stats;
  stats.count = stats.nonzero = 1;
  stats.square = rmse * rmse;
  stats.product = stats.reference = 1;
  stats.test = 1 + rmse * rmse;
  stats.magnitude = stats.max_abs = rmse;
  return stats;
}

std::vector<std::size_t> tensors_that_break(const Measurement& measurement, Figure figure, double limit,
                                            const std::string& pattern = "") {
  std::vector<std::size_t> tensors;
  for (const Violation& violation : violations(measurement, {{figure, limit, pattern}}))
    tensors.push_back(violation.tensor);
  return tensors;
}

using Tensors = std::vector<std::size_t>;

TEST(Violations, LimitsThemselvesAreKept) {
  const Measurement measurement = measurement_of({error_of_rmse(0.5), error_of_rmse(0.25), error_of_rmse(0.125)});
  EXPECT_EQ(tensors_that_break(measurement, Figure::max_rmse, 0.25), (Tensors{0}));
  EXPECT_EQ(tensors_that_break(measurement, Figure::max_rmse, 0.2), (Tensors{0, 1}));
  const double db = error_of_rmse(0.25).sqnr_db();
  EXPECT_EQ(tensors_that_break(measurement, Figure::min_sqnr_db, db), (Tensors{0}));
  EXPECT_EQ(tensors_that_break(measurement, Figure::min_sqnr_db, db + 1e-9), (Tensors{0, 1}));
  EXPECT_EQ(tensors_that_break(measurement, Figure::min_cosine, error_of_rmse(0.25).cosine()), (Tensors{0}));
  EXPECT_EQ(tensors_that_break(measurement, Figure::min_cosine, 1.0), (Tensors{0, 1, 2}));
}

TEST(Violations, PatternsMatchWholeNames) {
  Measurement measurement = measurement_of({error_of_rmse(1), error_of_rmse(1), error_of_rmse(1)});
  measurement.tensors[2].info.name = "aa";
  EXPECT_EQ(tensors_that_break(measurement, Figure::max_rmse, 0.5, "a"), (Tensors{0}));
  EXPECT_EQ(tensors_that_break(measurement, Figure::max_rmse, 0.5, "a+"), (Tensors{0, 2}));
  EXPECT_EQ(error_of([&] { tensors_that_break(measurement, Figure::min_cosine, 1, "c"); }, Errc::usage),
            "min-cosine 'c' matches no tensor");
  measurement.tensors[1].info.name = "layer.b";
  measurement.candidates[0].missing = {"layer.c"};
  EXPECT_EQ(error_of([&] { tensors_that_break(measurement, Figure::min_cosine, 1, "layer"); }, Errc::usage),
            "min-cosine 'layer' matches no tensor as a whole name; 'layer.*' matches 2");
  EXPECT_EQ(error_of([&] { tensors_that_break(measurement, Figure::max_rmse, 1, "("); }, Errc::usage),
            "max-rmse '(' is not a regular expression: missing ): (");
}

TEST(Violations, ComeByThresholdThenCandidateThenTensor) {
  Measurement measurement = measurement_of({error_of_rmse(1), error_of_rmse(2)});
  measurement.candidates.push_back(measurement.candidates[0]);
  const auto found = violations(measurement, {{Figure::max_rmse, 0.5, ""}, {Figure::min_sqnr_db, 1, "b"}});
  ASSERT_EQ(found.size(), 6U);
  const std::size_t expected[6][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 1}, {1, 1}};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(found[i].candidate, expected[i][0]) << i;
    EXPECT_EQ(found[i].tensor, expected[i][1]) << i;
    EXPECT_EQ(found[i].threshold.figure, i < 4 ? Figure::max_rmse : Figure::min_sqnr_db);
  }
  EXPECT_EQ(found[1].value, 2);
}

// Whoever sets a limit wants to hear of a tensor that is gone, not to pass for it.
TEST(Violations, WhatIsMissingBreaksEveryLimit) {
  Measurement measurement = measurement_of({error_of_rmse(0.1)});
  measurement.candidates[0].missing = {"gone.weight"};
  for (const std::string pattern : {"", "gone.*"}) {
    const auto found = violations(measurement, {{Figure::max_rmse, 1, pattern}});
    ASSERT_EQ(found.size(), 1u) << pattern;
    EXPECT_EQ(found[0].name, "gone.weight");
    EXPECT_EQ(found[0].tensor, 1u);
    EXPECT_TRUE(std::isnan(found[0].value));
  }
  EXPECT_TRUE(violations(measurement, {{Figure::max_rmse, 1, "a"}}).empty());
}

// As many as before are no excuse if they are others.
TEST(Violations, LostWeightsBreakEveryLimit) {
  ErrorStats stats = error_of_rmse(0);
  stats.nan = stats.lost = 1;
  Measurement measurement = measurement_of({stats});
  measurement.tensors[0].stats.nan = 1;
  EXPECT_EQ(tensors_that_break(measurement, Figure::max_rmse, 1), (Tensors{0}));
}

// A limit is no good if it cannot be broken by a tensor that is no good at all.
TEST(Violations, WhatCannotBeSaidBreaksEveryLimit) {
  const ErrorStats empty;
  ErrorStats exact;
  exact.count = exact.nonzero = 1;
  exact.reference = 1;
  ErrorStats all_nan;
  all_nan.nan = 5;
  ErrorStats of_zeros;
  of_zeros.count = 1;
  of_zeros.square = of_zeros.max_abs = 1;
  ErrorStats one_nan = exact;
  one_nan.nan = 1;
  Measurement measurement = measurement_of({empty, exact, all_nan, of_zeros, one_nan, exact});
  measurement.candidates[0].tensors[5].reset();  // that the candidate lacks
  EXPECT_EQ(tensors_that_break(measurement, Figure::max_rmse, 1e-9), (Tensors{2, 3, 4}));
  EXPECT_EQ(tensors_that_break(measurement, Figure::min_sqnr_db, 10), (Tensors{2, 3, 4}));
  EXPECT_EQ(tensors_that_break(measurement, Figure::min_cosine, 0.5), (Tensors{2, 3, 4}));
  // The very same NaN in the reference: it was not made worse.
  for (MeasuredWeights& tensor : measurement.tensors) tensor.stats.nan = 5;
  EXPECT_EQ(tensors_that_break(measurement, Figure::min_cosine, 0.5), (Tensors{3}));
}

}  // namespace
}  // namespace nibble::thresholds_test
