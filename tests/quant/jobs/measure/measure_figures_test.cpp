// Figures of unusual weights (NaN, infinity, numbers beyond fp32, none at all), of outlier columns, and of counts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "nibble/error.hpp"
#include "tests/quant/jobs/measure/measure_support.hpp"
#include "tests/support/conversion.hpp"

namespace nibble::measure_test {
namespace {

using test::checkpoint;
using test::Converted;
using test::converted;
using test::MemoryReader;
using test::plan;
using test::recipe;
using testing::IsEmpty;

TEST(Measure, NonfiniteWeightsAreCounted) {
  MemoryReader in;
  std::vector<float> weights = test::normal_weights(300'000, 1);
  weights[5] = nan;
  weights[200'000] = infinity;
  weights[200'001] = -infinity;
  add(in, "a.weight", DType::f32, {1000, 300}, weights);
  MemoryReader test;
  std::vector<float> other = weights;
  other[5] = 1;
  other[299'999] = nan;
  add(test, "a.weight", DType::f32, {1000, 300}, other);
  const Measurement found = measured(in, {checkpoint(test)});
  const MeasuredError& error = found.candidates[0].tensors[0].value();
  EXPECT_EQ(found.tensors[0].stats.nan, 1U);
  EXPECT_EQ(found.tensors[0].stats.inf, 2U);
  EXPECT_EQ(found.tensors[0].stats.count, 300'000U - 3);
  EXPECT_EQ(error.stats.nan, 1U);
  EXPECT_EQ(error.stats.inf, 2U);
  EXPECT_EQ(error.stats.count, 300'000U - 4);
  EXPECT_EQ(error.stats.square, 0);
  EXPECT_EQ(error.counts.exact, 300'000U - 4);
  EXPECT_THAT(error.counts.errors, IsEmpty());
  EXPECT_TRUE(std::isfinite(found.tensors[0].outlier_energy));
}

// All the way: one weight of 1e300 in a tensor of several tiles, in what convert() writes and in what it would write.
TEST(Measure, NumbersBeyondFp32AreFinite) {
  constexpr std::size_t weights = 10'000, at = 9'000;
  MemoryReader in;
  std::vector<double> values(weights, 0.5);
  values[at] = 1e300;
  values[2] = INFINITY;
  std::vector<std::byte> bytes(weights * sizeof(double));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  in.add({"a.weight", DType::f64, {100, 100}}, bytes);
  for (const char* const to : {"fp32", "fp16", "bf16"}) {
    Recipe how = recipe(to);
    how.on_overflow = OnOverflow::keep;
    const Converted out = converted(in, how);
    const Measurement found = measured(in, {plan(in, how), checkpoint(out.reader), checkpoint(in)});
    EXPECT_EQ(found.tensors[0].stats.inf, 1U) << to;
    EXPECT_EQ(found.tensors[0].stats.beyond_fp32, 1U) << to;
    EXPECT_EQ(found.tensors[0].stats.count, weights - 2) << to;
    for (const std::size_t c : {0U, 1U}) {
      const ErrorStats& stats = found.candidates[c].tensors[0]->stats;
      EXPECT_EQ(stats.lost, 1U) << to;
      EXPECT_EQ(stats.inf, 2U) << to;
      EXPECT_EQ(stats.square, 0) << to;
    }
    EXPECT_EQ(found.candidates[2].tensors[0]->stats.lost, 0U);
    EXPECT_EQ(found.candidates[2].tensors[0]->stats.inf, 1U);
    EXPECT_EQ(outcome_of(found.tensors[0], *found.candidates[2].tensors[0]), Outcome::kept);
  }
}

TEST(Measure, EmptyTensorsAndScalars) {
  MemoryReader in;
  in.add({"empty.weight", DType::f32, {0, 64}}, {});
  in.add({"thin.weight", DType::f32, {64, 0}}, {});
  add(in, "scalar", DType::f32, {}, {2.5f});
  in.add({"none", DType::bf16, {0}}, {});
  const Measurement found = measured(in, {checkpoint(in), plan(in, recipe("fp16"))});
  ASSERT_EQ(names(found), (std::vector<std::string>{"empty.weight", "thin.weight", "scalar", "none"}));
  for (const MeasuredCandidate& candidate : found.candidates) {
    EXPECT_TRUE(std::isnan(candidate.tensors[0]->stats.rmse()));
    EXPECT_EQ(candidate.tensors[2]->stats.count, 1U);
    EXPECT_EQ(candidate.tensors[2]->stats.square, 0);
  }
  EXPECT_FALSE(found.tensors[0].outlier_columns.has_value());
  EXPECT_FALSE(found.tensors[2].outlier_columns.has_value());
}

TEST(Measure, OutlierColumns) {
  MemoryReader in;
  std::vector<double> energy;
  for (const std::size_t columns : {4096U, 701U}) {  // units that end with a row, and units that do not
    const std::size_t rows = (std::size_t{1} << 21) / columns;
    std::vector<float> weights = test::normal_weights(rows * columns, 1);
    double all = 0, outliers = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const bool is_outlier = i % columns == 0 || i % columns == 77 || i % columns == columns - 1;
      if (is_outlier) weights[i] *= 20;
      const double square = static_cast<double>(weights[i]) * weights[i];
      all += square;
      outliers += is_outlier ? square : 0;
    }
    add(in, std::to_string(columns) + ".weight", DType::f32, {rows, columns}, weights);
    energy.push_back(outliers / all);
  }
  add(in, "plain.weight", DType::f32, {300, 700}, test::normal_weights(300 * 700, 2));
  add(in, "vector", DType::f32, {700}, test::normal_weights(700, 2));
  add(in, "wide.weight", DType::f32, {1, 65'537}, std::vector<float>(65'537, 1.0f));
  add(in, "widest.weight", DType::f32, {2, 65'536}, std::vector<float>(2 * 65'536, 1.0f));
  add(in, "zeros.weight", DType::f32, {8, 8}, std::vector<float>(64, 0.0f));
  const Measurement found = measured(in, {checkpoint(in)});
  for (const std::size_t t : {0U, 1U}) {
    EXPECT_EQ(found.tensors[t].outlier_columns, 3U);
    EXPECT_NEAR(found.tensors[t].outlier_energy, energy[t], 1e-6);
  }
  EXPECT_EQ(found.tensors[2].outlier_columns, 0U);
  EXPECT_EQ(found.tensors[2].outlier_energy, 0);
  EXPECT_FALSE(found.tensors[3].outlier_columns.has_value());
  EXPECT_FALSE(found.tensors[4].outlier_columns.has_value());
  EXPECT_EQ(found.tensors[5].outlier_columns, 0U);
  EXPECT_EQ(found.tensors[6].outlier_columns, 0U);
}

// 4 bits of which normal weights use 3.885: the figure is computed from four million weights by others.
TEST(Measure, EntropyOfTheCodesOfNormalWeights) {
  MemoryReader in;
  add(in, "a.q_proj.weight", DType::f32, {1024, 1024}, test::normal_weights(1 << 20, 1));
  const Measurement found = measured(in, {plan(in, recipe("nf4")), plan(in, recipe("int8"))});
  EXPECT_NEAR(found.candidates[0].tensors[0]->counts.entropy(), 3.885, 0.001);
  EXPECT_TRUE(std::isnan(found.candidates[1].tensors[0]->counts.entropy()));
}

TEST(Measure, CountsAreMadeOnRequestOnly) {
  const MemoryReader in = llama();
  Progress progress;
  const Measurement found = measure(in, std::vector{plan(in, recipe("nf4"))}, {}, progress);
  for (const auto& error : found.candidates[0].tensors) {
    EXPECT_THAT(error->counts.codes, IsEmpty());
    EXPECT_THAT(error->counts.errors, IsEmpty());
    EXPECT_EQ(error->counts.exact, 0U);
  }
}

}  // namespace
}  // namespace nibble::measure_test
