#include "formats/commit/apart.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::apart_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::HasSubstr;

class ApartTest : public testing::Test {
 protected:
  ApartTest() {
    for (const char* const name : {"model", "model/sub", "elsewhere"}) fs::create_directories(at(name));
    (void)root_.write("model/model.safetensors", test::safetensors_with({"a"}));
    (void)root_.write("model/config.json", "{}");
    (void)root_.write("file.safetensors", test::safetensors_with({"a"}));
  }
  fs::path at(const std::string& name) const { return root_.path() / name; }
  std::string refusal(const std::string& out, const std::string& in = "model") const {
    return error_of([&] { check_apart(at(out), *open_checkpoint(at(in))); }, Errc::usage);
  }
  std::string file_refusal(const std::string& file, const std::string& in = "model") const {
    return error_of([&] { check_no_input(at(file), *open_checkpoint(at(in))); }, Errc::usage);
  }

  test::TempDir root_;
};

TEST_F(ApartTest, OutputsBesideTheInput) {
  EXPECT_EQ(refusal("out"), "");
  EXPECT_EQ(refusal("elsewhere"), "");
  EXPECT_EQ(refusal("elsewhere/out"), "");
  EXPECT_EQ(refusal("modelling"), "");
  EXPECT_EQ(refusal("out.safetensors", "file.safetensors"), "");
}

TEST_F(ApartTest, OutputsThatAreTheInputHoldItOrLieInIt) {
  const auto fact = [&](const std::string& out, const std::string& text) {
    EXPECT_EQ(refusal(out), at(out).string() + ": the output " + text + " the input '" + at("model").string() + "'");
  };
  for (const char* const out : {"model", "model/", "elsewhere/../model"}) fact(out, "is");
  for (const char* const out : {"model/out", "model/out/", "model/sub/out", "model/sub"}) fact(out, "is inside");
  fact(".", "contains");
  EXPECT_THAT(refusal("file.safetensors", "file.safetensors"), HasSubstr(": the output is the input '"));
}

// Files and folders are what they are, whatever their paths say.
TEST_F(ApartTest, LinksAreSeenThrough) {
  fs::create_directory_symlink(at("model"), at("link"));
  EXPECT_NE(refusal("link/out"), "");
  EXPECT_NE(refusal("model/out", "link"), "");
  fs::create_hard_link(at("file.safetensors"), at("second.safetensors"));
  EXPECT_NE(refusal("second.safetensors", "file.safetensors"), "");
}

// As in the hub's cache: a model of links into a folder of blobs.
TEST_F(ApartTest, WhatTheInputsLinksLeadToIsInput) {
  fs::create_directories(at("hub/blobs"));
  fs::create_directories(at("hub/snapshot"));
  fs::rename(at("file.safetensors"), at("hub/blobs/0123"));
  fs::create_symlink("../blobs/0123", at("hub/snapshot/model.safetensors"));
  EXPECT_THAT(refusal("hub/blobs", "hub/snapshot"),
              HasSubstr(": the output contains files that are linked from the input '"));
  EXPECT_EQ(refusal("hub/out", "hub/snapshot"), "");
}

// Whatever the index is called, it was read.
TEST_F(ApartTest, EveryFileThatWasReadIsInput) {
  const std::string index = "diffusion_pytorch_model.safetensors.index.json";
  fs::rename(at("model/model.safetensors"), at("model/shard.safetensors"));
  (void)root_.write("elsewhere/index", R"({"weight_map": {"a": "shard.safetensors"}})");
  fs::create_symlink("../elsewhere/index", at("model") / index);
  EXPECT_THAT(refusal("elsewhere"), HasSubstr(": the output contains files that are linked from the input '"));
  EXPECT_THAT(file_refusal("model/" + index), HasSubstr(": is part of the input '"));
  EXPECT_THAT(file_refusal("elsewhere/index"), HasSubstr(": is part of the input '"));
}

// The input is a file that bears the name of the manifest that will be written beside the output.
TEST_F(ApartTest, ManifestIsNotWrittenOverTheInput) {
  fs::rename(at("file.safetensors"), at("q.nibble.json"));
  EXPECT_EQ(error_of([&] { check_apart(at("q"), *open_checkpoint(at("q.nibble.json"))); }, Errc::usage),
            at("q.nibble.json").string() + ": the manifest beside the output would replace the input");
}

// What cannot be resolved is not inside of anything.
TEST_F(ApartTest, PathsThatLeadNowhereAreApart) {
  EXPECT_EQ(refusal("no/such/folder"), "");
  EXPECT_EQ(error_of([&] { check_apart("/dev/stdout", *open_checkpoint(at("model"))); }, Errc::usage), "");
}

TEST_F(ApartTest, FilesOfACheckpoint) {
  for (const char* const file : {"model/model.safetensors", "model/config.json", "model/../model/config.json"})
    EXPECT_EQ(file_refusal(file), at(file).string() + ": is part of the input '" + at("model").string() + "'");
  EXPECT_EQ(file_refusal("model/report.html"), "");
  EXPECT_NE(file_refusal("file.safetensors", "file.safetensors"), "");
  EXPECT_EQ(file_refusal("file.html", "file.safetensors"), "");
  fs::create_symlink(at("model/config.json"), at("link.html"));
  EXPECT_NE(file_refusal("link.html"), "");
}

}  // namespace
}  // namespace nibble::apart_test
