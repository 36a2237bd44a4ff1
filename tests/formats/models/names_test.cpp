#include "formats/models/names.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace nibble::names_test {
namespace {

TEST(NameIndex, FindsEveryNameAndNoOther) {
  NameList names;
  for (int i = 0; i < 1000; ++i) names.push_back(fmt::format("layer.{}", i));
  const NameIndex index(names);
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(index.find(names[i]), i);
  EXPECT_EQ(index.find("layer.1000"), std::nullopt);
  EXPECT_EQ(index.find(""), std::nullopt);
  EXPECT_EQ(index.duplicate(), std::nullopt);
}

TEST(NameIndex, TellsTheFirstRepetition) {
  using Pair = std::pair<std::size_t, std::size_t>;
  EXPECT_EQ(NameIndex({"a", "b", "c", "b", "a", "b"}).duplicate(), Pair(1, 3));
  EXPECT_EQ(NameIndex({"", ""}).duplicate(), Pair(0, 1));
  EXPECT_EQ(NameIndex(TensorList()).duplicate(), std::nullopt);
}

}  // namespace
}  // namespace nibble::names_test
