#include "formats/models/hub.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>

#include "nibble/checkpoint.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::hub_test {
namespace {

using test::error_of;

// A cache with one model, and no variables but those that a test sets.
class Hub : public testing::Test {
 protected:
  Hub() {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (const char* value = ::getenv(names[i])) before[i] = value;
      ::unsetenv(names[i]);
    }
    ::setenv("HOME", dir.path().c_str(), 1);
    const std::string repository = ".cache/huggingface/hub/models--org--model/";
    dir.write(repository + "blobs/1", test::safetensors_with({"w"}));
    dir.write(repository + "refs/main", commit);
    dir.write(repository + "refs/refs/pr/1", commit + "\n");
    dir.write(repository + "refs/bad", "../../../..");
    snapshot = dir.path() / (repository + "snapshots/" + commit);
    std::filesystem::create_directories(snapshot);
    std::filesystem::create_symlink("../../blobs/1", snapshot / "model.safetensors");
  }
  ~Hub() override {
    for (std::size_t i = 0; i < names.size(); ++i)
      before[i] ? ::setenv(names[i], before[i]->c_str(), 1) : ::unsetenv(names[i]);
  }

  static constexpr std::array names{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"};
  std::array<std::optional<std::string>, names.size()> before;
  test::TempDir dir;
  const std::string commit = "0123456789abcdef0123456789abcdef01234567";
  std::filesystem::path snapshot;
};

TEST_F(Hub, ModelsAreFoundByNameRevisionAndCommit) {
  for (const std::string& name : {std::string("org/model"), std::string("org/model@main"),
                                  std::string("org/model@refs/pr/1"), "org/model@" + commit}) {
    const auto reader = open_checkpoint(name);
    EXPECT_EQ(reader->path(), snapshot);
    EXPECT_EQ(reader->files()[0], "model.safetensors");
    reader->check_unchanged();
  }
}

TEST_F(Hub, WhatIsNotThereIsToldWithTheCommandThatFetchesIt) {
  const std::string cache = (dir.path() / ".cache/huggingface/hub").string();
  EXPECT_EQ(error_of([] { (void)open_checkpoint("org/other"); }),
            "org/other: no such file, and not in the hub cache " + cache + ": hf download org/other");
  EXPECT_EQ(error_of([] { (void)open_checkpoint("org/model@v2"); }),
            "org/model@v2: no such file, and not in the hub cache " + cache + ": hf download org/model --revision v2");
  EXPECT_EQ(
      error_of([] { (void)open_checkpoint("org/model@bad"); }),
      "org/model@bad: no such file, and not in the hub cache " + cache + ": hf download org/model --revision bad");
  EXPECT_EQ(error_of([] { (void)open_checkpoint("missing.safetensors"); }),
            "missing.safetensors: No such file or directory");
  EXPECT_EQ(error_of([] { (void)open_checkpoint("/org/model"); }), "/org/model: No such file or directory");
}

TEST_F(Hub, VariablesAreAskedInOrder) {
  EXPECT_EQ(hub_cache(), dir.path() / ".cache/huggingface/hub");
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(hub_cache(), "/x/huggingface/hub");
  ::setenv("HF_HOME", "~/h", 1);
  EXPECT_EQ(hub_cache(), dir.path() / "h/hub");
  ::setenv("HUGGINGFACE_HUB_CACHE", "/old", 1);
  EXPECT_EQ(hub_cache(), "/old");
  ::setenv("HF_HUB_CACHE", "/new", 1);
  EXPECT_EQ(hub_cache(), "/new");
  ::setenv("HF_HUB_CACHE", "", 1);
  EXPECT_EQ(hub_cache(), "/old");
}

TEST(ModelName, OnlyNamesOfTheHubAreNames) {
  ASSERT_TRUE(parse_model_name("meta-llama/Llama-3.1_8B"));
  EXPECT_EQ(parse_model_name("a/b@refs/pr/1")->revision, "refs/pr/1");
  EXPECT_EQ(parse_model_name("a/b")->revision, "main");
  for (const char* text : {"", "a/", "/a", "a/b/c", "./a", "../a", "a/..", "a/b@", "a/b@../x", "a/b@/x", "a/b@x/",
                           "a /b", "a/b@x@y", "~/a", "a/-b", "a\\b/c"})
    EXPECT_FALSE(parse_model_name(text)) << text;
}

}  // namespace
}  // namespace nibble::hub_test
