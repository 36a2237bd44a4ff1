#include "formats/models/name_products.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace nibble::name_products_test {
namespace {

using testing::ElementsAre;

TEST(NameProducts, NamesAreCutAtNumbersBetweenDots) {
  const CutName cut = cut_at_numbers("model.layers.3.experts.12.w1.weight");
  EXPECT_THAT(cut.texts, ElementsAre("model.layers.", ".experts.", ".w1.weight"));
  EXPECT_THAT(cut.numbers, ElementsAre("3", "12"));
  EXPECT_THAT(cut_at_numbers("lm_head.weight").numbers, ElementsAre());
  EXPECT_THAT(cut_at_numbers("7").numbers, ElementsAre("7"));
  EXPECT_THAT(cut_at_numbers("a.3b.c4").numbers, ElementsAre());
}

TEST(NameProducts, NamesOfManyNumbersAreNotCut) {
  std::string name = "w";
  for (std::size_t i = 0; i < max_numbers; ++i) name += ".1";
  EXPECT_EQ(cut_at_numbers(name).numbers.size(), max_numbers);
  name += ".1";
  EXPECT_THAT(cut_at_numbers(name).texts, ElementsAre(name));
  EXPECT_THAT(cut_at_numbers(name).numbers, ElementsAre());
}

bool takes(const NumberProduct& product, const NumberTuple& tuple) {
  for (std::size_t i = 0; i < tuple.size(); ++i)
    if (!product[i].any && !product[i].numbers.contains(tuple[i])) return false;
  return true;
}

// Of random tuples: each of those chosen is taken once, and of all others none.
TEST(NameProducts, CoverWhatWasChosenAndNoOther) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::size_t slots = 1 + random() % 3;
    NumberTuples all, chosen;
    for (int i = 0; i < 40; ++i) {
      NumberTuple tuple;
      for (std::size_t s = 0; s < slots; ++s) tuple.push_back(std::to_string(random() % 12));
      all.insert(tuple);
      if (random() % 2 == 0) chosen.insert(tuple);
    }
    if (chosen.empty()) continue;
    const auto products = cover(chosen, &all);
    for (const NumberTuple& tuple : all) {
      const auto count =
          std::count_if(products.begin(), products.end(), [&](const auto& each) { return takes(each, tuple); });
      EXPECT_EQ(count, chosen.contains(tuple) ? 1 : 0) << testing::PrintToString(tuple);
    }
    for (const NumberProduct& product : cover(chosen))
      for (const NumberSlot& slot : product) EXPECT_FALSE(slot.any);
  }
}

// What holds for every layer is said without listing them.
TEST(NameProducts, EveryNumberIsAny) {
  const NumberTuples all{{"0", "1"}, {"0", "2"}, {"1", "1"}, {"1", "2"}}, chosen{{"0", "1"}, {"1", "1"}};
  const auto products = cover(chosen, &all);
  ASSERT_EQ(products.size(), 1U);
  EXPECT_TRUE(products[0][0].any);
  EXPECT_FALSE(products[0][1].any);
  EXPECT_THAT(products[0][1].numbers, ElementsAre("1"));
}

TEST(NameProducts, NumbersAreOrderedByValue) {
  EXPECT_TRUE(ByValue()("9", "10"));
  EXPECT_FALSE(ByValue()("10", "9"));
  EXPECT_TRUE(ByValue()(NumberTuple{"1", "9"}, NumberTuple{"1", "10"}));
}

}  // namespace
}  // namespace nibble::name_products_test
