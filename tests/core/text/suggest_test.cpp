#include "core/text/suggest.hpp"

#include <gtest/gtest.h>

#include <array>

namespace nibble::suggest_test {
namespace {

using Word = std::string_view;

constexpr std::array<Word, 7> codecs{"fp32", "fp16", "bf16", "int8", "nf4", "fp4", "keep"};
constexpr std::array<Word, 4> options{"--block-size", "--skip", "--tensor", "--threads"};

TEST(Nearest, IsTheSameInAnotherCase) {
  EXPECT_EQ(nearest("NF4", codecs), Word("nf4"));
  EXPECT_EQ(nearest("Keep", codecs), Word("keep"));
}

TEST(Nearest, KnowsOtherNames) {
  constexpr std::array<Synonym, 2> synonyms{{{"int4", "nf4"}, {"bfloat16", "bf16"}}};
  EXPECT_EQ(nearest("int4", codecs, synonyms), Word("nf4"));
  EXPECT_EQ(nearest("BFloat16", codecs, synonyms), Word("bf16"));
  EXPECT_EQ(nearest("int4", codecs), std::nullopt);
  EXPECT_EQ(nearest("int4", options, synonyms), std::nullopt);  // only if it is there
}

TEST(Nearest, KnowsBeginnings) {
  EXPECT_EQ(nearest("--block", options), Word("--block-size"));
  EXPECT_EQ(nearest("--thr", options), Word("--threads"));
  EXPECT_EQ(nearest("--t", options), std::nullopt);                        // two begin so
  EXPECT_EQ(nearest("co", std::array<Word, 1>{"convert"}), std::nullopt);  // may mean anything
  EXPECT_EQ(nearest("conv", std::array<Word, 2>{"convert", "inspect"}), Word("convert"));
}

TEST(Nearest, IsAFewLettersAway) {
  EXPECT_EQ(nearest("--blocksize", options), Word("--block-size"));       // one left out
  EXPECT_EQ(nearest("--sskip", options), Word("--skip"));                 // one too many
  EXPECT_EQ(nearest("--tesnor", options), Word("--tensor"));              // exchanged
  EXPECT_EQ(nearest("kepe", std::array<Word, 1>{"keep"}), Word("keep"));  // exchanged is one letter, not two
  EXPECT_EQ(nearest("--thread", options), Word("--threads"));
  EXPECT_EQ(nearest("saturate", std::array<Word, 3>{"error", "clamp", "keep"}), std::nullopt);
  EXPECT_EQ(nearest("", codecs), std::nullopt);
  EXPECT_EQ(nearest("x", std::array<Word, 1>{"y"}), std::nullopt);  // nothing in common
  EXPECT_EQ(nearest("--block-size" + std::string(60, '-'), options), std::nullopt);
}

TEST(Nearest, HasTheSameDigits) {
  EXPECT_EQ(nearest("fp8", codecs), std::nullopt);
  EXPECT_EQ(nearest("nf-4", codecs), Word("nf4"));
}

TEST(NoneOf, ListsWhatThereIs) {
  constexpr std::array<Word, 2> words{"clamp", "keep"};
  EXPECT_EQ(none_of("saturate", words), "'saturate' is not one of clamp, keep");
  EXPECT_EQ(none_of("Clamp\n", words), "'Clamp\\n' is not one of clamp, keep: did you mean clamp?");
  EXPECT_EQ(none_of("Clip", words, std::array{Synonym{"clip", "clamp"}}),
            "'Clip' is not one of clamp, keep: did you mean clamp?");
}

}  // namespace
}  // namespace nibble::suggest_test
