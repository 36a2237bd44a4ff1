// What a converted model directory consists of, and what it is made from.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/commit/writer.hpp"
#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/plain_parts.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::writer_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::read_file;
using testing::HasSubstr;

class WriterTest : public testing::Test {
 protected:
  WriterTest() {
    fs::create_directory(in_);
    write("model.safetensors", test::safetensors_with({"a", "b"}));
    write("config.json", "{\n    \"model_type\": \"x\",\n    \"limit\": Infinity\n}\n");
  }

  void write(const std::string& name, std::string_view text) const {
    fs::create_directories((in_ / name).parent_path());
    std::ofstream(in_ / name, std::ios::binary) << text;
  }

  // Writes every tensor as it is, one to a shard.
  void copy(Finish finish, bool overwrite = false, std::string_view manifest = {}) const {
    const auto in = open_checkpoint(in_);
    const auto out =
        create_checkpoint(out_, *in, {.shards = in->tensors().size(), .bytes = 32, .overwrite = overwrite});
    std::deque<TensorList> lists;
    std::deque<test::PlainParts> shards;
    finish.parameters = 7;
    for (std::size_t i = 0; i < in->tensors().size(); ++i) {
      std::vector<std::byte> bytes(in->tensors()[i].bytes());
      in->read(i, 0, bytes);
      lists.push_back({in->tensors()[i]});
      finish.shards.push_back(&shards.emplace_back(lists.back()));
      out->begin(i, shards.back());
      out->write(0, 0, bytes);
      out->end();
    }
    if (!manifest.empty()) out->write_manifest(0, manifest);
    out->complete(finish);
    out->commit();
  }

  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(out_))
      if (!entry.is_directory()) names.insert(entry.path().lexically_relative(out_));
    return names;
  }

  test::TempDir root_;
  fs::path in_ = root_.path() / "in";
  fs::path out_ = root_.path() / "out";
};

// What the source was quantized with, the output is not.
TEST_F(WriterTest, QuantizationOfTheSourceIsTakenOut) {
  bool was_decoded = true;
  const auto config_after = [&](std::string_view before, const std::string& quantization) {
    write("config.json", before);
    copy({.quantization_config = quantization, .was_decoded = was_decoded, .dtype = {}, .shards = {}},
         /*overwrite=*/true);
    return read_file(out_ / "config.json");
  };
  constexpr std::string_view fp8 = R"({"a": 1, "quantization_config": {"quant_method": "fp8"}, "b": 2})";
  EXPECT_EQ(config_after(fp8, ""), R"({"a": 1, "b": 2})");
  EXPECT_EQ(config_after(fp8, R"({"x":1})"), R"({"a": 1, "quantization_config": {"x":1}, "b": 2})");
  constexpr std::string_view old = R"({"compression_config": {"quant_method": "compressed-tensors"}, "b": 2})";
  EXPECT_EQ(config_after(old, ""), R"({"b": 2})");
  EXPECT_EQ(config_after(old, R"({"x":1})"), R"({"b": 2, "quantization_config": {"x":1}})");
  constexpr std::string_view both =
      R"({"quantization_config": {"quant_method": "fp8"}, "compression_config": {"x": 2}, "b": 2})";
  EXPECT_EQ(config_after(both, ""), R"({"b": 2})");
  EXPECT_EQ(config_after(both, R"({"x":1})"), R"({"quantization_config": {"x":1}, "b": 2})");
  constexpr std::string_view plain = R"({"quantization_config": null, "b": 2})";
  was_decoded = false;
  EXPECT_EQ(config_after(plain, ""), plain);
}

TEST_F(WriterTest, ShardsAndTheirIndex) {
  copy({}, false, "{}\n");
  EXPECT_EQ(files(),
            (std::set<std::string>{"config.json", "model-00001-of-00002.safetensors",
                                   "model-00002-of-00002.safetensors", "model.safetensors.index.json", "nibble.json"}));
  EXPECT_EQ(
      read_file(out_ / "model.safetensors.index.json"),
      "{\n  \"metadata\": {\n    \"total_parameters\": 7,\n    \"total_size\": 32\n  },\n  \"weight_map\": {\n"
      "    \"a\": \"model-00001-of-00002.safetensors\",\n    \"b\": \"model-00002-of-00002.safetensors\"\n  }\n}\n");
  EXPECT_EQ(open_checkpoint(out_)->tensors().size(), 2U);
}

TEST_F(WriterTest, ConfigIsPatchedAndOtherwiseKept) {
  copy({.quantization_config = R"({"load_in_4bit":true})", .dtype = "float16", .shards = {}});
  const std::string config = read_file(out_ / "config.json");
  EXPECT_THAT(config, testing::StartsWith("{\n    \"model_type\": \"x\",\n    \"limit\": Infinity"));
  EXPECT_THAT(config, HasSubstr("\n    \"dtype\": \"float16\""));
  EXPECT_THAT(config, HasSubstr("\n    \"torch_dtype\": \"float16\""));
  EXPECT_THAT(config, HasSubstr("\"load_in_4bit\""));
}

TEST_F(WriterTest, ConfigSaysThatLayersWereUntied) {
  write("config.json", R"({"tie_word_embeddings": true, "text_config": {"b": 2}})");
  copy({.quantization_config = {}, .unties = true, .dtype = "float16", .shards = {}});
  EXPECT_EQ(
      read_file(out_ / "config.json"),
      R"({"tie_word_embeddings": false, "text_config": {"b": 2, "tie_word_embeddings": false}, "dtype": "float16", )"
      R"("torch_dtype": "float16"})");
}

// Of the two directories, errors name the one that the file is in.
TEST_F(WriterTest, ErrorsNameTheInput) {
  const auto in = open_checkpoint(in_);
  const auto out = create_checkpoint(out_, *in, {.shards = 2, .bytes = 0});
  write("config.json", "[]");
  EXPECT_EQ(error_of([&] { out->complete({.quantization_config = "{}", .dtype = {}, .shards = {}}); }),
            (in_ / "config.json").string() + ": is not a JSON object");
}

TEST_F(WriterTest, EverythingElseIsCarriedOver) {
  write("tokenizer.json", "tokens");
  write("modeling_x.py", "code");
  write("1_Pooling/config.json", "pooling");
  write("2_Dense/model.safetensors", "a module's weights");
  write("run.sh", "#!/bin/sh");
  fs::permissions(in_ / "run.sh", fs::perms::owner_all);
  fs::create_symlink("tokenizer.json", in_ / "link.json");
  copy({});
  EXPECT_EQ(read_file(out_ / "tokenizer.json"), "tokens");
  EXPECT_EQ(read_file(out_ / "1_Pooling" / "config.json"), "pooling");
  EXPECT_EQ(read_file(out_ / "2_Dense" / "model.safetensors"), "a module's weights");
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(out_ / "link.json")));
  EXPECT_EQ(fs::status(out_ / "run.sh").permissions(), fs::perms::owner_all);
}

// At the top, the indexes of weights that are not carried over are not either. All other indexes are files like any
// other.
TEST_F(WriterTest, IndexesGoWithTheirWeights) {
  const std::string old = R"({"weight_map": {"a": "shard.safetensors", "b": "shard.safetensors"}})";
  for (const char* const name : {"enc/model.safetensors.index.json", "enc/pytorch_model.bin.index.json",
                                 "passages.index.json", "enc/passages.index.json", "pytorch_model.bin.index.json",
                                 "model.fp16.safetensors.index.json", "onnx/model.onnx.index.json"})
    write(name, "an index");
  fs::rename(in_ / "model.safetensors", in_ / "shard.safetensors");
  write("model.safetensors.index.json", old);
  copy({});
  EXPECT_EQ(files(), (std::set<std::string>{"config.json", "nibble.json", "model-00001-of-00002.safetensors",
                                            "model-00002-of-00002.safetensors", "model.safetensors.index.json",
                                            "passages.index.json", "enc/model.safetensors.index.json",
                                            "enc/pytorch_model.bin.index.json", "enc/passages.index.json"}));
  EXPECT_EQ(read_file(out_ / "enc" / "model.safetensors.index.json"), "an index");
  EXPECT_NE(read_file(out_ / "model.safetensors.index.json"), old);
}

// Seen before the work is done, as the folder could not be made, or the file not be written.
TEST_F(WriterTest, FoldersWithNamesOfNewFilesAreRefused) {
  const auto refusal = [&](const std::string& name, std::size_t shards) {
    fs::create_directory(in_ / name);
    const auto in = open_checkpoint(in_);
    const CreateOptions options{.shards = shards, .bytes = 0};
    const std::string early = error_of([&] { check_output(out_, *in, options); });
    EXPECT_EQ(error_of([&] { (void)create_checkpoint(out_, *in, options); }), early);
    fs::remove(in_ / name);
    return early;
  };
  for (const char* const name : {"nibble.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                 "model.safetensors.index.json"})
    EXPECT_EQ(refusal(name, 2), (in_ / name).string() + ": is a folder, but the output has a file of that name");
  for (const char* const name : {"model-00001-of-00002.safetensors", "model.safetensors.index.json", "nibble"})
    EXPECT_EQ(refusal(name, 1), "");
  write("folder/nibble.json/file", "x");
  copy({});
  EXPECT_EQ(read_file(out_ / "folder" / "nibble.json" / "file"), "x");
}

TEST_F(WriterTest, LinksToFoldersAreFollowedButNotInCircles) {
  fs::create_directories(root_.path() / "elsewhere");
  std::ofstream(root_.path() / "elsewhere" / "config.json") << "pooling";
  fs::create_directory_symlink("../elsewhere", in_ / "1_Pooling");
  fs::create_directory_symlink(".", in_ / "self");
  fs::create_directory(in_ / "a");
  fs::create_directory_symlink("..", in_ / "a" / "up");
  copy({});
  EXPECT_EQ(read_file(out_ / "1_Pooling" / "config.json"), "pooling");
  EXPECT_FALSE(fs::exists(out_ / "self"));
  EXPECT_FALSE(fs::exists(out_ / "a"));
}

TEST_F(WriterTest, OtherWeightsAndHiddenFilesAreNot) {
  for (const char* const name : {"pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "original/consolidated.00.pth",
                                 "extra.safetensors", ".git/config", "nibble.json"})
    write(name, "x");
  ASSERT_EQ(mkfifo((in_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("nowhere", in_ / "broken");
  copy({}, false, "ours");
  EXPECT_EQ(files().size(), 5U);
  EXPECT_EQ(read_file(out_ / "nibble.json"), "ours");
  EXPECT_FALSE(fs::exists(out_ / "onnx"));
}

TEST_F(WriterTest, ExistingOutputIsRefusedUnlessOverwritten) {
  copy({});
  EXPECT_THAT(error_of([&] { copy({}); }, Errc::output_exists), HasSubstr("exists"));
  EXPECT_EQ(test::remedy_of([&] { copy({}); }).kind, Remedy::Kind::replace_output);
  write("note.txt", "second");
  copy({}, true);
  EXPECT_EQ(read_file(out_ / "note.txt"), "second");
}

// A second conversion of the same model is exchanged with the first in one step; others have to leave what is not
// theirs.
TEST_F(WriterTest, WhatTheInputDoesNotHaveStays) {
  write("README.md", "first");
  write("1_Pooling/config.json", "first");
  copy({});
  const auto is_beside = [&] {
    const auto in = open_checkpoint(in_);
    const auto out = create_checkpoint(out_, *in, {.shards = 2, .bytes = 32, .overwrite = true});
    return fs::exists(root_.path() / ".out.nibble");
  };
  EXPECT_TRUE(is_beside());
  fs::create_directories(out_ / ".git");
  std::ofstream(out_ / ".git" / "HEAD") << "ref";
  EXPECT_FALSE(is_beside());
  fs::remove(in_ / "README.md");
  fs::remove(out_ / "config.json");
  std::ofstream(out_ / "nibble.json") << "{}";
  write("1_Pooling/config.json", "second");
  copy({}, true);
  EXPECT_EQ(read_file(out_ / ".git" / "HEAD"), "ref");
  EXPECT_EQ(read_file(out_ / "README.md"), "first");
  EXPECT_EQ(read_file(out_ / "1_Pooling" / "config.json"), "second");
  EXPECT_TRUE(fs::exists(out_ / "config.json"));
  EXPECT_EQ(test::entries_of(root_.path()), (std::vector<std::string>{"in", "out"}));
  fs::rename(in_ / "1_Pooling" / "config.json", in_ / "1_Pooling" / "other.json");
  EXPECT_THAT(error_of([&] { copy({}, true); }, Errc::output_exists),
              HasSubstr("out: contains '1_Pooling/config.json', which is in a folder that the new output replaces"));
  EXPECT_EQ(read_file(out_ / "1_Pooling" / "config.json"), "second");
}

// A tokenizer of another model would be carried over beside the weights.
TEST_F(WriterTest, WhatIsCarriedOverHasToStayAsItIs) {
  const auto refused = [&](auto&& change) {
    fs::remove_all(in_ / "folder");
    write("tokenizer.json", "first");
    write("folder/a.txt", "first");
    const auto in = open_checkpoint(in_);
    const auto out = create_checkpoint(out_, *in, {.shards = 2, .bytes = 32});
    change();
    out->write_manifest(0, "ours");
    std::string text = error_of([&] { out->complete({}); }, Errc::input_changed);
    if (text.starts_with(in_.string() + "/")) text.erase(0, in_.string().size() + 1);
    return text;
  };
  EXPECT_EQ(refused([] {}), "");
  EXPECT_EQ(refused([&] { write("tokenizer.json", "second"); }), "tokenizer.json: changed while the model was read");
  EXPECT_EQ(refused([&] { write("folder/b.txt", "new"); }), "folder/b.txt: appeared while the model was read");
  EXPECT_EQ(refused([&] { fs::remove(in_ / "folder" / "a.txt"); }), "folder/a.txt: no longer exists");
  EXPECT_EQ(refused([&] {  // of the same size, and as old
              const auto time = fs::last_write_time(in_ / "tokenizer.json");
              write("other.tmp", "tsrif");
              fs::last_write_time(in_ / "other.tmp", time);
              fs::rename(in_ / "other.tmp", in_ / "tokenizer.json");
            }),
            "tokenizer.json: changed while the model was read");
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(WriterTest, InputAndOutputStayApart) {
  const auto in = open_checkpoint(in_);
  for (const fs::path& out : {in_, in_ / "out", root_.path(), in_ / ".." / "in"})
    EXPECT_THAT(
        error_of([&] { (void)create_checkpoint(out, *in, {.shards = 1, .bytes = 0, .overwrite = true}); }, Errc::usage),
        HasSubstr(" the input '"));
  fs::create_directory_symlink(in_, root_.path() / "alias");
  EXPECT_THAT(
      error_of(
          [&] { (void)create_checkpoint(root_.path() / "alias", *in, {.shards = 1, .bytes = 0, .overwrite = true}); },
          Errc::usage),
      HasSubstr("is the input '"));
}

// Weights that are links into the output would go with it.
TEST_F(WriterTest, InputThatLinksIntoTheOutputIsRefused) {
  copy({});
  const fs::path alias = root_.path() / "alias";
  fs::create_directory(alias);
  fs::create_symlink(out_ / "config.json", alias / "config.json");
  fs::create_symlink(in_ / "model.safetensors", alias / "model.safetensors");
  const auto in = open_checkpoint(alias);
  for (const fs::path& out : {out_, in_})
    EXPECT_THAT(
        error_of([&] { (void)create_checkpoint(out, *in, {.shards = 1, .bytes = 0, .overwrite = true}); }, Errc::usage),
        HasSubstr("the input '"));
}

// So would everything else that the output replaces.
TEST_F(WriterTest, LinksToWhatIsCarriedOverAreInput) {
  fs::create_directories(out_ / "enc" / "inner");
  std::ofstream(out_ / "enc" / "tokenizer.json") << "tokens";
  const auto refusal = [&](const fs::path& target, const fs::path& link) {
    fs::create_directories((in_ / link).parent_path());
    fs::create_symlink(target, in_ / link);
    const auto in = open_checkpoint(in_);
    const CreateOptions options{.shards = 1, .bytes = 0, .overwrite = true};
    const std::string early = error_of([&] { check_output(out_, *in, options); }, Errc::usage);
    EXPECT_EQ(error_of([&] { (void)create_checkpoint(out_, *in, options); }, Errc::usage), early);
    fs::remove(in_ / link);
    return early;
  };
  const std::string linked = ": the output contains files that are linked from the input '";
  EXPECT_THAT(refusal(out_ / "enc" / "tokenizer.json", "tokenizer.json"), HasSubstr(linked));
  EXPECT_THAT(refusal(out_ / "enc" / "tokenizer.json", "folder/vocabulary.json"), HasSubstr(linked));
  EXPECT_THAT(refusal(out_ / "enc" / "inner", "inner"), HasSubstr(linked));
  EXPECT_THAT(refusal(out_, "old"), HasSubstr(linked));
}

TEST_F(WriterTest, TooLittleDiskIsSaidBeforeAnythingIsWritten) {
  const auto in = open_checkpoint(in_);
  EXPECT_THAT(error_of([&] { check_output(out_, *in, {.bytes = std::uint64_t{1} << 62U}); }, Errc::no_space),
              HasSubstr(" free"));
  EXPECT_THAT(error_of([&] { (void)create_checkpoint(out_, *in, {.bytes = std::uint64_t{1} << 62U}); }, Errc::no_space),
              HasSubstr("the disk has"));
  EXPECT_EQ(std::distance(fs::directory_iterator(root_.path()), fs::directory_iterator()), 1);
}

// Beside the output, where there is room for it: tests/core/files/file_scratch_test.cpp has the rest.
TEST_F(WriterTest, ScratchIsOfTheOutput) {
  const auto in = open_checkpoint(in_);
  const auto out = create_checkpoint(out_, *in, {.bytes = 32});
  const auto scratch = out->make_scratch();
  std::vector<std::byte> bytes(1000);
  scratch->write(0, bytes);
  EXPECT_THAT(error_of([&] { scratch->read(1, bytes); }, Errc::io), testing::MatchesRegex(".*out: cannot read .*"));
  EXPECT_TRUE(fs::is_empty(root_.path() / ".out.nibble" / "new"));
}

TEST_F(WriterTest, FileBecomesFile) {
  const auto in = open_checkpoint(in_ / "model.safetensors");
  const auto out = create_checkpoint(out_, *in, {.bytes = 32});
  out->begin(0, test::PlainParts(in->tensors()));
  const std::vector<std::byte> zeros(16);
  out->write(0, 0, zeros);
  out->write(1, 0, zeros);
  out->end();
  out->write_manifest(0, "first draft");
  out->write_manifest(1, "x");
  out->write_manifest(0, "m");
  out->complete({});
  out->commit();
  EXPECT_EQ(open_checkpoint(out_)->tensors().size(), 2U);
  EXPECT_EQ(read_file(root_.path() / "out.nibble.json"), "m");
}

}  // namespace
}  // namespace nibble::writer_test
