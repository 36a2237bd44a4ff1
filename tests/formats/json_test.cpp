#include "formats/json.hpp"

#include <gtest/gtest.h>

#include "tests/support/corrupt.hpp"

namespace nibble::json_test {
namespace {

std::string refused(std::string_view text) {
  return test::error_of([&] { (void)json::parse(text, "x"); });
}

TEST(Json, TreesKeepOrderAndValues) {
  constexpr std::string_view text =
      R"({"z":[1,-2,3.5,true,null,[]],"a":{"b":"é","":{}},"u":18446744073709551615,"i":-9223372036854775808})";
  EXPECT_EQ(json::parse(text, "x").dump(), text);
  EXPECT_EQ(json::parse(" 7 ", "x"), 7);
}

TEST(Json, DuplicateKeysAreRefusedAtEveryLevel) {
  EXPECT_EQ(refused(R"({"a":1,"a":1})"), "x: duplicate key 'a'");
  EXPECT_EQ(refused(R"({"o":[{"b":{"a":1,"\u0061":1}}]})"), "x: duplicate key 'a'");
  EXPECT_EQ(refused(R"({"a":{"a":{"a":1}},"b":{"a":1}})"), "");
}

TEST(Json, DepthEndsAt128) {
  EXPECT_EQ(refused(std::string(128, '[') + std::string(128, ']')), "");
  EXPECT_EQ(refused(std::string(129, '[') + std::string(129, ']')), "x: nested deeper than 128 levels");
  EXPECT_EQ(refused(std::string(1'000'000, '[')), "x: nested deeper than 128 levels");
}

TEST(Json, NothingIsReadAsTheEnd) {
  EXPECT_EQ(refused(std::string_view("{}\0", 3)), "x: not JSON from byte 2 on: a NUL");
  EXPECT_EQ(refused(std::string_view("{}\0{}", 5)), "x: not JSON from byte 2 on: a NUL");
  EXPECT_EQ(refused("{} {}"), "x: not JSON from byte 3 on");
  EXPECT_EQ(refused(""), "x: not JSON from byte 0 on");
}

TEST(Json, Strictness) {
  EXPECT_EQ(refused("\xEF\xBB\xBF{}"), "x: begins with a byte-order mark");
  EXPECT_EQ(refused("[1,]"), "x: not JSON from byte 3 on");
  EXPECT_EQ(refused("[01]"), "x: not JSON from byte 2 on");
  EXPECT_EQ(refused("[NaN]"), "x: not JSON from byte 1 on");
  EXPECT_EQ(refused("[1e999]"), "x: a number at byte 6 is too large");
  EXPECT_EQ(refused("// c\n{}"), "x: not JSON from byte 0 on");
  EXPECT_EQ(refused("[\"\xC0\x80\"]"), "x: not UTF-8 at byte 2");
}

TEST(Json, QuotesAsSerdeDoes) {
  const auto quoted = [](std::string_view text) {
    std::string out;
    json::append_quoted(out, text);
    return out;
  };
  EXPECT_EQ(quoted("plain"), R"("plain")");
  EXPECT_EQ(quoted(""), R"("")");
  EXPECT_EQ(quoted("q\"uo\\te/"), R"("q\"uo\\te/")");
  EXPECT_EQ(quoted(std::string_view("\b\f\n\r\t\0\x1f\x7f", 8)), "\"\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\"");
  EXPECT_EQ(quoted("层é🤗\u2028"), "\"层é🤗\u2028\"");
}

}  // namespace
}  // namespace nibble::json_test
