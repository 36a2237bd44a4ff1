#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nibble/codec.hpp"
#include "nibble/error.hpp"
#include "quant/codecs/codecs.hpp"
#include "tests/quant/codecs/codec_support.hpp"

namespace nibble::registry_test {
namespace {

std::string error_of(std::string_view text) {
  try {
    (void)CodecSpec(text);
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
  return "nothing";
}

TEST(Registry, EveryCodecIsFoundByItsName) {
  for (const std::string_view name : codec_names()) {
    const CodecSpec spec(name);
    EXPECT_EQ(spec.name(), name);
    EXPECT_EQ(spec.text(), name);
    EXPECT_EQ(make_codec(spec)->spec(), spec);
    EXPECT_FALSE(spec.info().summary.empty()) << name;
    ASSERT_LE(spec.info().options.size(), CodecSpec::max_options) << name;
  }
}

// Help, completion and the grammar are made from these.
TEST(Registry, OptionsAreWordsThatTheGrammarCanTake) {
  for (const std::string_view name : codec_names())
    for (const CodecOption& option : CodecSpec(name).info().options) {
      EXPECT_FALSE(option.name.empty());
      EXPECT_FALSE(option.help.empty());
      ASSERT_LT(option.default_value, option.values.size());
      ASSERT_LE(option.values.size(), 256U);
      EXPECT_EQ(CodecSpec(name).index(option.name), option.default_value);
      EXPECT_EQ(option.name.find_first_of(":,= "), std::string_view::npos) << option.name;
      for (const std::string_view value : option.values) {
        EXPECT_EQ(value.find_first_of(":,= "), std::string_view::npos) << value;
        const CodecSpec spec = CodecSpec(name).with(option.name, value);
        EXPECT_EQ(option.values[spec.index(option.name)], value);
        EXPECT_EQ(CodecSpec(spec.text()), spec);
        EXPECT_EQ(make_codec(spec)->spec(), spec);
      }
    }
}

TEST(Registry, CastsAreFoundByTheirType) {
  EXPECT_EQ(cast_codec(DType::f32), "fp32");
  EXPECT_EQ(cast_codec(DType::bf16), "bf16");
  EXPECT_EQ(cast_codec(DType::f16), "fp16");
  EXPECT_THROW((void)cast_codec(DType::i8), Error);
  EXPECT_EQ(find_cast_codec(DType::bf16), CodecSpec("bf16"));
  EXPECT_EQ(find_cast_codec(DType::i8), std::nullopt);
}

TEST(CodecSpec, SaysNothingByItself) {
  EXPECT_EQ(CodecSpec().text(), "keep");
  EXPECT_TRUE(CodecSpec("keep").keeps());
  EXPECT_FALSE(CodecSpec("nf4").keeps());
}

TEST(CodecSpec, TextsThatMeanTheSameAreEqual) {
  for (const auto& [text, same] : {std::pair{"nf4:block-size=64,double-quant=yes", "nf4"},
                                   {"nf4:double-quant=no,block-size=32", "nf4:block-size=32,double-quant=no"},
                                   {"nf4:double_quant=no,block_size=32", "nf4:block-size=32,double-quant=no"},
                                   {"fp4:block-size=4096", "fp4:block-size=4096"}}) {
    EXPECT_EQ(CodecSpec(text), CodecSpec(same));
    EXPECT_EQ(CodecSpec(text).text(), same);
  }
  EXPECT_NE(CodecSpec("nf4"), CodecSpec("fp4"));
  EXPECT_NE(CodecSpec("nf4"), CodecSpec("nf4:block-size=32"));
  EXPECT_NE(CodecSpec("nf4"), CodecSpec("nf4:double-quant=no"));
}

TEST(CodecSpec, KnowsTheOptionsOfItsCodec) {
  EXPECT_TRUE(CodecSpec("nf4").has("block-size"));
  EXPECT_FALSE(CodecSpec("nf4").has("block"));
  EXPECT_FALSE(CodecSpec("int8").has("block-size"));
  EXPECT_EQ(CodecSpec("nf4").index("block-size"), 1U);
  EXPECT_THROW((void)CodecSpec("int8").index("block-size"), Error);
  EXPECT_THROW((void)CodecSpec("nf4").with("block-size", "33"), Error);
  EXPECT_EQ(CodecSpec("nf4:block-size=32").with("double-quant", "no").text(), "nf4:block-size=32,double-quant=no");
}

TEST(CodecSpec, ErrorsSuggestTheCodecThatOthersCallSo) {
  for (const auto& [other, name] : {std::pair<std::string, std::string>{"float8", "fp8"},
                                    {"E4M3", "fp8"},
                                    {"f16", "fp16"},
                                    {"half", "fp16"},
                                    {"bfloat16", "bf16"},
                                    {"float", "fp32"},
                                    {"8bit", "int8"},
                                    {"llm.int8()", "int8"},
                                    {"4-bit", "nf4"},
                                    {"int4", "nf4"},
                                    {"none", "keep"}})
    EXPECT_EQ(error_of(other),
              "2 codec '" + other + "' is not one of " + test::listed_codecs() + ": did you mean " + name + "?");
}

TEST(CodecSpec, RefusesWhatItDoesNotKnow) {
  const std::string sizes = "is not one of 32, 64, 128, 256, 512, 1024, 2048, 4096";
  const std::string codecs = " is not one of " + test::listed_codecs();
  const std::string each = "; each is NAME=VALUE, and the names are block-size, double-quant, absmax";
  const std::string empty = "codec nf4: an option is empty" + each;
  const std::string no_name = "codec nf4: an option has no name" + each;
  const std::string no_size =
      "block-size of codec nf4: has no value; it takes one of 32, 64, 128, 256, 512, 1024, 2048, 4096";
  const auto unknown = [](const std::string& name) {
    return "option of codec nf4: '" + name + "' is not one of block-size, double-quant, absmax";
  };
  const std::string meant = ": did you mean block-size?";
  for (const auto& [text, error] :
       {std::pair<std::string, std::string>{"nf5", "codec 'nf5'" + codecs},
        {"", "codec ''" + codecs},
        {"fp16:", "codec fp16 has no options"},
        {"fp16:block-size=64", "codec fp16 has no options"},
        {"nf4:", empty},
        {"nf4:,", empty},
        {"nf4:=32", no_name},
        {"nf4:=", no_name},
        {"nf4:block-size=32,=no", no_name},
        {"fp16:=32", "codec fp16 has no options"},
        {"nf4:block-size=32,", empty},
        {"nf4:,block-size=32", empty},
        {"nf4:block-size=32,,double-quant=no", empty},
        {"nf4:foo=1", unknown("foo")},
        {"nf4:foo_bar=1", unknown("foo_bar")},
        {"nf4:block-size=32,nf4", unknown("nf4")},
        {"nf4: block-size=32", unknown(" block-size") + meant},
        {"nf4:block-size =32", unknown("block-size ") + meant},
        {"nf4::block-size=32", unknown(":block-size") + meant},
        {"nf4:BLOCK-SIZE=32", unknown("BLOCK-SIZE") + meant},
        {"nf4:block-size=32,block_size=64", "block-size of codec nf4 is given twice"},
        {"nf4:blocksize=64",
         "option of codec nf4: 'blocksize' is not one of block-size, "
         "double-quant, absmax: did you mean block-size?"},
        {"nf4:block-size", no_size},
        {"nf4:block-size=", no_size},
        {"nf4:block-size,double-quant=no", no_size},
        {"nf4:block-size=+32", "block-size of codec nf4: '+32' " + sizes + ": did you mean 32?"},
        {"nf4:block-size=-32", "block-size of codec nf4: '-32' " + sizes + ": did you mean 32?"},
        {"nf4:block-size= 32", "block-size of codec nf4: ' 32' " + sizes + ": did you mean 32?"},
        {"nf4:block-size=032", "block-size of codec nf4: '032' " + sizes},
        {"nf4:block-size=0x20", "block-size of codec nf4: '0x20' " + sizes},
        {"nf4:block-size=4294967328", "block-size of codec nf4: '4294967328' " + sizes},
        {"nf4:block-size=18446744073709551648", "block-size of codec nf4: '18446744073709551648' " + sizes},
        {"nf4:block-size=32:double-quant=no", "block-size of codec nf4: '32:double-quant=no' " + sizes},
        {"nf4:block-size=33", "block-size of codec nf4: '33' " + sizes},
        {"nf4:block-size=64x", "block-size of codec nf4: '64x' " + sizes + ": did you mean 64?"},
        {"nf4:block-size=32=32", "block-size of codec nf4: '32=32' " + sizes},
        {"nf4:double-quant=maybe", "double-quant of codec nf4: 'maybe' is not one of yes, no"},
        {"nf4:block-size=64,block-size=64", "block-size of codec nf4 is given twice"},
        {"nf4 ", "codec 'nf4 '" + codecs + ": did you mean nf4?"}})
    EXPECT_EQ(error_of(text), "2 " + error) << text;
}

}  // namespace
}  // namespace nibble::registry_test
