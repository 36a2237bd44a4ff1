#include "formats/adapters/module_patterns.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace nibble::module_patterns_test {
namespace {

using testing::HasSubstr;

ModulePatterns patterns(const std::vector<std::string>& keys) {
  ModulePatterns made;
  for (const std::string& key : keys) EXPECT_EQ(made.add(key), "") << key;
  return made;
}

// Keys and names of few letters, so that many match: looked up or tried, the first that matches is the same.
TEST(ModulePatterns, AreRegularExpressions) {
  std::mt19937 random(1);
  const auto text = [&](std::string_view letters, std::size_t max) {
    std::string made;
    for (std::size_t n = random() % (max + 1); made.size() < n;) made += letters[random() % letters.size()];
    return made;
  };
  std::size_t matches = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> keys;
    for (int k = 0; k < 8; ++k) {
      std::string key = text("ab..", 4);
      if (random() % 4 == 0) key = "^" + key;
      if (random() % 4 == 0) key += "$";
      if (random() % 4 == 0)
        key.insert(key.find_first_not_of('^') == std::string::npos ? key.size() : key.find_first_not_of('^'), "\\.");
      if (random() % 8 == 0) key = "(" + key + "|b)";
      keys.push_back(key);
    }
    const ModulePatterns made = patterns(keys);
    for (int n = 0; n < 30; ++n) {
      const std::string name = text("abc.\n", 6);
      if (name.find('\n') != std::string::npos && name.find('.') != std::string::npos) continue;
      std::optional<std::size_t> expected;
      for (std::size_t k = 0; k < keys.size() && !expected; ++k)
        if (RE2::FullMatch(name, RE2("(?:.*\\.)?(?:" + keys[k] + ")"))) expected = k;
      EXPECT_EQ(made.find(name), expected) << "'" << name << "' in " << testing::PrintToString(keys);
      matches += expected ? 1 : 0;
    }
  }
  EXPECT_GT(matches, 1000u);
}

TEST(ModulePatterns, ADotIsAnyByteAndAnEscapedOneIsADot) {
  EXPECT_EQ(patterns({"layers.1"}).find("m.layers_1"), 0u);
  EXPECT_EQ(patterns({"layers\\.1"}).find("m.layers_1"), std::nullopt);
  EXPECT_EQ(patterns({"layers\\.1"}).find("m.layers.1"), 0u);
  EXPECT_EQ(patterns({"^layers.1"}).find("m.layers.1"), std::nullopt);
  EXPECT_EQ(patterns({"b", "a"}).find("a"), 1u);
  EXPECT_EQ(patterns({}).find("a"), std::nullopt);
}

// So many characters, and next to no program.
std::string empty_groups(std::size_t size) {
  std::string text(size % 4, 'v');
  while (text.size() < size) text += "(?:)";
  return text;
}

// An expression takes 16, 64 or 256 KiB, by its length and the size of its program.
TEST(ModulePatterns, ExpressionsTakeFourMiB) {
  const auto expect_at_most = [](std::size_t count, const std::string& expression) {
    ModulePatterns made;
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(made.add(expression), "") << i;
    EXPECT_EQ(made.add(expression),
              "is one of too many keys that are not names of modules: matching them takes more than 4 MiB");
    EXPECT_EQ(made.add("k"), "");
    EXPECT_EQ(made.find("k"), count);
  };
  expect_at_most(256, "q|v");
  expect_at_most(64, "(ab|c){400}");
  expect_at_most(16, "(abcd|efgh){900}");
  expect_at_most(256, "q|" + empty_groups(254));
  expect_at_most(64, "q|" + empty_groups(255));
}

TEST(ModulePatterns, ExpressionsHaveUpTo4096Characters) {
  EXPECT_EQ(ModulePatterns().add("q|" + empty_groups(4094)), "");
  EXPECT_EQ(ModulePatterns().add("q|" + empty_groups(4095)), "is no name of a module and longer than 4096 characters");
}

TEST(ModulePatterns, KindsOfNamesAreFew) {
  ModulePatterns made;
  for (std::size_t i = 0; i < ModulePatterns::max_forms; ++i) EXPECT_EQ(made.add(std::string(i + 1, 'x')), "");
  EXPECT_EQ(made.add("y"), "");  // as long as another
  EXPECT_EQ(made.add("^y"), "is one of more than 1024 different kinds of names (by length and position of dots)");
}

TEST(ModulePatterns, SaysWhatIsNoExpression) {
  EXPECT_THAT(ModulePatterns().add("(?=a)"), HasSubstr("is not a regular expression that can be used: "));
  EXPECT_THAT(ModulePatterns().add("a\\"), HasSubstr("is not a regular expression that can be used: "));
  EXPECT_THAT(ModulePatterns().add("((a{100}){100}){10}"), HasSubstr("is not a regular expression that can be used: "));
}

}  // namespace
}  // namespace nibble::module_patterns_test
