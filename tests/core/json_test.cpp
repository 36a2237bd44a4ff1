#include "core/json.hpp"

#include <fmt/format.h>
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

// Counts, and keeps the latest string.
struct Counter final : json::Events {
  void on_key(std::string&) override { ++events; }
  void on_string(std::string& value) override { ++events, text = value; }
  void on_unsigned(std::uint64_t) override { ++events; }
  void on_null() override { ++events; }
  void on_other(std::string_view) override { ++events; }
  void on_object() override { ++events; }
  void on_object_end() override { ++events; }
  void on_array() override { ++events; }
  void on_array_end() override { ++events; }
  std::size_t events = 0;
  std::string text;
};

constexpr std::size_t piece = 64 << 10;

TEST(Json, TokensAndCharactersMayLieInTwoPieces) {
  for (const std::string_view character : {"x", "é", "层", "🤗", "\uFEFF"})
    for (std::size_t before = piece - 8; before <= piece + 2; ++before) {
      const std::string value = std::string(before, 'a') + std::string(character) + "b";
      Counter counter;
      MemoryLimit none;
      json::parse("[\"" + value + "\", 12345]", "x", counter, none);
      EXPECT_EQ(counter.text, value);
      EXPECT_EQ(counter.events, 4U);
    }
}

TEST(Json, PlacesAreThoseInTheWholeText) {
  const std::string blank(3 * piece, ' ');
  EXPECT_EQ(refused(blank + "[1,]"), fmt::format("x: not JSON from byte {} on", 3 * piece + 3));
  EXPECT_EQ(refused(blank + "[\"\xC0\"]"), fmt::format("x: not UTF-8 at byte {}", 3 * piece + 2));
  EXPECT_EQ(refused(blank + std::string(1, '\0')), fmt::format("x: not JSON from byte {} on: a NUL", 3 * piece));
  EXPECT_EQ(refused("[\"" + std::string(piece - 3, 'a') + "\xE5\xB1"),
            fmt::format("x: not UTF-8 at byte {}", piece - 1));
  EXPECT_EQ(refused("[\"" + std::string(piece - 3, 'a') + "\xE5\"]"),
            fmt::format("x: not UTF-8 at byte {}", piece - 1));
}

TEST(Json, AskedForPiecesOnly) {
  const std::string text = "[" + std::string(300'000, ' ') + "]";
  std::uint64_t next = 0;
  Counter counter;
  MemoryLimit none;
  json::parse({text.size(),
               [&](std::uint64_t offset, std::span<char> out) {
                 EXPECT_EQ(offset, next);
                 EXPECT_LE(out.size(), piece);
                 next = offset + out.size();
                 text.copy(out.data(), out.size(), offset);
               }},
              "x", counter, none);
  EXPECT_EQ(next, text.size());
  EXPECT_EQ(counter.events, 2U);
}

// The parser keeps both what a token looks like and what it means, in buffers that double.
TEST(Json, LongTokensCount) {
  const auto within = [](const std::string& text, std::uint64_t bytes) {
    Counter counter;
    MemoryLimit limit(program_bytes + bytes);
    const std::string error = test::error_of([&] { json::parse(text, "x", counter, limit); }, Errc::no_space);
    EXPECT_EQ(limit.taken(), 0U);
    return error;
  };
  for (const std::string& text :
       {"\"" + std::string(2'000'000, 'a') + "\"", std::string(2'000'000, '1'), std::string(2'000'000, ' ') + "1"})
    EXPECT_EQ(within("[" + text + "]", 7'500'000).substr(0, 31), "x: opening it needs at least 22");
  EXPECT_EQ(within("[\"" + std::string(2'000'000, 'a') + "\"]", 8'200'000), "");
  std::string many = "[0";
  for (int i = 0; i < 1'000'000; ++i) many += ",0";
  EXPECT_EQ(within(many + "]", 4 * piece), "");
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
