#include "quant/jobs/advise/hull_path.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace nibble::hull_path_test {
namespace {

using Items = std::vector<std::vector<Choice>>;
using testing::ElementsAre;

Choice sum(const Items& items, const std::vector<std::size_t>& choices) {
  Choice total;
  for (std::size_t i = 0; i < items.size(); ++i) {
    total.bytes += items[i][choices[i]].bytes;
    total.cost += items[i][choices[i]].cost;
  }
  return total;
}

// The least cost of all assignments, by trying them.
double min_cost(const Items& items, std::uint64_t limit) {
  double min = std::numeric_limits<double>::infinity();
  std::vector<std::size_t> choices(items.size());
  for (;;) {
    if (const Choice total = sum(items, choices); total.bytes <= limit) min = std::min(min, total.cost);
    std::size_t i = 0;
    while (i < items.size() && ++choices[i] == items[i].size()) choices[i++] = 0;
    if (i == items.size()) return min;
  }
}

// What the first step that does not fit would have saved.
double one_step(const HullPath& path, std::uint64_t limit) {
  std::uint64_t bytes = path.min_bytes;
  for (const HullStep& step : path.steps)
    if (bytes += step.bytes; bytes > limit) return step.saved;
  return 0;
}

// Costs are whole numbers, so that sums are exact.
Items random_items(std::mt19937& random) {
  Items items(1 + random() % 6);
  for (auto& choices : items) {
    choices.resize(1 + random() % 4);
    for (Choice& choice : choices) choice = {random() % 30, static_cast<double>(random() % 30)};
  }
  return items;
}

TEST(HullPath, IsWithinOneStepOfTheBest) {
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    const Items items = random_items(random);
    const HullPath path = hull_path(items);
    EXPECT_EQ(path.min_bytes, sum(items, path.smallest).bytes);
    for (std::uint64_t limit = path.min_bytes; limit < path.min_bytes + 120; ++limit) {
      const Choice total = sum(items, walk(path, limit));
      const double min = min_cost(items, limit);
      EXPECT_LE(total.bytes, limit);
      EXPECT_GE(total.cost, min);
      EXPECT_LE(total.cost, min + one_step(path, limit));
    }
  }
}

TEST(HullPath, IsTheBestAtEveryStep) {
  std::mt19937 random(2);
  for (int i = 0; i < 400; ++i) {
    const Items items = random_items(random);
    const HullPath path = hull_path(items);
    std::uint64_t bytes = path.min_bytes;
    EXPECT_EQ(sum(items, walk(path, bytes)).cost, min_cost(items, bytes));
    for (const HullStep& step : path.steps) {
      bytes += step.bytes;
      EXPECT_EQ(sum(items, walk(path, bytes)).cost, min_cost(items, bytes));
    }
  }
}

// Steps of equal size, every choice on the hull: no part of a step is ever left over.
TEST(HullPath, IsTheBestWhereTheHullIsAllThereIs) {
  const Items items{{{1, 16}, {2, 8}, {3, 4}}, {{1, 9}, {2, 3}, {3, 0}}, {{1, 5}, {2, 0}}};
  const HullPath path = hull_path(items);
  for (std::uint64_t limit = 3; limit < 12; ++limit)
    EXPECT_EQ(sum(items, walk(path, limit)).cost, min_cost(items, limit)) << limit;
}

TEST(HullPath, FillsWhatAStepLeaves) {
  const Items items{{{0, 100}, {10, 0}}, {{0, 100}, {20, 50}}, {{0, 1}, {5, 0}}};
  const HullPath path = hull_path(items);
  EXPECT_THAT(walk(path, 14), ElementsAre(1, 0, 0));
  EXPECT_THAT(walk(path, 15), ElementsAre(1, 0, 1));
  EXPECT_THAT(walk(path, 29), ElementsAre(1, 0, 1));
  EXPECT_THAT(walk(path, 30), ElementsAre(1, 1, 0));
}

TEST(HullPath, EqualStepsGoInOrder) {
  const Items items(3, {{0, 1}, {1, 0}});
  const HullPath path = hull_path(items);
  EXPECT_THAT(walk(path, 0), ElementsAre(0, 0, 0));
  EXPECT_THAT(walk(path, 1), ElementsAre(1, 0, 0));
  EXPECT_THAT(walk(path, 2), ElementsAre(1, 1, 0));
}

TEST(HullPath, OfEqualChoicesTheFirst) {
  const HullPath path = hull_path(Items{{{4, 1}, {4, 1}, {9, 1}}});
  EXPECT_THAT(path.smallest, ElementsAre(0));
  EXPECT_TRUE(path.steps.empty());
  EXPECT_TRUE(hull_path({}).steps.empty());
}

}  // namespace
}  // namespace nibble::hull_path_test
