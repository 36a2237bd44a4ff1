#include "core/files/directory.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::directory_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;

class DirectoryTest : public testing::Test {
 protected:
  test::TempDir root_;
  Descriptor fd_{open(root_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
};

TEST_F(DirectoryTest, EntriesAreSortedAndWithoutDots) {
  for (const char* const name : {"b", "a", ".hidden"}) (void)root_.write(name, "");
  EXPECT_THAT(list_directory(fd_.get(), "x"), testing::ElementsAre(".hidden", "a", "b"));
}

// The position in a directory belongs to its descriptor: a second look sees everything again.
TEST_F(DirectoryTest, EveryListIsWhole) {
  (void)root_.write("a", "");
  EXPECT_EQ(list_directory(fd_.get(), "x").size(), 1U);
  EXPECT_EQ(list_directory(fd_.get(), "x").size(), 1U);
}

// tests/faults/run.py lets reading fail in the middle.
TEST_F(DirectoryTest, WhatCannotBeListedIsNotEmpty) {
  const Descriptor file(open(root_.write("file", "").c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(error_of([&] { (void)list_directory(file.get(), "out"); }, Errc::io),
            "out: cannot list the directory: Not a directory");
}

TEST_F(DirectoryTest, APathIsListedAlsoThroughALink) {
  const fs::path folder = root_.path() / "folder", link = root_.path() / "link";
  fs::create_directory(folder);
  fs::create_directory_symlink(folder, link);
  for (const char* const name : {"folder/b", "folder/a"}) (void)root_.write(name, "");
  EXPECT_THAT(list_directory(folder, "x"), testing::ElementsAre("a", "b"));
  EXPECT_THAT(list_directory(link, "x"), testing::ElementsAre("a", "b"));
  EXPECT_EQ(error_of([&] { (void)list_directory(folder / "none", "in"); }, Errc::io),
            "in: cannot list the directory: No such file or directory");
}

TEST_F(DirectoryTest, LinksAreNotFollowed) {
  fs::create_directory(root_.path() / "real");
  fs::create_directory_symlink("real", root_.path() / "link");
  EXPECT_GE(open_directory(fd_.get(), "real").get(), 0);
  EXPECT_LT(open_directory(fd_.get(), "link").get(), 0);
  EXPECT_TRUE(S_ISLNK(status_of(fd_.get(), "link", "x")->st_mode));
  EXPECT_FALSE(status_of(fd_.get(), "nothing", "x"));
}

TEST_F(DirectoryTest, StatusThatCannotBeReadIsNoAbsence) {
  const std::string too_long(300, 'n');
  EXPECT_THAT(error_of([&] { (void)status_of(fd_.get(), too_long, "out"); }, Errc::io),
              testing::StartsWith("out: cannot read the status of 'nnn"));
}

TEST_F(DirectoryTest, TreesAreRemovedButNotWhatTheirLinksLeadTo) {
  fs::create_directories(root_.path() / "spared" / "inner");
  fs::create_directories(root_.path() / "tree" / "a" / "b");
  fs::create_directory_symlink("../spared", root_.path() / "tree" / "link");
  for (int i = 0; i < 1000; ++i) (void)root_.write("tree/a/" + std::string(20, 'x') + std::to_string(i), "");
  remove_tree(fd_.get(), "tree");
  EXPECT_FALSE(fs::exists(root_.path() / "tree"));
  EXPECT_TRUE(fs::exists(root_.path() / "spared" / "inner"));
  remove_tree(fd_.get(), "tree");  // nothing is no error
}

// 300 folders in each other: neither the stack nor the open files grow with them.
TEST_F(DirectoryTest, DeepTreesAreRemoved) {
  constexpr int depth = 300;
  Descriptor here(dup(fd_.get()));
  for (int i = 0; i < depth; ++i) {
    ASSERT_EQ(mkdirat(here.get(), "d", 0700), 0);
    here = open_directory(here.get(), "d");
    ASSERT_GE(here.get(), 0);
  }
  here = Descriptor(-1);
  remove_tree(fd_.get(), "d");
  EXPECT_TRUE(list_directory(fd_.get(), "x").empty());
}

TEST(EntryName, IsASingleComponent) {
  EXPECT_TRUE(is_entry_name("model.safetensors"));
  EXPECT_TRUE(is_entry_name("..."));
  EXPECT_TRUE(is_entry_name(std::string(255, 'x')));
  for (const std::string& name : {std::string(), std::string("."), std::string(".."), std::string("../a"),
                                  std::string("/a"), std::string("a/"), std::string("a\0b", 3), std::string(256, 'x')})
    EXPECT_FALSE(is_entry_name(name)) << name;
}

}  // namespace
}  // namespace nibble::directory_test
