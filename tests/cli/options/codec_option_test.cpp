#include "cli/options/codec_option.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "nibble/error.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::cli::codec_option_test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

template <class F> std::string error_of(F&& f) {
  try {
    (void)f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(CodecOptions, ErrorsNameTheOption) {
  const auto error = [](const char* text) {
    return error_of([&] { return parse_codec("--to", text, target_names()); });
  };
  EXPECT_EQ(error("nf4:block-size=32"), "nothing");
  EXPECT_EQ(error("keep"), "--to: 'keep' is not one of " + test::listed_codecs(", ", false));
  EXPECT_EQ(error("NF4:block-size=32"),
            "--to: 'NF4' is not one of " + test::listed_codecs(", ", false) + ": did you mean nf4?");
  EXPECT_EQ(error("fp16:block-size=32"), "--to 'fp16:block-size=32': codec fp16 has no options");
}

// One grammar: what is wrong is said in the same words wherever a codec is asked for.
TEST(CodecOptions, TheGrammarIsTheSameInRules) {
  for (const char* const codec :
       {"nf4:", "nf4:block-size", "nf4:block-size=32,", "nf4:block-size=+32", "nf4:block-size=32,block_size=32",
        "nf4: block-size=32", "nf4:block-size=32,x=1", "int8:block-size=32"}) {
    const std::string fact = error_of([&] { return CodecSpec(codec); });
    EXPECT_EQ(error_of([&] { return parse_codec("--to", codec, target_names()); }),
              "--to '" + std::string(codec) + "': " + fact);
    EXPECT_EQ(error_of([&] { return parse_rule("up=" + std::string(codec)); }),
              "--tensor 'up=" + std::string(codec) + "': " + fact);
  }
  EXPECT_EQ(parse_rule("up=nf4:block_size=32").codec, parse_codec("--to", "nf4:block_size=32", target_names()));
}

// Millions of options, or one of a million letters, make one line that can be read.
TEST(CodecOptions, ErrorsAreShortHoweverLongTheText) {
  constexpr std::size_t longest = 400;
  std::string many = "nf4:double-quant=no";
  for (int i = 0; i < 100'000; ++i) many += ",block-size=32";
  for (const std::string& text : {many, "nf4:" + std::string(1'000'000, 'x'), "nf4:x=" + std::string(1'000'000, '9'),
                                  "nf4:block-size=" + std::string(1'000'000, '9'), std::string(1'000'000, ',')}) {
    EXPECT_LT(error_of([&] { return parse_codec("--to", text, target_names()); }).size(), longest);
    EXPECT_LT(error_of([&] { return parse_rule("up=" + text); }).size(), longest);
  }
}

TEST(CodecOptions, ARuleIsAPatternAndACodec) {
  for (const auto& [text, pattern, codec] :
       {std::tuple{"up=nf4", "up", "nf4"},
        {"up=nf4:block-size=32,double-quant=no", "up", "nf4:block-size=32,double-quant=no"},
        {"a=b=keep", "a=b", "keep"},
        {"=int8", "", "int8"},
        {"a:b=c.*=fp4:double-quant=no", "a:b=c.*", "fp4:double-quant=no"}}) {
    const Rule rule = parse_rule(text);
    EXPECT_EQ(rule.pattern, pattern) << text;
    EXPECT_EQ(rule.codec.text(), codec) << text;
  }
  EXPECT_EQ(error_of([] { return parse_rule("up"); }), "--tensor 'up': not of the form RE=CODEC");
  EXPECT_THAT(error_of([] { return parse_rule("up=nf5:block-size=32"); }),
              HasSubstr("--tensor 'up=nf5:block-size=32': codec '"));
  EXPECT_EQ(error_of([] { return parse_rule("up=nf4:double-quant=maybe"); }),
            "--tensor 'up=nf4:double-quant=maybe': double-quant of codec nf4: 'maybe' is not one of yes, no");
}

TEST(CodecOptions, CompletionOffersEveryValueThatIsNotTheDefault) {
  const std::vector<std::string> words = codec_words();
  for (const char* const word : {"int8", "nf4", "nf4:block-size=32", "nf4:block-size=4096", "fp4:double-quant=no"})
    EXPECT_THAT(words, Contains(word));
  for (const char* const word : {"keep", "nf4:block-size=64", "nf4:double-quant=yes"})
    EXPECT_THAT(words, Not(Contains(word)));
}

TEST(CodecOptions, HelpNamesEveryCodecAndOption) {
  const std::string help = codec_help();
  EXPECT_THAT(help, HasSubstr("NAME:OPTION=VALUE,OPTION=VALUE..., without spaces, with each option at most once"));
  for (const std::string_view name : codec_names()) {
    EXPECT_THAT(help, HasSubstr(std::string(name)));
    for (const CodecOption& option : CodecSpec(name).info().options)
      EXPECT_THAT(help, HasSubstr(std::string(option.name) + "=" + std::string(option.values.front())));
  }
  EXPECT_THAT(help, HasSubstr("  nf4, fp4:\n    block-size=32|64|128|256|512|1024|2048|4096 [64]\n"));
}

TEST(CodecOptions, MeasuringShowsNanAndInfinities) {
  const Recipe recipe = measured_recipe("nf4:block-size=32");
  EXPECT_EQ(recipe.to, "nf4:block-size=32");
  EXPECT_EQ(recipe.nonfinite, Nonfinite::keep);
  EXPECT_EQ(recipe.on_overflow, OnOverflow::keep);
}

}  // namespace
}  // namespace nibble::cli::codec_option_test
