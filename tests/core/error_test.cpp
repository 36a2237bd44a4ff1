#include "nibble/error.hpp"

#include <gtest/gtest.h>

#include <string>

#include "core/text/utf8.hpp"

namespace nibble::error_test {
namespace {

TEST(Printable, PlainNamesStayAsTheyAre) {
  EXPECT_EQ(printable("model.layers.0.mlp.up_proj.weight"), "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(printable("层.0.权重 é 🤗"), "层.0.权重 é 🤗");
  EXPECT_EQ(printable(""), "");
}

TEST(Printable, OneLineWithoutControlsOrQuotes) {
  EXPECT_EQ(printable("a\n\r\tb"), "a\\n\\r\\tb");
  EXPECT_EQ(printable("\x1b[31m"), "\\x1b[31m");
  EXPECT_EQ(printable(std::string_view("\0\x7F", 2)), "\\x00\\x7f");
  EXPECT_EQ(printable("it's \"a\\b\""), "it\\'s \\\"a\\\\b\\\"");
  EXPECT_EQ(printable("\xFF\xC3"), "\\xff\\xc3");
}

TEST(Printable, NothingThatTurnsTextAround) {
  EXPECT_EQ(printable("a\u202Eb\u2066c\u200Bd\u2028e\uFEFFf\u0085"),
            "a\\u202eb\\u2066c\\u200bd\\u2028e\\ufefff\\u0085");
  EXPECT_EQ(printable("\U000E0041"), "\\U000e0041");
}

TEST(Printable, LongNamesAreCutInTheMiddle) {
  EXPECT_EQ(printable(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(printable(std::string(38, 'a') + "1234" + std::string(39, 'b')),
            std::string(38, 'a') + "..." + std::string(39, 'b'));
  const std::string cut = printable(std::string(100'000, 'a') + std::string(100'000, 'b'));
  EXPECT_EQ(cut, std::string(38, 'a') + "..." + std::string(39, 'b'));
}

TEST(Printable, CutsBetweenCharactersAndEscapes) {
  for (std::size_t shift = 0; shift < 8; ++shift) {
    std::string wide(shift, 'a'), escapes(shift, 'a');
    for (int i = 0; i < 500; ++i) wide += "🤗", escapes += '\x1b';
    EXPECT_EQ(utf8::find_invalid(printable(wide)), std::nullopt);
    const std::string text = printable(escapes);
    EXPECT_LE(text.size(), 80u);
    EXPECT_EQ(text.substr(text.find("...") + 3, 4), "\\x1b");
    EXPECT_EQ(text.substr(text.find("...") - 4, 4), "\\x1b");
  }
}

TEST(Escaped, KeepsItsLength) { EXPECT_EQ(escaped(std::string(500, 'x') + "\n"), std::string(500, 'x') + "\\n"); }

TEST(Error, IsAboutItsSubject) {
  const Error error(Errc::io, "/a/m", "cannot read", Remedy::Kind::max_memory);
  EXPECT_STREQ(error.what(), "/a/m: cannot read");
  EXPECT_EQ(error.subject(), "/a/m");
  EXPECT_EQ(error.remedy(), Remedy{Remedy::Kind::max_memory});
  EXPECT_EQ(Error(error).subject(), "/a/m");
  EXPECT_EQ(Error(Errc::io, "cannot read: no subject").subject(), "");
}

TEST(Error, KeepsItsCodeAndRemedyWhenItGetsASubject) {
  const Error named = about(Error(Errc::no_space, "is damaged", Remedy{Remedy::Kind::max_memory, 7}), "/a/m");
  EXPECT_STREQ(named.what(), "/a/m: is damaged");
  EXPECT_EQ(named.subject(), "/a/m");
  EXPECT_EQ(named.code(), Errc::no_space);
  EXPECT_EQ(named.remedy(), (Remedy{Remedy::Kind::max_memory, 7}));
}

// Whether an error has a subject is not read from its text: each of these would pass for the other.
TEST(Error, GetsNoSecondSubject) {
  for (const char* const subject : {"/a/m", "/a/m/config.json", "/a/m2", "scratch"}) {
    const Error named = about(Error(Errc::io, subject, "cannot read", Remedy{Remedy::Kind::max_memory, 7}), "/a/m");
    EXPECT_EQ(named.what(), std::string(subject) + ": cannot read");
    EXPECT_EQ(named.subject(), subject);
    EXPECT_EQ(named.remedy(), (Remedy{Remedy::Kind::max_memory, 7}));
  }
  EXPECT_STREQ(about(Error(Errc::io, "/a/m: cannot read"), "/a/m").what(), "/a/m: /a/m: cannot read");
}

}  // namespace
}  // namespace nibble::error_test
