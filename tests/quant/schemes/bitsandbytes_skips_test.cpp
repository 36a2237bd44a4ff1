#include "quant/schemes/bitsandbytes_skips.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "nibble/error.hpp"

namespace nibble::bitsandbytes_skips_test {
namespace {

// The cases were put to should_convert_module of transformers 5.23.
TEST(Skips, MatchAsTransformersDoes) {
  EXPECT_TRUE(skips("lm_head", "lm_head"));
  EXPECT_TRUE(skips("layer.1", "layer.1.attn"));
  EXPECT_FALSE(skips("layer.1", "layer.11.attn"));
  EXPECT_TRUE(skips("layer.*", "layer.11.attn"));
  EXPECT_FALSE(skips("mlp.gate", "mlp.gate_proj"));
  EXPECT_TRUE(skips("fc1", "model.decoder.layers.23.fc1"));
  EXPECT_TRUE(skips("score", "layers.0.score"));
  EXPECT_TRUE(skips("core", "layers.0.score"));
  EXPECT_FALSE(skips("^score$", "layers.0.score"));
  EXPECT_TRUE(skips("^score$", "score"));
  EXPECT_FALSE(skips("^score$", "score.out"));
  EXPECT_TRUE(skips("model.layers.[0-9]+.a", "model.layers.7.a"));
  EXPECT_TRUE(skips("model.layers.", "model.layers.7.a"));
  EXPECT_TRUE(skips("modelxlayers", "modelxlayers.7"));
  EXPECT_TRUE(skips("model.layers", "modelxlayers.7"));
  EXPECT_FALSE(skips("layers.7", "model.layers.7.a"));
  EXPECT_TRUE(skips("a|b", "b.c"));
  EXPECT_THROW((void)skips("(", "model"), Error);
}

TEST(Skips, SuffixIsAMatch) {
  EXPECT_TRUE(skips("score", "layers.0.score"));
  EXPECT_FALSE(skips("lm_head", "layers.0.score"));
}

TEST(BitsandbytesSkips, HasTheTiedHeadThatTheFileLacks) {
  const std::vector<std::string> quantized{"model.layers.0.mlp.up_proj"};
  const std::vector<std::string> plain{"model.layers.0.mlp.down_proj"};
  EXPECT_EQ(skip_list({"LlamaForCausalLM"}, true, quantized, plain),
            (std::vector<std::string>{"model.layers.0.mlp.down_proj", "lm_head"}));
  EXPECT_EQ(skip_list({"LlamaForCausalLM"}, false, quantized, {}), std::vector<std::string>{"lm_head"});
  EXPECT_EQ(skip_list({"Unheard"}, false, quantized, {}), std::vector<std::string>{"lm_head"});
  EXPECT_EQ(skip_list({""}, false, quantized, std::vector<std::string>{"lm_head"}),
            std::vector<std::string>{"lm_head"});
}

// Whoever loads the list compiles its entries.
TEST(BitsandbytesSkips, NamesWithCharactersOfExpressionsAreEscaped) {
  const std::vector<std::string> quantized{"a.b"};
  EXPECT_EQ(skip_list({"Unheard"}, false, quantized, std::vector<std::string>{"up[proj", "c*", "plain-name_1"}),
            (std::vector<std::string>{"^up\\[proj$", "^c\\*$", "plain-name_1", "lm_head"}));
}

// Entries are regular expressions, so that a name which is none, or is another, has to be escaped.
TEST(BitsandbytesSkips, NamesAreNoPatterns) {
  const std::vector<std::string> plain{"layers.0.up[proj", "a|b", "*"}, quantized{"layers.1.up[proj", "a", "b"};
  const std::vector<std::string> list = skip_list({""}, false, quantized, plain);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(skips(list.at(i), plain[i])) << list[i];
    for (const std::string& module : quantized) EXPECT_FALSE(skips(list[i], module)) << list[i] << ' ' << module;
  }
  EXPECT_EQ(list[0], R"(^layers\.0\.up\[proj$)");
}

// skip_list() looks for modules by sorted names, and finds those that skips() finds: "a.c" begins "abc.d".
TEST(BitsandbytesSkips, NamesAreEscapedWhereTheyWouldSkipAQuantizedModule) {
  std::mt19937 generator(1);
  const auto random_name = [&generator] {
    std::string name(generator() % 6, ' ');
    for (char& c : name) c = "ab.."[generator() % 4];
    return name;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> quantized(generator() % 5);
    std::ranges::generate(quantized, random_name);
    const std::string name = random_name();
    if (std::ranges::find(quantized, name) != quantized.end()) continue;
    const bool is_harmless =
        std::ranges::none_of(quantized, [&](const std::string& module) { return skips(name, module); });
    const std::string entry = skip_list({""}, false, quantized, std::vector{name}).front();
    EXPECT_EQ(entry == name, is_harmless)
        << '"' << name << "\" beside \"" << fmt::format("{}", fmt::join(quantized, " "));
  }
}

// Every pair of the two lists took minutes.
TEST(BitsandbytesSkips, ListsMayBeLong) {
  std::vector<std::string> quantized, plain;
  for (int layer = 0; layer < 64; ++layer)
    for (int expert = 0; expert < 512; ++expert) {
      quantized.push_back(fmt::format("model.layers.{}.mlp.experts.{}.up_proj", layer, expert));
      plain.push_back(fmt::format("model.layers.{}.mlp.experts.{}.down_proj", layer, expert));
    }
  const std::vector<std::string> list = skip_list({""}, false, quantized, plain);
  EXPECT_EQ(list.size(), plain.size() + 1);
  EXPECT_EQ(list.front(), plain.front());
}

// Names come from a file: there may be any number of dots.
TEST(BitsandbytesSkips, NamesMayHaveManyComponents) {
  std::string name;
  for (int i = 0; i < 1'000'000; ++i) name += "a.";
  const std::vector<std::string> quantized{name + "b.c"}, plain{name + "b", name + "d"};
  const std::vector<std::string> list = skip_list({""}, false, quantized, plain);
  EXPECT_TRUE(list.at(0).starts_with("^"));
  EXPECT_EQ(list.at(1), plain[1]);
}

TEST(BitsandbytesSkips, MatchesNoQuantizedModule) {
  const std::vector<std::string> quantized{"model.layers.0.score"};
  EXPECT_EQ(skip_list({"Unheard"}, false, quantized, std::vector<std::string>{"score"}),
            (std::vector<std::string>{"^score$", "lm_head"}));
  // a head that is quantized on purpose is not listed
  EXPECT_TRUE(skip_list({"LlamaForCausalLM"}, false, std::vector<std::string>{"lm_head"}, {}).empty());
}

}  // namespace
}  // namespace nibble::bitsandbytes_skips_test
