#include "core/text/utf8.hpp"

#include <gtest/gtest.h>

#include <array>

namespace nibble::utf8::utf8_test {
namespace {

TEST(Utf8, EveryCodePointSurvives) {
  for (std::uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;  // surrogates are none
    std::string text;
    append(text, c);
    const CodePoint point = decode(text, 0);
    ASSERT_EQ(point.value, c);
    ASSERT_EQ(point.bytes, text.size());
  }
}

TEST(Utf8, InvalidFormsAreFound) {
  constexpr std::array<std::string_view, 14> invalid{
      "\x80",              // a tail without a lead
      "\xC0\xAF",          // overlong
      "\xC1\xBF",          // overlong
      "\xC3",              // cut
      "\xC3(",             // no tail
      "\xE0\x9F\xBF",      // overlong
      "\xE2\x82",          // cut
      "\xED\xA0\x80",      // a surrogate
      "\xED\xBF\xBF",      // a surrogate
      "\xF0\x8F\xBF\xBF",  // overlong
      "\xF4\x90\x80\x80",  // above U+10FFFF
      "\xF5\x80\x80\x80",  // above U+10FFFF
      "\xF0\x9F\xA4",      // cut
      "\xFF",
  };
  for (const std::string_view bytes : invalid)
    for (std::size_t before = 0; before < 18; ++before) {  // on either side of a word of eight
      const std::string text = std::string(before, 'a').append(bytes);
      EXPECT_EQ(find_invalid(text), before) << text;
      EXPECT_EQ(find_invalid(text + "aaaaaaaaa"), before) << text;
    }
}

TEST(Utf8, ValidTextHasNone) {
  EXPECT_EQ(find_invalid(""), std::nullopt);
  EXPECT_EQ(find_invalid("model.layers.0.权重 é 🤗 \x7F"), std::nullopt);
}

}  // namespace
}  // namespace nibble::utf8::utf8_test
