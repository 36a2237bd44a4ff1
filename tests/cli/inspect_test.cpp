// What nibble inspect prints, to the letter.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/corrupt.hpp"
#include "tests/support/program.hpp"

namespace nibble::cli::inspect_test {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::ordered_json;

class Inspect : public testing::Test {
 protected:
  std::string text(const std::string& checkpoint) const { return out("inspect " + checkpoint); }
  Json json(const std::string& checkpoint) const { return Json::parse(out("inspect --json " + checkpoint)); }

  std::string out(const std::string& arguments) const {
    const test::Outcome outcome = test::run_program(root_.path(), arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return outcome.out;
  }

  // Two shards, named by an index against the order of their tensors' names.
  void write_model() const {
    root_.write(
        "model/b.safetensors",
        test::safetensors_file(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", std::string(24, '\0')));
    root_.write(
        "model/a.safetensors",
        test::safetensors_file(R"({"z":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}})", std::string(8, '\0')));
    root_.write("model/model.safetensors.index.json",
                R"({"metadata":{"total_size":32},"weight_map":{"a":"b.safetensors","z":"a.safetensors"}})");
  }

  test::TempDir root_;
};

// Tensors are printed one at a time; the text is that of the whole tree.
TEST_F(Inspect, JsonIsIndentedAsOneTree) {
  write_model();
  root_.write("none.safetensors", test::safetensors_file("{}"));
  for (const std::string checkpoint : {"model", "none.safetensors"}) {
    const std::string printed = out("inspect --json " + checkpoint);
    EXPECT_EQ(printed, Json::parse(printed).dump(1) + "\n");
  }
}

TEST_F(Inspect, TableHasNamesTypesShapesAndSizes) {
  root_.write("w.safetensors",
              test::safetensors_file(R"({"layer.weight":{"dtype":"F32","shape":[4,64],"data_offsets":[0,1024]},)"
                                     R"("b":{"dtype":"BF16","shape":[500],"data_offsets":[1024,2024]},)"
                                     R"("count":{"dtype":"I64","shape":[],"data_offsets":[2024,2032]},)"
                                     R"("none":{"dtype":"F32","shape":[0,7],"data_offsets":[2032,2032]}})",
                                     std::string(2032, '\0')));
  EXPECT_EQ(text("w.safetensors"),
            "b             BF16                 500     1.00 kB\n"
            "count         I64               scalar     8 bytes\n"
            "layer.weight  F32               4 x 64     1.02 kB\n"
            "none          F32                0 x 7     0 bytes\n"
            "\n"
            "4 tensors in 1 file, 2.03 kB (1.98 KiB); BF16 1.00 kB; F32 1.02 kB; I64 8 bytes\n");
}

TEST_F(Inspect, DirectoryIsOneCheckpoint) {
  write_model();
  EXPECT_THAT(text("model"), EndsWith("\n2 tensors in 2 files, 32 bytes; BF16 8 bytes; F32 24 bytes\n"));
  EXPECT_EQ(json("model"),
            Json::parse(R"({"architecture": null, "model_type": null, "files": ["a.safetensors", "b.safetensors"],)"
                        R"("bytes": 32, "tensors": [)"
                        R"({"name": "z", "dtype": "BF16", "shape": [4], "bytes": 8, "file": "a.safetensors"},)"
                        R"({"name": "a", "dtype": "F32", "shape": [2, 3], "bytes": 24, "file": "b.safetensors"}]})"));
}

TEST_F(Inspect, ConfigurationIsTold) {
  write_model();
  root_.write("model/config.json", R"({"architectures":["LlamaForCausalLM"],"model_type":"llama"})");
  EXPECT_EQ(json("model").at("architecture"), "LlamaForCausalLM");
  EXPECT_EQ(json("model").at("model_type"), "llama");
}

// What a conversion wrote can be looked at, though it could not be converted again.
TEST_F(Inspect, QuantizedCheckpointsAreListedPartByPart) {
  write_model();
  root_.write("model/config.json",
              R"({"model_type":"llama","quantization_config":{"quant_method":"bitsandbytes","load_in_4bit":true}})");
  EXPECT_EQ(json("model").at("tensors").size(), 2U);
  EXPECT_EQ(test::run_program(root_.path(), "convert model out --to nf4").code, 3);
}

// As they were before, and layer 2 before layer 10.
TEST_F(Inspect, QuantizedCheckpointsAreListedByWeights) {
  Json header;
  std::size_t at = 0;
  for (const int layer : {10, 2, 9})
    for (const auto& [name, bytes] : {std::pair{".w.weight", 1024}, {".norm.weight", 256}}) {
      Json& entry = header["h." + std::to_string(layer) + name];
      entry = {{"dtype", "F32"}, {"shape", {bytes / 256, 64}}, {"data_offsets", {at, at + bytes}}};
      if (bytes == 256) entry["shape"] = {64};
      at += bytes;
    }
  root_.write("w.safetensors", test::safetensors_file(header.dump(), std::string(at, '\x3f')));
  ASSERT_EQ(test::run_program(root_.path(), "convert w.safetensors q.safetensors --to nf4 --block-size 128").code, 0);
  const std::string listed = text("q.safetensors");
  EXPECT_THAT(listed, StartsWith("h.2.norm.weight   F32                                64   256 bytes\n"
                                 "h.2.w.weight      nf4:block-size=128             4 x 64     1.39 kB\n"
                                 "h.9.norm.weight   F32                                64   256 bytes\n"
                                 "h.9.w.weight      nf4:block-size=128             4 x 64     1.39 kB\n"
                                 "h.10.norm.weight  F32                                64   256 bytes\n"
                                 "h.10.w.weight     nf4:block-size=128             4 x 64     1.39 kB\n"
                                 "\n6 weights, stored as 21 tensors in 1 file, "));
  EXPECT_EQ(json("q.safetensors").at("tensors").size(), 21U);
  ASSERT_EQ(test::run_program(root_.path(), "convert w.safetensors i.safetensors --to int8").code, 0);
  EXPECT_THAT(text("i.safetensors"), HasSubstr("h.2.w.weight      int8 "));
}

TEST_F(Inspect, NumbersAreOrderedByValue) {
  root_.write("w.safetensors", test::safetensors_with({"a10", "a9b", "a09", "a9", "b", "a", "a009b", "a1.2", "a1.10"}));
  std::string names;
  std::istringstream lines(text("w.safetensors"));
  for (std::string line; std::getline(lines, line) && !line.empty();) names += line.substr(0, line.find(' ')) + " ";
  EXPECT_EQ(names, "a a1.2 a1.10 a09 a9 a009b a9b a10 b ");
}

TEST_F(Inspect, HeadersAreBoundedByMaxMemory) {
  root_.write("w.safetensors", test::safetensors_with({"a"}));
  const test::Outcome outcome = test::run_program(root_.path(), "inspect w.safetensors --max-memory 14MB");
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.err, StartsWith("error: w.safetensors: opening it needs at least "));
  EXPECT_EQ(test::run_program(root_.path(), "inspect w.safetensors --max-memory 20MB").code, 0);
}

TEST_F(Inspect, NothingInAFile) {
  root_.write("w.safetensors", test::safetensors_file("{}"));
  EXPECT_EQ(text("w.safetensors"), "\n0 tensors in 1 file, 0 bytes\n");
  EXPECT_EQ(json("w.safetensors").at("tensors"), Json::array());
}

// A name cannot paint the terminal, end a line or push the columns apart, and programs get it as it is.
TEST_F(Inspect, HostileNames) {
  const std::string hostile = "\x1b[31m\nb\t", long_name(300, 'n');
  const Json header = {{hostile, {{"dtype", "U8"}, {"shape", {1}}, {"data_offsets", {0, 1}}}},
                       {"c", {{"dtype", "U8"}, {"shape", {1}}, {"data_offsets", {1, 2}}}}};
  root_.write("w.safetensors", test::safetensors_file(header.dump(), "ab"));
  EXPECT_THAT(text("w.safetensors"), StartsWith("\\x1b[31m\\nb\\t  U8                     1     1 bytes\n"
                                                "c              U8                     1     1 bytes\n\n"));
  EXPECT_EQ(json("w.safetensors").at("tensors").at(0).at("name"), hostile);
  root_.write("long.safetensors", test::safetensors_with({long_name}));
  EXPECT_THAT(text("long.safetensors"), StartsWith(std::string(38, 'n') + "..." + std::string(39, 'n') + "  F32  "));
  EXPECT_EQ(json("long.safetensors").at("tensors").at(0).at("name"), long_name);
}

// 2^40 bytes of holes would take an hour to read.
TEST_F(Inspect, DataIsNotRead) {
  const std::string header = R"({"w":{"dtype":"U8","shape":[1099511627776],"data_offsets":[0,1099511627776]}})";
  const fs::path file = root_.write("w.safetensors", test::safetensors_file(header));
  std::error_code error;
  fs::resize_file(file, 8 + header.size() + (std::uintmax_t{1} << 40U), error);
  if (error) GTEST_SKIP() << "no file of this size: " << error.message();
  EXPECT_THAT(text("w.safetensors"), HasSubstr("1 tensor in 1 file, 1.10 TB (1.00 TiB); U8 1.10 TB\n"));
}

}  // namespace
}  // namespace nibble::cli::inspect_test
