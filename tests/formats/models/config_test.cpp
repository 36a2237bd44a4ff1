#include "formats/models/config.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/corrupt.hpp"

namespace nibble::config_test {
namespace {

using test::error_of;

ModelConfig read(std::string_view text) {
  MemoryLimit memory;
  return config::read(text, "config.json", memory);
}

std::string patch(std::string_view text, const std::vector<config::Edit>& edits) {
  return config::patch(std::string(text), edits, "config.json");
}

TEST(Config, SaysWhatTheModelIs) {
  const ModelConfig config = read(R"({"architectures": ["LlamaForCausalLM", "Other"], "model_type": "llama",
    "torch_dtype": "bfloat16", "tie_word_embeddings": true})");
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.tie_word_embeddings, true);
}

TEST(Config, OddValuesSayNothing) {
  const ModelConfig config = read(R"({"architectures": null, "model_type": 3, "torch_dtype": 7, "dtype": null,
    "tie_word_embeddings": "yes", "quantization_config": null})");
  EXPECT_EQ(config.architecture, "");
  EXPECT_EQ(config.model_type, "");
  EXPECT_EQ(config.dtype, "");
  EXPECT_EQ(config.tie_word_embeddings, std::nullopt);
  EXPECT_EQ(read(R"({"architectures": []})").architecture, "");
  EXPECT_EQ(read(R"({"architectures": [7, "x"]})").architecture, "");
  EXPECT_EQ(read("{}").tie_word_embeddings, std::nullopt);
  EXPECT_EQ(read(R"({"vision_config": {"vocab_size": 7}, "text_config": {"vocab_size": 32000}})").vocab_size, 32000);
  EXPECT_EQ(read(R"({"vocab_size": 7, "text_config": {"vocab_size": 32000}})").vocab_size, 32000);  // PaliGemma
  EXPECT_EQ(read(R"({"vocab_size": 7, "text_config": {}})").vocab_size, 7);
  for (const char* const none : {"{}", R"({"vocab_size": "9"})", R"({"vocab_size": 9.5})", R"({"vocab_size": -9})"})
    EXPECT_EQ(read(none).vocab_size, std::nullopt) << none;
}

TEST(Config, TheLanguageModelAnswersWhereTheTopDoesNot) {
  EXPECT_EQ(read(R"({"text_config": {"tie_word_embeddings": true, "dtype": "float16"}})").tie_word_embeddings, true);
  EXPECT_EQ(read(R"({"text_config": {"tie_word_embeddings": true, "dtype": "float16"}})").dtype, "float16");
  EXPECT_EQ(read(R"({"thinker_config": {"text_config": {"tie_word_embeddings": false}}})").tie_word_embeddings, false);
  EXPECT_EQ(read(R"({"text_config": {"tie_word_embeddings": true}, "tie_word_embeddings": false})").tie_word_embeddings,
            false);
  EXPECT_EQ(read(R"({"vision_config": {"tie_word_embeddings": true}})").tie_word_embeddings, std::nullopt);
}

TEST(Config, DtypeHasManySpellings) {
  EXPECT_EQ(read(R"({"torch_dtype": "torch.float16"})").dtype, "float16");
  EXPECT_EQ(read(R"({"torch_dtype": "float16", "dtype": "float32"})").dtype, "float32");
}

TEST(Config, WhatPythonWritesIsRead) {
  EXPECT_EQ(read("\n{\"a\":[Infinity,-Infinity,NaN],\"model_type\":\"m\",\"b\":1e400,\"c\":"
                 "1000000000000000019884624838656}\r\n")
                .model_type,
            "m");
  EXPECT_EQ(read(R"({"a":"\ud800","b":"\ud83e\udd17\"\\\/\b\f\n\r\t","model_type":"m\u00e9"})").model_type, "mé");
  EXPECT_EQ(read(R"({"a":[{},[],[[]],-0,0.5,1E+3,-1e-3,true,false,null]})").model_type, "");
  std::string deep = R"({"a":)" + std::string(127, '[') + std::string(127, ']') + "}";
  EXPECT_EQ(error_of([&] { (void)read(deep); }), "");
}

TEST(Config, KeysAreComparedDecoded) {
  std::vector<config::Member> members;
  config::for_each_member(R"({"\u0061\ud83e\udd17":1,"\ud83ex":2})", "config.json",
                          [&](const config::Member& member) { members.push_back(member); });
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].key, "a🤗");
  EXPECT_EQ(members[1].key, "\uFFFDx");
  EXPECT_EQ(read(R"({"quantization\u005fconfig":{"quant_method":"awq"}})").quant_method, "awq");
}

TEST(Config, ComparingItsKeysIsCounted) {
  std::string text = R"({"x":0)";
  for (int key = 1000; key < 2000; ++key) text += fmt::format(R"(,"{}":0)", key);
  text += "}";
  const auto within = [&](std::uint64_t bytes) {
    MemoryLimit limit(program_bytes + bytes);
    const std::string error = error_of([&] { (void)config::read(text, "c", limit); }, Errc::no_space);
    EXPECT_EQ(limit.taken(), 0u);
    return error;
  };
  constexpr std::uint64_t keys = 1000 * (2 * (4 + 8) + 8);
  EXPECT_EQ(within(keys + 26), "");
  EXPECT_EQ(within(keys + 25).substr(0, 29), "c: opening it needs at least ");
  EXPECT_EQ(config::rewrite_bytes(text, "c"), 2 * text.size() + keys + 26);
}

TEST(Config, OfEqualKeysInItsPartsTheLastCounts) {
  EXPECT_EQ(read(R"({"text_config": {"dtype": "float32", "dtype": "float16"}})").dtype, "float16");
}

TEST(Config, SaysOfWhichTypesThePartsAre) {
  const ModelConfig config = read(R"({"model_type": "llava", "text_config": {"model_type": "phi", "x": {}},
    "none": {"model_type": ""}, "list": [{"model_type": "a"}], "number": {"model_type": 7},
    "two": {"model_type": ["phi", "llama"]},
    "v": {"deep": {"model_type": "swin", "er": {"model_type": "c", "far": {"model_type": "d"}}}}})");
  EXPECT_EQ(config.part_types,
            (std::map<std::string, std::string>{{"text_config", "phi"}, {"v.deep", "swin"}, {"v.deep.er", "c"}}));
}

// No model of transformers has so many, or such names.
TEST(Config, LeavesOutPartsWithoutBounds) {
  std::string text = R"({"a0":{"model_type":"t"})";
  for (int part = 1; part < 100; ++part) text += fmt::format(R"(,"a{}":{{"model_type":"t"}})", part);
  EXPECT_EQ(read(text + "}").part_types.size(), 100u);
  EXPECT_EQ(read(text + R"(,"b":{"model_type":"t"}})").part_types.size(), 100u);
  const auto part = [](std::size_t key, std::size_t type) {
    return read(fmt::format(R"({{"{}":{{"model_type":"{}"}}}})", std::string(key, 'k'), std::string(type, 't')));
  };
  EXPECT_EQ(part(256, 254).part_types.size(), 1u);
  EXPECT_TRUE(part(257, 254).part_types.empty());
  EXPECT_TRUE(part(256, 255).part_types.empty());
}

TEST(Config, SaysHowTheModelIsQuantized) {
  const ModelConfig config = read(R"({"quantization_config": {"quant_method": "x", "load_in_4bit": true}})");
  EXPECT_EQ(config.quant_method, "x");
  EXPECT_EQ(config.quantization_config, R"({"quant_method": "x", "load_in_4bit": true})");
  EXPECT_EQ(config.quantization_key, "quantization_config");
  EXPECT_EQ(read(R"({"compression_config": {"quant_method": "y"}})").quantization_key, "compression_config");
  EXPECT_EQ(read(R"({"compression_config": {"bits": 4}})").quant_method, "");
  const ModelConfig inner = read(R"({"text_config": {"quantization_config": {"quant_method": "z"}}})");
  EXPECT_EQ(inner.quant_method, "z");
  EXPECT_EQ(inner.quantization_key, "text_config.quantization_config");
  EXPECT_EQ(inner.second_quantization, "");
}

TEST(Config, ByteOrderMarkIsNamed) {
  EXPECT_EQ(error_of([] { (void)read("\xEF\xBB\xBF{}"); }), "config.json: begins with a byte-order mark");
}

// Of several, the outermost counts, and that there are others is known.
TEST(Config, SaysWhereASecondQuantizationStands) {
  const auto second = [](std::string_view text) { return read(text).second_quantization; };
  EXPECT_EQ(second(R"({"quantization_config": {"a": 1}, "compression_config": {"b": 2}})"), "");
  EXPECT_EQ(second(R"({"quantization_config": {"a": 1}, "text_config": {"quantization_config": null}})"), "");
  EXPECT_EQ(second(R"({"text_config": {"compression_config": {"b": 2}}, "quantization_config": {"a": 1}})"),
            "text_config.compression_config");
  EXPECT_EQ(second(R"({"decoder": {"quantization_config": {}}, "text_config": {"quantization_config": {}}})"),
            "decoder.quantization_config");
}

TEST(Config, PatchKeepsEveryOtherByte) {
  constexpr std::string_view text = "{\n  \"a\": 1e400,\n  \"dtype\" :\t\"float32\",\n  \"z\": [ 1,Infinity ]\n}\n\n";
  EXPECT_EQ(patch(text, {}), text);
  EXPECT_EQ(patch(text, {{"dtype", "\"float16\""}}),
            "{\n  \"a\": 1e400,\n  \"dtype\" :\t\"float16\",\n  \"z\": [ 1,Infinity ]\n}\n\n");
  EXPECT_EQ(patch(text, {{"torch_dtype", "\"float16\""}}),
            "{\n  \"a\": 1e400,\n  \"dtype\" :\t\"float32\",\n  \"z\": [ 1,Infinity ],\n  \"torch_dtype\": "
            "\"float16\"\n}\n\n");
}

TEST(Config, PatchIndentsAsTheFile) {
  const config::Edit edit{"q", R"({"a":[1, 2],"b": {},"c":"x:{,}\"","d":[ ]})"};
  EXPECT_EQ(
      patch("{\r\n\t\"k\": 1\r\n}", {edit}),
      "{\r\n\t\"k\": 1,\r\n\t\"q\": {\r\n\t\t\"a\": [\r\n\t\t\t1,\r\n\t\t\t2\r\n\t\t],\r\n\t\t\"b\": {},\r\n\t\t\"c\": "
      "\"x:{,}\\\"\",\r\n\t\t\"d\": []\r\n\t}\r\n}");
  EXPECT_EQ(patch(R"({"k":1})", {{"q", "[1, 2]"}}), R"({"k":1,"q":[1, 2]})");
  EXPECT_EQ(patch(R"({"k": 1, "l": 2})", {{"q", "3"}}), R"({"k": 1, "l": 2, "q": 3})");
  EXPECT_EQ(patch("{}", {{"q", "3"}}), "{\n  \"q\": 3\n}");
  EXPECT_EQ(patch("{ \n}\n", {{"q", "3"}, {"r\n", "4"}}), "{\n  \"q\": 3,\n  \"r\\n\": 4\n}\n");
}

TEST(Config, PatchRemoves) {
  constexpr std::string_view text = "{\n  \"a\": 1,\n  \"b\": 2,\n  \"c\": 3\n}";
  EXPECT_EQ(patch(text, {{"a", {}}}), "{\n  \"b\": 2,\n  \"c\": 3\n}");
  EXPECT_EQ(patch(text, {{"b", {}}}), "{\n  \"a\": 1,\n  \"c\": 3\n}");
  EXPECT_EQ(patch(text, {{"c", {}}}), "{\n  \"a\": 1,\n  \"b\": 2\n}");
  EXPECT_EQ(patch(text, {{"x", {}}}), text);
  EXPECT_EQ(patch(R"({"a":1})", {{"a", {}}, {"b", "2"}}), "{\n  \"b\": 2\n}");
}

TEST(Config, UntyingIsSaidInEveryPartOfTheLanguageModel) {
  const auto untied = [](std::string text) { return config::untie(std::move(text), "c"); };
  EXPECT_EQ(untied(R"({"tie_word_embeddings": true, "b": 2})"), R"({"tie_word_embeddings": false, "b": 2})");
  EXPECT_EQ(untied(R"({"b": 2})"), R"({"b": 2, "tie_word_embeddings": false})");
  EXPECT_EQ(
      untied("{\n  \"text_config\": {\n    \"llm_config\": {\n      \"x\": 1\n    }\n  }\n}"),
      "{\n  \"text_config\": {\n    \"llm_config\": {\n      \"x\": 1,\n      \"tie_word_embeddings\": false\n    "
      "},\n    \"tie_word_embeddings\": false\n  },\n  \"tie_word_embeddings\": false\n}");
  EXPECT_EQ(untied(R"({"text_config": null, "decoder": "x", "vision_config": {"a": 1}})"),
            R"({"text_config": null, "decoder": "x", "vision_config": {"a": 1}, "tie_word_embeddings": false})");
}

TEST(Config, PatchRefusesWhatIsNoJson) {
  EXPECT_EQ(error_of([] { (void)patch("{}", {{"a", "}"}}); }).substr(0, 12), "config.json:");
  EXPECT_EQ(error_of([] { (void)patch("{}", {{"a", "[\"\\"}}); }).substr(0, 12), "config.json:");
  EXPECT_EQ(error_of([] {
              (void)patch("{}", {{"a", "1,\"b\":2"}});
            }),
            "config.json: the new value of 'a' is more than one");
  EXPECT_EQ(error_of([] { (void)patch(R"({"a":1,"a":2})", {{"a", "3"}}); }), "config.json: duplicate key 'a'");
}

}  // namespace
}  // namespace nibble::config_test
