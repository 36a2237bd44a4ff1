#include "formats/models/name_patterns.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <re2/re2.h>

#include <algorithm>
#include <random>

namespace nibble::name_patterns_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TensorList list_of(const std::vector<std::string>& names) {
  TensorList tensors;
  for (const std::string& name : names) tensors.push_back({name, DType::f32, {1}});
  return tensors;
}

// The patterns of those names, which match them and nothing else.
std::vector<std::string> patterns_of(const std::vector<std::string>& all, const std::vector<std::string>& names) {
  std::vector<bool> chosen;
  for (const std::string& name : all) chosen.push_back(std::find(names.begin(), names.end(), name) != names.end());
  const std::vector<std::string> patterns = name_patterns(list_of(all), chosen);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool matches = std::any_of(patterns.begin(), patterns.end(),
                                     [&](const std::string& pattern) { return RE2::FullMatch(all[i], pattern); });
    EXPECT_EQ(matches, chosen[i]) << all[i];
  }
  return patterns;
}

std::vector<std::string> layers(const std::vector<std::string>& kinds, int count) {
  std::vector<std::string> names;
  for (int layer = 0; layer < count; ++layer)
    for (const std::string& kind : kinds) names.push_back("model.layers." + std::to_string(layer) + "." + kind);
  return names;
}

TEST(NamePatterns, GroupLayersOfAKind) {
  const auto all = layers({"mlp.down_proj.weight", "mlp.up_proj.weight"}, 18);
  EXPECT_THAT(
      patterns_of(all, {"model.layers.17.mlp.down_proj.weight", "model.layers.0.mlp.down_proj.weight",
                        "model.layers.3.mlp.down_proj.weight", "model.layers.5.mlp.up_proj.weight"}),
      ElementsAre(R"(model\.layers\.(0|3|17)\.mlp\.down_proj\.weight)", R"(model\.layers\.5\.mlp\.up_proj\.weight)"));
  EXPECT_THAT(patterns_of(all, layers({"mlp.up_proj.weight"}, 18)),
              ElementsAre(R"(model\.layers\.\d+\.mlp\.up_proj\.weight)"));
  EXPECT_THAT(patterns_of(all, layers({"mlp.up_proj.weight"}, 17)), SizeIs(1));
  EXPECT_THAT(patterns_of(all, {}), IsEmpty());
}

TEST(NamePatterns, NumbersAreText) {
  EXPECT_THAT(patterns_of({"a.1.w", "a.01.w", "a.10.w", "a.x.w"}, {"a.1.w", "a.10.w"}), ElementsAre(R"(a\.(1|10)\.w)"));
  EXPECT_THAT(patterns_of({"a1.w", "a2.w"}, {"a1.w"}), ElementsAre(R"(a1\.w)"));
  EXPECT_THAT(patterns_of({"0", "1", "x"}, {"0", "1"}), ElementsAre(R"(\d+)"));
  EXPECT_THAT(patterns_of({"", ".", "..", "0.", "."}, {"", "0."}), SizeIs(2));
}

// Each number would be a level of recursion, and a copy of the rest of the name.
TEST(NamePatterns, NamesOfManyNumbersAreText) {
  std::string numbers;
  for (int i = 0; i < 5'000; ++i) numbers += "1.";
  EXPECT_THAT(patterns_of({numbers + "a", numbers + "b"}, {numbers + "b"}), ElementsAre(exact_pattern(numbers + "b")));
}

TEST(NamePatterns, GroupExpertsOfLayers) {
  std::vector<std::string> all;
  for (int layer = 0; layer < 4; ++layer)
    for (int expert = 0; expert < 8; ++expert)
      all.push_back("l." + std::to_string(layer) + ".e." + std::to_string(expert) + ".w");
  EXPECT_THAT(patterns_of(all, all), ElementsAre(R"(l\.\d+\.e\.\d+\.w)"));
  const std::vector<std::string> one_layer(all.begin() + 8, all.begin() + 16);
  EXPECT_THAT(patterns_of(all, one_layer), ElementsAre(R"(l\.1\.e\.\d+\.w)"));
  EXPECT_THAT(patterns_of(all, {"l.0.e.2.w", "l.1.e.2.w", "l.2.e.2.w", "l.3.e.2.w"}),
              ElementsAre(R"(l\.\d+\.e\.2\.w)"));
  EXPECT_THAT(patterns_of(all, {"l.0.e.2.w", "l.2.e.2.w", "l.0.e.5.w", "l.2.e.5.w", "l.3.e.7.w"}),
              ElementsAre(R"(l\.(0|2)\.e\.(2|5)\.w)", R"(l\.3\.e\.7\.w)"));
}

TEST(NamePatterns, MatchExactlyWhatIsChosen) {
  std::mt19937 random(3);
  for (int i = 0; i < 50; ++i) {
    std::vector<std::string> all;
    std::vector<std::string> chosen;
    for (int a = 0; a < 4; ++a)
      for (int b = 0; b < 4; ++b)
        for (int c = 0; c < 3; ++c) {
          if (random() % 4 == 0) continue;  // a name that is not there
          all.push_back("x." + std::to_string(a) + "." + std::to_string(b) + ".y." + std::to_string(c));
          if (random() % 2 == 0) chosen.push_back(all.back());
        }
    patterns_of(all, chosen);
  }
}

// Whatever a file may call its tensors, a pattern is printable ASCII and means that name only.
TEST(NamePatterns, HostileNames) {
  const std::vector<std::string> all{"a.b",        "axb",     "a\\.b",   ".*",       "(a|b)+?",  "[a-z]{2}", "^a$",
                                     "-a",         "--skip",  "a=b",     "a=nf4",    "it's",     "\"$(x)\"", "a\nb",
                                     "\x1b[31m.1", "\\Q.\\E", "\\d+.3",  "ü.0.w",    "日本.0.w", "😀",        "u",
                                     "a b",        "{1}",     "layer.*", "layer.12", "\x7f",     "#",        "a/b"};
  for (const std::string& name : all) {
    const std::vector<std::string> patterns = patterns_of(all, {name});
    ASSERT_EQ(patterns.size(), 1u);
    EXPECT_TRUE(std::all_of(patterns[0].begin(), patterns[0].end(), [](char c) { return c >= ' ' && c <= '~'; }))
        << name;
  }
  patterns_of(all, all);
  const std::string with_zero("a\0b", 3);
  EXPECT_TRUE(RE2::FullMatch(with_zero, exact_pattern(with_zero)));
}

}  // namespace
}  // namespace nibble::name_patterns_test
