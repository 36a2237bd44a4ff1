#include "formats/containers/safetensors.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "nibble/checkpoint.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/plain_parts.hpp"

namespace nibble::safetensors_test {
namespace {

using test::error_of;
using test::safetensors_file;

std::unique_ptr<Reader> open(const test::TempDir& dir, std::string_view header, std::string_view data) {
  return open_checkpoint(dir.write("f.safetensors", safetensors_file(header, data)));
}

std::string bytes_of(const Reader& reader, std::size_t tensor) {
  std::string bytes(reader.tensors()[tensor].bytes(), '\0');
  reader.read(tensor, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST(Safetensors, TensorsComeInTheOrderOfTheirData) {
  const test::TempDir dir;
  const auto reader = open(dir,
                           R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},"__metadata__":{"k":"v"},)"
                           R"("a":{"data_offsets":[0,4],"shape":[2,2],"dtype":"I8"}}  )",
                           "abcdef");
  ASSERT_EQ(reader->tensors().size(), 2u);
  EXPECT_EQ(reader->tensors()[0], (TensorInfo{"a", DType::i8, {2, 2}}));
  EXPECT_EQ(reader->tensors()[1], (TensorInfo{"b", DType::u8, {2}}));
  EXPECT_EQ(bytes_of(*reader, 0), "abcd");
  EXPECT_EQ(bytes_of(*reader, 1), "ef");
}

TEST(Safetensors, EmptyTensorsShareAnOffset) {
  const test::TempDir dir;
  const auto reader = open(
      dir,
      R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"e":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
      R"("f":{"dtype":"I8","shape":[3,0,1099511627776],"data_offsets":[4,4]}})",
      "data");
  ASSERT_EQ(reader->tensors().size(), 3u);
  EXPECT_EQ(reader->tensors()[0].name, "e");
  EXPECT_EQ(bytes_of(*reader, 0), "");
  EXPECT_EQ(bytes_of(*reader, 1), "data");
  EXPECT_EQ(bytes_of(*reader, 2), "");
}

TEST(Safetensors, WhatTheLibraryReadsIsRead) {
  const test::TempDir dir;
  const auto names = [&](std::string_view header) {
    std::string text;
    const auto reader = open(dir, header, "data");
    for (const TensorInfo& tensor : reader->tensors()) text += tensor.name + ";";
    return text;
  };
  const std::string entry = R"({"dtype":"F32","shape":[],"data_offsets":[0,4]})";
  EXPECT_EQ(names(R"({"":)" + entry + "}"), ";");
  EXPECT_EQ(names(" \n\t{\"w\":" + entry + "}\r\n "), "w;");
  EXPECT_EQ(names(R"({"__metadata__":null,"w":)" + entry + "}"), "w;");
  EXPECT_EQ(names(R"({"__metadata__":{},"w":)" + entry + "}"), "w;");
  EXPECT_EQ(names(R"({"\u0077\/\ud83e\udd17":)" + entry + "}"), "w/🤗;");
  EXPECT_EQ(names(R"({"a\u0000b":)" + entry + "}"), std::string("a\0b;", 4));
  EXPECT_EQ(names(R"({"w":{"x":[{"dtype":[]}],"dtype":"F32","y":-1.5,"shape":[],"z":{},"data_offsets":[0,4]}})"), "w;");
  EXPECT_EQ(names(R"({"w":{"x":{"dtype":1,"shape":{}},"dtype":"F32","shape":[],"data_offsets":[0,4]}})"), "w;");
  EXPECT_EQ(names("{\"" + std::string(70'000, 'x') + "\":" + entry + "}"), std::string(70'000, 'x') + ";");
  EXPECT_EQ(open_checkpoint(dir.write("e.safetensors", safetensors_file("{}")))->tensors().size(), 0u);
}

TEST(Safetensors, MetadataIsNoTensor) {
  MemoryLimit memory;
  const auto header = safetensors::parse_header(R"({"__metadata__":{"format":"pt","b":"é"}})", 48, 48, "f", memory);
  EXPECT_TRUE(header.tensors.empty());
  EXPECT_EQ(header.offsets, std::vector<std::uint64_t>{48});
}

std::string parsed_within(std::string_view header, std::uint64_t bytes, Errc code = Errc::no_space) {
  MemoryLimit limit(program_bytes + bytes);
  const std::string error = error_of(
      [&] { (void)safetensors::parse_header(header, 8 + header.size(), 8 + header.size(), "f", limit); }, code);
  EXPECT_EQ(limit.taken(), 0u);
  return error;
}

std::string empty_tensors(std::size_t count, std::string_view shape) {
  std::string header = "{";
  for (std::size_t i = 0; i < count; ++i)
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[0,0]}})", i == 0 ? "" : ",", i, shape);
  return header + "}";
}

TEST(Safetensors, SixtyFourDimensionsAreTheMost) {
  const std::string zeros =
      "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
      "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0";
  EXPECT_EQ(parsed_within(empty_tensors(1, zeros), 10'000, Errc::bad_input), "");
  EXPECT_EQ(parsed_within(empty_tensors(1, zeros + ",0"), 10'000, Errc::bad_input),
            "f: tensor '0': shape has more than 64 dimensions");
  // Whatever follows the 65th is not read.
  EXPECT_EQ(parsed_within(R"({"w":{"shape":[)" + zeros + ",1,x", 10'000, Errc::bad_input),
            "f: tensor 'w': shape has more than 64 dimensions");
}

TEST(Safetensors, WhatAHeaderHoldsIsCountedWhileItIsRead) {
  const std::string needs = "f: opening it needs at least ";
  // Per tensor: its row, its name, its dimensions and its offsets, three times; and an entry of the index of names.
  EXPECT_EQ(parsed_within(empty_tensors(1000, "0"), 1000 * (3 * (16 + 3 + 8 + 16) + 8)), "");
  EXPECT_EQ(parsed_within(empty_tensors(1000, "0"), 1000 * 3 * (16 + 2 + 8 + 16)).substr(0, needs.size()), needs);
  EXPECT_EQ(parsed_within(empty_tensors(1000, "0,0,0"), 1000 * (3 * (16 + 3 + 8 + 16) + 8)).substr(0, needs.size()),
            needs);
  const std::string name(100'000, 'n');
  const std::string long_name = R"({")" + name + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})";
  EXPECT_EQ(parsed_within(long_name, 300'000).substr(0, needs.size()), needs);

  std::string metadata = R"({"__metadata__":{"x":"")";
  for (int key = 1000; key < 2000; ++key) metadata += fmt::format(R"(,"{}":"value")", key);
  EXPECT_EQ(parsed_within(metadata + "}}", 1001 * (2 * (4 + 8) + 8)), "");
  EXPECT_EQ(parsed_within(metadata + "}}", 1000 * 2 * (4 + 8)).substr(0, needs.size()), needs);
  const std::string value = R"({"__metadata__":{"x":")" + std::string(1'000'000, 'v') + R"("}})";
  EXPECT_EQ(parsed_within(value, 3'500'000).substr(0, 37), "f: header: opening it needs at least ");
}

// They are only followed to their end: a million values there take nothing.
TEST(Safetensors, UnknownFieldsAreNotKept) {
  std::string header = R"({"w":{"x":[0)";
  for (int i = 0; i < 500'000; ++i) header += R"(,"a")";
  EXPECT_EQ(parsed_within(header + R"(],"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 300'000), "");
}

std::string header_of(const TensorList& parts, const safetensors::Layout& layout) {
  std::string header;
  safetensors::write_header(test::PlainParts(parts), layout, [&](std::uint64_t offset, std::string_view piece) {
    EXPECT_EQ(offset, header.size());
    header += piece;
  });
  return header;
}

TEST(Safetensors, LayoutIsThatOfTheLibrary) {
  // Written by safetensors.torch.save_file, 0.8.0.
  const TensorList parts{{"b", DType::u8, {3}},
                         {"scalar", DType::f32, {}},
                         {"a", DType::u8, {0, 4}},
                         {"q\"uo\\te\n", DType::i64, {1}},
                         {"层", DType::bf16, {2, 2}}};
  const safetensors::Layout layout = safetensors::lay_out(test::PlainParts(parts));
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"q\"uo\\te\n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[8,12]},"层":{"dtype":"BF16","shape":[2,2],"data_offsets":[12,20]},)"
      R"("a":{"dtype":"U8","shape":[0,4],"data_offsets":[20,20]},"b":{"dtype":"U8","shape":[3],"data_offsets":[20,23]}})";
  const std::string padded = json + std::string((8 - json.size() % 8) % 8, ' ');
  EXPECT_EQ(header_of(parts, layout), safetensors_file(padded));
  const std::uint64_t data = 8 + padded.size();
  EXPECT_EQ(layout.offsets, (std::vector<std::uint64_t>{data + 20, data + 8, data + 20, data, data + 12}));
  EXPECT_EQ(layout.file_bytes, data + 23);
}

TEST(Safetensors, LayoutReadsBack) {
  std::mt19937 random(1);
  std::vector<TensorInfo> parts;
  for (std::size_t i = 0; i < 2000; ++i)
    parts.push_back(
        {fmt::format("t{}", i), dtypes[random() % dtypes.size()].dtype, {random() % 5, 8 * (random() % 3)}});
  const TensorList list{std::span(parts)};
  const safetensors::Layout layout = safetensors::lay_out(test::PlainParts(list));
  const std::string text = header_of(list, layout);
  ASSERT_EQ(text.size(), layout.header_bytes);
  MemoryLimit memory;
  const safetensors::Header header =
      safetensors::parse_header(std::string_view(text).substr(8), text.size(), layout.file_bytes, "f", memory);
  ASSERT_EQ(header.tensors.size(), parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto found = std::find(header.tensors.begin(), header.tensors.end(), parts[i]);
    ASSERT_NE(found, header.tensors.end());
    EXPECT_EQ(header.offsets[static_cast<std::size_t>(found - header.tensors.begin())], layout.offsets[i]);
  }
}

TEST(Safetensors, LayoutRefusesWhatNobodyCouldRead) {
  const TensorList twice{{"w", DType::u8, {1}}, {"w", DType::f32, {1}}};
  EXPECT_EQ(error_of([&] { (void)safetensors::lay_out(test::PlainParts(twice)); }),
            "two tensors would be written as 'w'");
  const TensorList long_name{{std::string(100'000'000, 'x'), DType::u8, {1}}};
  EXPECT_EQ(error_of([&] { (void)safetensors::lay_out(test::PlainParts(long_name)); }),
            "1 tensors need a header of 100000088 bytes, more than 100000000");
  const TensorList large{{"a", DType::u8, {std::uint64_t{1} << 60}}, {"b", DType::u8, {std::uint64_t{1} << 60}}};
  EXPECT_GT(safetensors::lay_out(test::PlainParts(large)).file_bytes, std::uint64_t{1} << 61);
}

}  // namespace
}  // namespace nibble::safetensors_test
