// Permissions of what replaces an old output.

#include "formats/commit/modes.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/formats/commit/transaction_support.hpp"

namespace nibble::transaction_test {
namespace {

TEST_F(TransactionTest, ReplacementsDoNotWidenModes) {
  for (const bool by_entries : {false, true}) {
    fs::remove_all(out_);
    by_entries ? make_old_model_of_entries() : make_old_model();
    fs::permissions(out_, fs::perms::owner_all);
    for (const char* const name : {"config.json", "model.safetensors"})
      fs::permissions(out_ / name, fs::perms::owner_read | fs::perms::owner_write);
    Transaction transaction = begin(true);
    stage_new_model(transaction);
    stage(transaction, "tokenizer.json", "without a namesake");
    transaction.commit();
    EXPECT_EQ(mode_of(out_), 0700);
    for (const char* const name : {"config.json", "model.safetensors", "tokenizer.json"})
      EXPECT_EQ(mode_of(out_ / name), 0600) << name;
  }
}

TEST_F(TransactionTest, ReplacementsDoNotWidenModesInFolders) {
  make_old_model();
  fs::permissions(out_ / "extra", fs::perms::owner_all);
  fs::permissions(out_ / "extra" / "note.txt", fs::perms::owner_read | fs::perms::owner_write);
  Transaction transaction = begin(true);
  stage_new_model(transaction);
  transaction.commit();
  EXPECT_EQ(mode_of(out_ / "extra"), 0700);
  EXPECT_EQ(mode_of(out_ / "extra" / "note.txt"), 0600);
}

TEST_F(TransactionTest, WhatStaysDoesNotNarrowModes) {
  make_old_model();
  write(out_ / ".env", "secret");
  fs::permissions(out_ / ".env", fs::perms::owner_read | fs::perms::owner_write);
  Transaction transaction = begin(true);
  stage_new_model(transaction);
  stage(transaction, "tokenizer.json", "without a namesake");
  const mode_t mode = mode_of(out_ / "config.json");
  ASSERT_NE(mode, 0600);
  transaction.commit();
  EXPECT_EQ(mode_of(out_ / "tokenizer.json"), mode);
}

TEST_F(TransactionTest, FolderThatReplacesAFileCanBeEntered) {
  make_old_model();
  fs::remove_all(out_ / "extra");
  write(out_ / "extra", "a file");
  fs::permissions(out_ / "extra", static_cast<fs::perms>(0640));
  Transaction transaction = begin(true);
  stage_new_model(transaction);
  transaction.commit();
  EXPECT_EQ(mode_of(out_ / "extra"), 0750);
}

// What counts is the mode at the end, not at the beginning of a run.
TEST_F(TransactionTest, ModesThatAreNarrowedMeanwhileStay) {
  make_old_model();
  Transaction transaction = begin(true);
  stage_new_model(transaction);
  fs::permissions(out_, fs::perms::owner_all);
  transaction.commit();
  EXPECT_EQ(mode_of(out_), 0700);
}

// Permissions of a group are those of that group.
TEST_F(TransactionTest, ReplacementsKeepTheGroup) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to any group";
  make_old_model();
  for (const fs::path& path : {out_, out_ / "config.json"}) {
    ASSERT_EQ(chown(path.c_str(), uid_t(-1), 4321), 0);
    fs::permissions(path, fs::perms::group_all, fs::perm_options::add);
  }
  Transaction transaction = begin(true);
  stage_new_model(transaction);
  transaction.commit();
  for (const fs::path& path : {out_, out_ / "config.json"}) {
    struct stat status {};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_gid, 4321U) << path;
  }
}

}  // namespace
}  // namespace nibble::transaction_test
