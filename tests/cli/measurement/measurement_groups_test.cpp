// What several tensors come to, where the figures in the JSON (measurement_test.cpp) do not show it.

#include "cli/measurement/measurement_groups.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tests/cli/measurement/measurement_support.hpp"

namespace nibble::cli::measurement_groups_test {
namespace {

using made_up::error;
using made_up::measurement;
using made_up::weights;
using Indices = std::vector<std::size_t>;

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(Badness, OrdersWhatTheRelativeErrorCannot) {
  const ErrorStats same = compare(std::vector<float>{1, 2}, std::vector<float>{1, 2});
  const ErrorStats zeros = compare(std::vector<float>{0, 0}, std::vector<float>{0, 0});
  const ErrorStats from_zero = compare(std::vector<float>{0, 0}, std::vector<float>{0, 1});
  EXPECT_EQ(badness(same, Judgement::expected), 0);
  EXPECT_EQ(badness(same, Judgement::broken), infinity);
  EXPECT_EQ(badness(from_zero, Judgement::unknown), infinity);
  EXPECT_EQ(badness(ErrorStats(), Judgement::unknown), -1);
  EXPECT_LE(badness(zeros, Judgement::expected), 0);
}

// A tensor stands where the worst of its candidates puts it, and one that no candidate has stands nowhere.
TEST(WorstFirst, TheWorstOfAllCandidatesDecides) {
  Measurement found = measurement({weights("a", 1), weights("b", 1), weights("c", 1), weights("absent", 1)},
                                  {error({1}, {1.25f}), error({1}, {1.9f}), std::nullopt, std::nullopt});
  MeasuredCandidate second = found.candidates[0];
  second.tensors = {error({1}, {2}), error({1}, {1}), error({1}, {1.75f}), std::nullopt};
  found.candidates.push_back(std::move(second));
  EXPECT_EQ(worst_first(found, found.candidates[0]), (Indices{1, 0}));
  EXPECT_EQ(worst_first(found, found.candidates[1]), (Indices{0, 2, 1}));
  EXPECT_EQ(worst_first(found, std::span<const MeasuredCandidate>(found.candidates)), (Indices{0, 1, 2}));
  EXPECT_EQ(worst_first(found, std::span<const MeasuredCandidate>()), Indices{});
}

TEST(Groups, TensorsOfNoLayerAreInNoLayer) {
  const Measurement found = measurement({weights("embedding", 2, "embedding"), weights("layers.7.up", 2, "up", 7)},
                                        {error({1, 2}, {1, 3}), error({1, 2}, {1, 2})});
  const Groups groups = make_groups(found, found.candidates[0]);
  EXPECT_EQ(groups.total.tensors, 2U);
  EXPECT_EQ(groups.total.exact, 1U);
  EXPECT_FALSE(groups.total.is_exact());
  EXPECT_EQ(groups.kinds.size(), 2U);
  ASSERT_EQ(groups.layers.size(), 1U);
  EXPECT_EQ(groups.layers.at(7).converted.weights, 2U);
  EXPECT_TRUE(groups.layers.at(7).converted.is_exact());
}

// Two layers whose outputs have different scales: the larger one does not hide the error of the other.
TEST(OutputErrors, AreRelativeToTheirLayersAndCountByWeights) {
  const auto output = [](double square, double reference) {
    MeasuredError error;
    error.output.count = 1;
    error.output.square = square;
    error.output.reference = reference;
    return error;
  };
  OutputErrors errors;
  errors.add(weights("without statistics", 100), MeasuredError());
  EXPECT_EQ(errors.tensors, 0U);
  EXPECT_TRUE(std::isnan(errors.rel_rmse()));
  EXPECT_TRUE(std::isnan(errors.sqnr_db()));
  errors.add(weights("exact", 1), output(0, 1000));
  EXPECT_EQ(errors.rel_rmse(), 0);
  EXPECT_EQ(errors.sqnr_db(), infinity);
  errors.add(weights("one in ten", 3), output(1, 10));
  EXPECT_EQ(errors.tensors, 2U);
  EXPECT_EQ(errors.weights, 4U);
  EXPECT_DOUBLE_EQ(errors.rel_rmse(), std::sqrt(0.075));
  EXPECT_DOUBLE_EQ(errors.sqnr_db(), -10 * std::log10(0.075));
  errors.add(weights("of zeros", 1), output(1, 0));
  EXPECT_EQ(errors.rel_rmse(), infinity);
  EXPECT_EQ(errors.sqnr_db(), -infinity);
}

// The worst judgement is kept whatever comes after it, and bits are those of all weights: not a mean of means.
TEST(Groups, AddUp) {
  const MeasuredWeights small = weights("small", 1), large = weights("large", 3);
  MeasuredError broken = error({1}, {std::numeric_limits<float>::infinity()}, 4);
  const MeasuredError fine = error({1, 2, 3}, {1, 2, 3}, 3);
  Group group;
  EXPECT_TRUE(std::isnan(group.bits()));
  EXPECT_TRUE(std::isnan(max_abs(group.stats)));
  EXPECT_TRUE(group.is_exact());
  group.add(small, broken);
  group.add(large, fine);
  EXPECT_EQ(group.judgement, Judgement::broken);
  EXPECT_EQ(group.bits(), 14);  // 7 bytes, 4 weights; the tensors have 32 and 8 bits
  EXPECT_EQ(bits_of(small, broken), 32);
  EXPECT_EQ(bits_of(large, fine), 8);
  EXPECT_TRUE(std::isnan(bits_of(weights("empty", 0), fine)));
  EXPECT_EQ(group.stats.count, 3U);
  EXPECT_EQ(max_abs(group.stats), 0);
}

}  // namespace
}  // namespace nibble::cli::measurement_groups_test
