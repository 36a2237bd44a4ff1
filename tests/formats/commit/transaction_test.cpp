// Outputs that are directories: how they are built, and how they replace others.

#include "formats/commit/transaction.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tests/formats/commit/transaction_support.hpp"

namespace nibble::transaction_test {
namespace {

using testing::IsEmpty;

TEST_F(TransactionTest, NothingAppearsBeforeCommit) {
  Transaction transaction = begin();
  stage_new_model(transaction);
  EXPECT_EQ(entries_of(root_.path()), Names{".out.nibble"});
  EXPECT_EQ(mode_of(root_.path() / ".out.nibble"), 0700);
  transaction.commit();
  expect_new_model();
}

TEST_F(TransactionTest, WhatIsNotCommittedLeavesNothing) {
  { stage_new_model(begin()); }
  { stage(begin_file(), "out", "weights"); }
  EXPECT_THAT(entries_of(root_.path()), IsEmpty());
}

TEST_F(TransactionTest, TrailingSlashIsTheSameOutput) {
  Transaction transaction(out_.string() + "/", Kind::directory, {});
  stage_new_model(transaction);
  transaction.commit();
  expect_new_model();
}

TEST_F(TransactionTest, OverwriteReplacesTheWholeDirectory) {
  for (const bool by_entries : {false, true}) {
    fs::remove_all(out_);
    by_entries ? make_old_model_of_entries() : make_old_model();
    Transaction transaction = begin(true);
    stage_new_model(transaction);
    expect_old_model();
    transaction.commit();
    EXPECT_THAT(transaction.warnings(), IsEmpty());
    expect_new_model();
  }
}

// What is hidden, and what is no file of a model, was not written by a conversion, or may not have been.
TEST_F(TransactionTest, OverwriteKeepsWhatIsNoFileOfAModel) {
  const Names others{".cache/refs", ".git/HEAD", ".gitattributes", "thesis.tex", "notes/day/1.txt"};
  for (const bool by_entries : {false, true}) {
    fs::remove_all(out_);
    by_entries ? make_old_model_of_entries() : make_old_model();
    for (const std::string& name : others) write(out_ / name, name);
    write(out_ / "tokenizer.json", "old tokens");
    write(out_ / "model-00002-of-00002.safetensors", "old shard");
    Transaction transaction = begin(true);
    stage_new_model(transaction);
    transaction.commit();
    for (const std::string& name : others) EXPECT_EQ(read_file(out_ / name), name);
    EXPECT_EQ(read_file(out_ / "config.json"), "new config");
    EXPECT_EQ(entries_of(out_), (Names{".cache", ".git", ".gitattributes", "config.json", "extra", "model.safetensors",
                                       "notes", "thesis.tex"}));
    EXPECT_EQ(entries_of(root_.path()), Names{"out"});
  }
}

// Not even listed: it may be large, or another user's.
TEST_F(TransactionTest, FoldersThatStayAreNotOpened) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  make_old_model();
  fs::create_directory(out_ / "private");
  fs::permissions(out_ / "private", fs::perms::owner_all);
  fs::permissions(root_.path(), fs::perms::all);
  for (const fs::path& path : {out_, out_ / "extra", out_ / "config.json", out_ / "model.safetensors"})
    ASSERT_EQ(chown(path.c_str(), AsNobody::user, AsNobody::user), 0);
  {
    const AsNobody nobody;
    Transaction transaction = begin(true);
    stage_new_model(transaction);
    transaction.commit();
  }
  EXPECT_EQ(read_file(out_ / "config.json"), "new config");
  EXPECT_EQ(entries_of(out_), (Names{"config.json", "extra", "model.safetensors", "private"}));
}

// A file of that name is carried over from the input: it replaces the old one.
TEST_F(TransactionTest, NamesakesAreReplaced) {
  make_old_model();
  write(out_ / "README.md", "old");
  const Names paths{"README.md", "extra", "extra/note.txt"};
  Transaction transaction(out_, Kind::directory, {.overwrite = true, .paths = paths});
  EXPECT_EQ(entries_of(root_.path()), (Names{".out.nibble", "out"}));  // in one step
  stage_new_model(transaction);
  stage(transaction, "README.md", "new");
  transaction.commit();
  EXPECT_EQ(read_file(out_ / "README.md"), "new");
  EXPECT_EQ(read_file(out_ / "extra" / "note.txt"), "new note");
}

TEST_F(TransactionTest, EmptyDirectoryIsReplaced) {
  fs::create_directory(out_);
  Transaction transaction = begin(true);
  stage_new_model(transaction);
  transaction.commit();
  expect_new_model();
}

TEST_F(TransactionTest, OutputThatAppearsMeanwhileIsSpared) {
  for (const bool overwrite : {false, true}) {
    fs::remove_all(out_);
    Transaction transaction = begin(overwrite);
    stage_new_model(transaction);
    make_old_model();
    EXPECT_EQ(in_place(error_of([&] { transaction.commit(); }, Errc::output_exists)), "out: appeared meanwhile");
    expect_old_model();
  }
}

TEST_F(TransactionTest, FileThatAppearsInTheOutputMeanwhileIsSpared) {
  for (const bool by_entries : {false, true}) {
    fs::remove_all(out_);
    by_entries ? make_old_model_of_entries() : make_old_model();
    {
      Transaction transaction = begin(true);
      stage_new_model(transaction);
      write(out_ / "thesis.tex", "years of work");
      EXPECT_EQ(in_place(error_of([&] { transaction.commit(); }, Errc::output_exists)),
                "out: 'thesis.tex' appeared in it meanwhile; nothing is replaced");
    }
    expect_old_model();
    EXPECT_EQ(read_file(out_ / "thesis.tex"), "years of work");
    EXPECT_EQ(entries_of(root_.path()), Names{"out"});
    EXPECT_FALSE(fs::exists(out_ / ".nibble"));
  }
}

// In folders of it, too.
TEST_F(TransactionTest, FileThatAppearsInAFolderMeanwhileIsSpared) {
  for (const bool by_entries : {false, true}) {
    fs::remove_all(out_);
    by_entries ? make_old_model_of_entries() : make_old_model();
    Transaction transaction = begin(true);
    stage_new_model(transaction);
    write(out_ / "extra" / "deep" / "thesis.tex", "years of work");
    EXPECT_EQ(in_place(error_of([&] { transaction.commit(); }, Errc::output_exists)),
              "out: 'extra/deep' appeared in it meanwhile; nothing is replaced");
    expect_old_model();
    EXPECT_EQ(read_file(out_ / "extra" / "deep" / "thesis.tex"), "years of work");
  }
}

// By its lock it is ours, not by its name.
TEST_F(TransactionTest, AnotherWorkDirectoryOfTheNameIsSpared) {
  {
    const Transaction transaction = begin();
    fs::rename(root_.path() / ".out.nibble", root_.path() / "aside");
    write(root_.path() / ".out.nibble" / "thesis.tex", "years of work");
  }
  EXPECT_EQ(read_file(root_.path() / ".out.nibble" / "thesis.tex"), "years of work");
  EXPECT_THAT(entries_of(root_.path() / "aside"), IsEmpty());
}

TEST_F(TransactionTest, FileThatAppearsInAnEmptyOutputIsSpared) {
  fs::create_directory(out_);
  Transaction transaction = begin(true);
  stage_new_model(transaction);
  write(out_ / "thesis.tex", "years of work");
  EXPECT_NE(error_of([&] { transaction.commit(); }, Errc::output_exists), "");
  EXPECT_EQ(entries_of(out_), Names{"thesis.tex"});
}

TEST_F(TransactionTest, AnotherDirectoryInItsPlaceIsSpared) {
  make_old_model();
  {
    Transaction transaction = begin(true);
    stage_new_model(transaction);
    fs::rename(out_, root_.path() / "moved");
    write(out_ / "config.json", "another's");
    EXPECT_EQ(in_place(error_of([&] { transaction.commit(); }, Errc::output_exists)),
              "out: was changed meanwhile; nothing is replaced");
  }
  EXPECT_EQ(read_file(out_ / "config.json"), "another's");
  EXPECT_EQ(entries_of(root_.path()), (Names{"moved", "out"}));
}

TEST_F(TransactionTest, SecondWriterIsRefused) {
  const Transaction first = begin();
  EXPECT_EQ(refusal(false), "out: another nibble is writing it");
}

// Names of nibble's own files and those of a model never meet: each has a directory of its own.
TEST_F(TransactionTest, CarriedNamesDoNotCollide) {
  make_old_model_of_entries();
  {
    Transaction transaction = begin(true);
    stage_new_model(transaction);
    for (const char* const name : {"journal", "new", "old", "done", "trash", "exchanged"})
      stage(transaction, name, name);
    transaction.commit();
  }
  for (const char* const name : {"journal", "new", "old", "done", "trash", "exchanged"})
    EXPECT_EQ(read_file(out_ / name), name);
}

}  // namespace
}  // namespace nibble::transaction_test
