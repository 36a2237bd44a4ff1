// What is copied and how is shown by tests/formats/commit/writer_test.cpp. Here: what stays behind, and limits.

#include "formats/commit/carry_over.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::carry_over_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::ElementsAre;
using testing::IsEmpty;

class CarryOverTest : public testing::Test {
 protected:
  void write(const std::string& name, std::string_view bytes = "1234") const {
    fs::create_directories((root_.path() / name).parent_path());
    (void)root_.write(name, bytes);
  }
  CarryOver& measured() {
    carry_over_.emplace("in", "out", converted_);
    bytes_ = carry_over_->measure(Directory(root_.path()));
    return *carry_over_;
  }

  test::TempDir root_;
  std::vector<std::string> converted_{"model.safetensors"};
  std::optional<CarryOver> carry_over_;
  std::uint64_t bytes_ = 0;
};

TEST_F(CarryOverTest, WeightsThatWereNotConvertedAreListed) {
  for (const char* const name :
       {"model.safetensors", "pytorch_model.bin", "x.pt", "x.gguf", "onnx/model.onnx", "onnx/model.onnx_data",
        "consolidated.safetensors", "tokenizer.json", "config.json", "spk_dict.pt"})
    write(name);
  EXPECT_THAT(measured().left_out().weights,
              ElementsAre("consolidated.safetensors", "onnx/model.onnx", "onnx/model.onnx_data", "pytorch_model.bin",
                          "x.gguf", "x.pt"));
  EXPECT_EQ(bytes_, 8U);
}

// With it, transformers would load the adapter's base. In folders, nobody looks for one.
TEST_F(CarryOverTest, AnAdapterStaysBehind) {
  for (const char* const name : {"model.safetensors", "adapter_config.json", "adapter_model.safetensors",
                                 "adapter_model.safetensors.index.json", "adapter_notes.txt", "x/adapter_config.json"})
    write(name);
  EXPECT_THAT(measured().left_out().adapter,
              ElementsAre("adapter_config.json", "adapter_model.safetensors", "adapter_model.safetensors.index.json"));
  EXPECT_THAT(measured().left_out().weights, IsEmpty());
  EXPECT_EQ(bytes_, 8U);
}

// An index of weights that a user names may be called anything.
TEST_F(CarryOverTest, FilesThatAreReplacedStayBehind) {
  write("mine.index.json");
  write("folder/mine.index.json");
  (void)measured();
  EXPECT_EQ(bytes_, 8U);
  const std::vector<std::string> replaced{"mine.index.json"};
  EXPECT_EQ(CarryOver("in", "out", converted_, replaced).measure(Directory(root_.path())), 4U);
}

TEST_F(CarryOverTest, LinksThatLeadNowhereAreListed) {
  fs::create_symlink("../blobs/0123", root_.path() / "tokenizer.json");
  fs::create_symlink("circle", root_.path() / "circle");
  fs::create_symlink("nowhere", root_.path() / ".hidden");
  EXPECT_THAT(measured().left_out().links, ElementsAre("circle", "tokenizer.json"));
}

// A pipe that nobody writes would be waited for.
TEST_F(CarryOverTest, WhatIsNoFileIsListed) {
  write("folder/file");
  fs::create_symlink("/dev/null", root_.path() / "device");
  for (const char* const name : {"pipe", "folder/pipe", ".hidden", "config.json"})
    ASSERT_EQ(mkfifo((root_.path() / name).c_str(), 0600), 0);
  EXPECT_THAT(measured().left_out().special, ElementsAre("device", "folder/pipe", "pipe"));
  EXPECT_EQ(bytes_, 4U);
}

// What cannot be looked at is not left out in silence.
TEST_F(CarryOverTest, LinksThatCannotBeFollowedAreErrors) {
  fs::create_symlink(std::string(300, 'n'), root_.path() / "tokenizer.json");
  EXPECT_EQ(error_of([&] { measured(); }, Errc::io), "in/tokenizer.json: cannot read its status: File name too long");
}

// By their path in the output, which is what they are about.
TEST_F(CarryOverTest, ErrorsOfTheOutputNameWhatFailed) {
  write("in/folder/file");
  write("out/folder");
  CarryOver carry_over("in", "out", {}, {});
  try {
    carry_over.copy(Directory(root_.path() / "in"), Directory(root_.path() / "out").fd());
    FAIL() << "a file is in the way";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "out/folder: cannot create: File exists");
    EXPECT_EQ(error.subject(), "out/folder");
  }
}

TEST_F(CarryOverTest, DepthIsBounded) {
  std::string path;
  for (int i = 0; i < 63; ++i) path += "d/";
  write(path + "file");
  EXPECT_EQ(measured().left_out().weights, std::vector<std::string>{});
  EXPECT_EQ(bytes_, 4U);
  write(path + "d/file");
  EXPECT_THAT(error_of([&] { measured(); }),
              testing::MatchesRegex("in/d/.*/: is a folder inside more than 63 others, too deep to carry over"));
}

// Each of 14 folders leads twice into the next: 16,000 folders are made of them.
TEST_F(CarryOverTest, FoldersThatLinksMakeAreBounded) {
  for (int i = 0; i < 14; ++i) {
    const fs::path folder = root_.path() / ("level" + std::to_string(i));
    fs::create_directory(folder);
    for (const char* const name : {"a", "b"})
      fs::create_directory_symlink("../level" + std::to_string(i + 1), folder / name);
  }
  fs::create_directory(root_.path() / "level14");
  EXPECT_THAT(error_of([&] { measured(); }),
              testing::MatchesRegex("in/level.*: is one of more than 10000 folders to carry over"));
}

TEST_F(CarryOverTest, NothingIsLeftOutOfAPlainModel) {
  write("model.safetensors");
  write("tokenizer.json");
  EXPECT_THAT(measured().left_out().links, IsEmpty());
  EXPECT_THAT(measured().left_out().special, IsEmpty());
  EXPECT_THAT(measured().left_out().weights, IsEmpty());
}

}  // namespace
}  // namespace nibble::carry_over_test
