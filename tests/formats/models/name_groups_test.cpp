#include "formats/models/name_groups.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::name_groups_test {
namespace {

using testing::ElementsAre;
using Names = std::vector<std::string>;

Names texts_of(const Names& names) {
  Names texts;
  std::size_t count = 0, last = 0;
  for (const NameGroup& group : name_groups(names)) {
    EXPECT_GE(group.first, last);
    last = group.first;
    count += group.count;
    texts.push_back(group.text);
  }
  EXPECT_EQ(count, names.size());
  return texts;
}

Names with_numbers(const std::vector<int>& numbers) {
  Names names;
  for (const int number : numbers) names.push_back("h." + std::to_string(number) + ".w");
  return names;
}

TEST(NameGroups, LayersAreARange) {
  EXPECT_THAT(texts_of(with_numbers({2, 10, 9, 8, 7, 6, 5, 4, 3, 1, 0})), ElementsAre("h.{0..10}.w"));
  EXPECT_THAT(texts_of(with_numbers({0, 1, 2, 4, 5, 9, 11, 12, 13})), ElementsAre("h.{0..2,4,5,9,11..13}.w"));
  EXPECT_THAT(texts_of(with_numbers({7})), ElementsAre("h.7.w"));
}

TEST(NameGroups, StandWhereTheirFirstNameStood) {
  EXPECT_THAT(texts_of({"z", "b.0.w", "a.0.w", "a.1.w", "b.1.w"}), ElementsAre("z", "b.{0,1}.w", "a.{0,1}.w"));
  const auto groups = name_groups({"z", "b.1.w", "b.0.w"});
  EXPECT_EQ(groups[1].first, 1U);
  EXPECT_EQ(groups[1].count, 2U);
}

TEST(NameGroups, OfSeveralNumbersAreProducts) {
  EXPECT_THAT(texts_of({"l.0.e.0", "l.0.e.1", "l.1.e.0", "l.1.e.1"}), ElementsAre("l.{0,1}.e.{0,1}"));
  EXPECT_THAT(texts_of({"l.0.e.0", "l.0.e.1", "l.1.e.0"}), ElementsAre("l.0.e.{0,1}", "l.1.e.0"));
}

TEST(NameGroups, SpellingsAreKept) {
  EXPECT_THAT(texts_of({"h.007.w", "h.008.w"}), ElementsAre("h.{007,008}.w"));
  const std::string huge(30, '9');
  EXPECT_THAT(texts_of({"h." + huge, "h.5"}), ElementsAre("h.{5," + huge + "}"));
}

// A name may have a million numbers, and every slot is a step down.
TEST(NameGroups, NamesOfManyNumbersStandAlone) {
  std::string many = "0";
  for (int i = 0; i < 500'000; ++i) many += ".0";
  EXPECT_THAT(texts_of({many, "a.0", many + ".1", "a.1"}), ElementsAre(many, "a.{0,1}", many + ".1"));
}

// Every first number has a rest of its own: no two names go together, and that takes no time.
TEST(NameGroups, ManyNamesOfNoShape) {
  Names names;
  for (int i = 0; i < 100'000; ++i) names.push_back(std::to_string(i) + "." + std::to_string(i));
  EXPECT_EQ(name_groups(names).size(), names.size());
  EXPECT_TRUE(name_groups({}).empty());
}

}  // namespace
}  // namespace nibble::name_groups_test
