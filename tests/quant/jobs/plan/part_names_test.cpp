#include "quant/jobs/plan/part_names.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "nibble/error.hpp"
#include "tests/support/memory_checkpoint.hpp"

namespace nibble::part_names_test {
namespace {

struct Planned {
  const char* name;
  const char* source;  // its name in the input
  const char* codec;
};

// What check_part_names() says of such tensors; empty if nothing.
std::string refusal(std::initializer_list<Planned> all) {
  test::MemoryReader in;
  PlannedTensors tensors;
  for (const Planned& each : all) {
    const TensorInfo info{each.name, DType::bf16, {64, 64}};
    in.add_normal(each.source, info.dtype, info.shape, tensors.size());
    tensors.push_back({.info = info,
                       .source = tensors.size(),
                       .codec = each.codec,
                       .reason = {},
                       .module = {},
                       .quantized = make_codec(each.codec)->quantizes()},
                      {});
  }
  try {
    check_part_names(in, tensors, Codings(Recipe{}, tensors));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::bad_input);
    return error.what();
  }
  return {};
}

TEST(PartNames, NamesThatDifferAreNoError) {
  EXPECT_EQ(refusal({{"a.weight", "a.weight", "nf4"}, {"b.weight", "b.weight", "int8"}, {"b.bias", "b.bias", "keep"}}),
            "");
  EXPECT_EQ(refusal({}), "");
}

// The file that is named is the second tensor's; so are the tensors as the input calls them.
TEST(PartNames, APartThatHasTheNameOfATensorIsRefused) {
  EXPECT_EQ(refusal({{"a.weight", "x", "nf4"}, {"b", "b", "keep"}, {"a.weight.absmax", "y", "keep"}}),
            "/file2: tensors 'x' and 'y' would both be stored with a part named 'a.weight.absmax'");
  EXPECT_EQ(refusal({{"a.SCB", "a.SCB", "keep"}, {"a.weight", "a.weight", "int8"}}),
            "/file1: tensors 'a.SCB' and 'a.weight' would both be stored with a part named 'a.SCB'");
}

TEST(PartNames, PartsOfTwoQuantizedTensorsAreComparedToo) {
  EXPECT_EQ(refusal({{"a.weight", "x", "nf4"}, {"a.weight", "y", "nf4"}}),
            "/file1: tensors 'x' and 'y' would both be stored with a part named 'a.weight'");
  // No codec of these has a part that the other has.
  EXPECT_EQ(refusal({{"a.weight", "x", "nf4"}, {"a.SCB", "y", "keep"}}), "");
}

// Nothing is added then, and the names of an input are unique: they are not looked at.
TEST(PartNames, CastsAloneAreNotCompared) { EXPECT_EQ(refusal({{"a", "x", "keep"}, {"a", "y", "fp32"}}), ""); }

TEST(PartNames, UnprintableNamesAreEscaped) {
  const std::string text = refusal({{"a\n.weight", "a\n.weight", "nf4"}, {"a\n.weight", "b", "keep"}});
  EXPECT_NE(text, "");
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

}  // namespace
}  // namespace nibble::part_names_test
