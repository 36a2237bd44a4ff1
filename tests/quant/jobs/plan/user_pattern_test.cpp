#include "quant/jobs/plan/user_pattern.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::user_pattern_test {
namespace {

using test::error_of;

// What is said of a pattern that matches none of these as a whole.
std::string message(const std::string& pattern, const std::vector<std::string>& names) {
  return error_of(
      [&] {
        UserPattern("skip pattern", pattern).fail_unmatched([&](const auto& visit) {
          for (const std::string& name : names) visit(name);
        });
      },
      Errc::usage);
}

TEST(UserPattern, MatchesWholeNames) {
  const UserPattern pattern("skip pattern", "a.b|c");
  EXPECT_TRUE(pattern.matches("axb"));
  EXPECT_TRUE(pattern.matches("c"));
  EXPECT_FALSE(pattern.matches("axbc"));
  EXPECT_FALSE(pattern.matches(""));
}

TEST(UserPattern, DotIsAlsoANewline) {
  EXPECT_TRUE(UserPattern("skip pattern", ".*").matches("a\nb.weight"));
  EXPECT_EQ(message("b", {"a\nb"}), "skip pattern 'b' matches no tensor as a whole name; '.*b' matches 1");
}

TEST(UserPattern, BrokenOnesAreRefused) {
  EXPECT_EQ(error_of([] { const UserPattern pattern("skip pattern", "up[proj"); }, Errc::usage),
            "skip pattern 'up[proj' is not a regular expression: missing ]: [proj");
}

TEST(UserPattern, SaysWhatWouldMatch) {
  EXPECT_EQ(message("x", {"a", "b"}), "skip pattern 'x' matches no tensor");
  EXPECT_EQ(message("a", {"ab", "ac"}), "skip pattern 'a' matches no tensor as a whole name; 'a.*' matches 2");
  EXPECT_EQ(message("b", {"ab", "cb"}), "skip pattern 'b' matches no tensor as a whole name; '.*b' matches 2");
  EXPECT_EQ(message("b|c", {"abx", "acx"}),
            "skip pattern 'b|c' matches no tensor as a whole name; '.*(b|c).*' matches 2");
  EXPECT_EQ(message("^b", {"bx", "by"}), "skip pattern '^b' matches no tensor as a whole name; '^b.*' matches 2");
}

// Whole and as it was typed, so that it can be pasted; a terminal gets no control characters.
TEST(UserPattern, CanBePasted) {
  const std::string longer = "layers\\.0\\." + std::string(200, 'x');
  EXPECT_EQ(UserPattern("skip pattern", longer).text(), longer);
  EXPECT_EQ(UserPattern("skip pattern", "a\x1b").text().find('\x1b'), std::string::npos);
  const std::string said = message("0\\.up", {"layers.0.up.weight"});
  EXPECT_EQ(said, "skip pattern '0\\.up' matches no tensor as a whole name; '.*0\\.up.*' matches 1");
}

}  // namespace
}  // namespace nibble::user_pattern_test
