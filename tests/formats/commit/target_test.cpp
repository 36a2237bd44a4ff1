// What is in the way of an output, and is refused before the work; checks say the same.

#include "formats/commit/target.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "tests/formats/commit/transaction_support.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::transaction_test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

// What belongs to root cannot be replaced by everybody, which is said before the work is done.
TEST_F(TransactionTest, WhatTheUserMayNotReplaceIsSaidAtTheStart) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  make_old_model();
  write(root_.path() / "file", "");
  const fs::path directory = std::exchange(out_, root_.path() / "file");
  const auto as_nobody = [&](const fs::path& target, Kind kind) {
    const auto refused = [&](auto&& run) { return in_place(error_of(run, Errc::io)); };
    const AsNobody nobody;
    const std::string real = refused([&] { Transaction(target, kind, options(true)); });
    const std::string dry = refused([&] { (void)Transaction::check(target, kind, options(true)); });
    EXPECT_EQ(dry, real);
    return real;
  };
  fs::permissions(root_.path(), fs::perms::all);
  EXPECT_EQ(as_nobody(directory, Kind::directory), "out: cannot replace: Permission denied");
  fs::permissions(root_.path(), fs::perms::all | fs::perms::sticky_bit);
  const std::string sticky = "belongs to another user, and only the owner can replace anything in a sticky folder";
  EXPECT_EQ(as_nobody(out_, Kind::file), "file: " + sticky);
  EXPECT_EQ(as_nobody(directory, Kind::directory), "out: " + sticky);
  // Root may, and so may everybody whose folder it is.
  (void)Transaction::check(directory, Kind::directory, options(true));
  ASSERT_EQ(chown(root_.path().c_str(), AsNobody::user, AsNobody::user), 0);
  const AsNobody nobody;
  (void)Transaction::check(out_, Kind::file, {.overwrite = true});
}

TEST_F(TransactionTest, ExistingOutputIsRefused) {
  make_old_model();
  EXPECT_EQ(refusal(false), "out: exists");
  EXPECT_EQ(entries_of(root_.path()), Names{"out"});
}

// Moving a folder into another one writes its entry for the folder above.
TEST_F(TransactionTest, FoldersThatCannotMoveAreSaidAtTheStart) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  make_old_model();
  write(out_ / "thesis.tex", "years of work");
  fs::permissions(root_.path(), fs::perms::all);
  fs::permissions(out_, fs::perms::all);
  const AsNobody nobody;
  const std::string real = refusal(true, Kind::directory, Errc::io);
  const std::string dry =
      in_place(error_of([&] { (void)Transaction::check(out_, Kind::directory, options(true)); }, Errc::io));
  EXPECT_EQ(real, "out: cannot replace the folder 'extra': Permission denied");
  EXPECT_EQ(dry, real);
}

// Before the work, as far as the names of what will come are known; otherwise at its end.
TEST_F(TransactionTest, FoldersThatWouldLoseSomethingAreInTheWay) {
  const std::string refused =
      "out: contains 'extra/note.txt', which is in a folder that the new output replaces and lacks it: move it away "
      "first";
  make_old_model();
  const Names paths{"extra", "extra/other.txt"};
  const Transaction::Options lacks_it{.overwrite = true, .paths = paths};
  EXPECT_EQ(in_place(error_of([&] { Transaction(out_, Kind::directory, lacks_it); }, Errc::output_exists)), refused);
  EXPECT_EQ(in_place(error_of([&] { (void)Transaction::check(out_, Kind::directory, lacks_it); }, Errc::output_exists)),
            refused);
  {
    Transaction transaction = begin(true);
    ASSERT_EQ(mkdirat(transaction.directory(), "extra", 0777), 0);
    stage(transaction, "extra/other.txt", "other");
    EXPECT_EQ(in_place(error_of([&] { transaction.commit(); }, Errc::output_exists)), refused);
  }
  expect_old_model();
  EXPECT_EQ(entries_of(root_.path()), Names{"out"});
}

TEST_F(TransactionTest, OverwriteSparesWhatIsNoModel) {
  write(out_ / "thesis.tex", "years of work");
  EXPECT_EQ(refusal(true), "out: exists and holds no model: remove it first");
  EXPECT_EQ(read_file(out_ / "thesis.tex"), "years of work");
}

// A configuration alone is in many a project.
TEST_F(TransactionTest, OverwriteSparesAProject) {
  write(out_ / "config.json", "{}");
  write(out_ / "src" / "main.c", "years of work");
  EXPECT_EQ(refusal(true), "out: exists and holds no model: remove it first");
  EXPECT_EQ(read_file(out_ / "src" / "main.c"), "years of work");
}

// Elsewhere than in the root of a file system it is a folder like any other.
TEST_F(TransactionTest, LostAndFoundIsNoEmptyDirectory) {
  write(out_ / "lost+found" / "#123", "years of work");
  EXPECT_EQ(refusal(true), "out: exists and holds no model: remove it first");
}

TEST_F(TransactionTest, OverwriteDoesNotFollowALink) {
  make_old_model();
  const fs::path link = root_.path() / "link";
  fs::create_directory_symlink(out_, link);
  EXPECT_THAT(error_of([&] { Transaction(link, Kind::directory, {.overwrite = true}); }, Errc::output_exists),
              EndsWith("link: exists and is a symbolic link, not a directory"));
}

// `link/..` is the folder that the link leads to, not the one that the link is in.
TEST_F(TransactionTest, DotsBehindALinkAreTheSystemsBusiness) {
  fs::create_directories(root_.path() / "else" / "where");
  fs::create_directory_symlink(root_.path() / "else" / "where", root_.path() / "link");
  Transaction transaction(root_.path() / "link" / ".." / "out", Kind::directory, {});
  stage_new_model(transaction);
  transaction.commit();
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_TRUE(fs::exists(root_.path() / "else" / "out" / "config.json"));
}

// 255 bytes is what a name may have; the manifest's and the work directory's are longer than the output's.
TEST_F(TransactionTest, LongNamesAreRefusedBeforeTheWork) {
  const std::string longest(255 - std::strlen(Transaction::manifest_suffix), 'n');
  for (const Kind kind : {Kind::file, Kind::directory}) {
    Transaction transaction(root_.path() / longest, kind, {});
    stage(transaction, longest, "");
    transaction.commit();
    fs::remove_all(root_.path() / longest);
    EXPECT_THAT(error_of([&] { Transaction(root_.path() / (longest + "n"), kind, {}); }, Errc::usage),
                EndsWith(": its name has 244 bytes; at most 243 leave room for the names of nibble's own files"));
    EXPECT_THAT(entries_of(root_.path()), IsEmpty());
  }
}

TEST_F(TransactionTest, MissingFolderIsUsage) {
  EXPECT_THAT(error_of([&] { Transaction(root_.path() / "no" / "out", Kind::file, {}); }, Errc::usage),
              HasSubstr("does not exist"));
}

TEST_F(TransactionTest, OutputsHaveNamesOfTheirOwn) {
  for (const char* const name : {"", "/", ".", "..", "a/.."})
    EXPECT_NE(error_of([&] { Transaction(name, Kind::directory, {}); }, Errc::usage), "") << name;
}

// A check says what a run would say and leaves no trace. Where a run before it left something, only the next can tell.
TEST_F(TransactionTest, ChecksWriteNothing) {
  const auto refused = [&](bool overwrite) {
    return in_place(
        error_of([&] { (void)Transaction::check(out_, Kind::directory, options(overwrite)); }, Errc::output_exists));
  };
  EXPECT_EQ(refused(false), "");
  EXPECT_THAT(entries_of(root_.path()), IsEmpty());
  EXPECT_GT(Transaction::check(out_, Kind::directory, {}), 0U);
  make_old_model();
  EXPECT_EQ(refused(false), "out: exists");
  EXPECT_EQ(test::remedy_of([&] { (void)Transaction::check(out_, Kind::directory, {}); }).kind,
            Remedy::Kind::replace_output);
  EXPECT_EQ(refused(true), "");
  expect_old_model();
  fs::remove(out_ / "config.json");
  EXPECT_EQ(refused(true), "out: exists and holds no model: remove it first");
  make_private_directory(out_ / ".nibble");
  EXPECT_EQ(refused(true), "");
  fs::remove(out_ / ".nibble");
  make_private_directory(root_.path() / ".out.nibble");
  EXPECT_EQ(refused(true), "");
  EXPECT_EQ(entries_of(root_.path()), (Names{".out.nibble", "out"}));
}

// Beside the output and in it.
TEST_F(TransactionTest, ChecksSayWhatIsWrongWithTheWorkDirectory) {
  const auto expect_same = [&](const std::string& refused) {
    const auto check = [&] { (void)Transaction::check(out_, Kind::directory, options(true)); };
    EXPECT_THAT(refused, testing::Not(IsEmpty()));
    EXPECT_EQ(in_place(error_of(check, Errc::output_exists)), refused);
  };
  {
    const Transaction other = begin();
    expect_same(refusal(true));
  }
  make_private_directory(root_.path() / ".out.nibble");
  write(root_.path() / ".out.nibble" / "thesis.tex", "years of work");
  expect_same(refusal(true));
  fs::remove_all(root_.path() / ".out.nibble");
  make_old_model_of_entries();
  {
    const Transaction other = begin(true);
    expect_same(refusal(true));
  }
  make_private_directory(out_ / ".nibble");
  write(out_ / ".nibble" / "thesis.tex", "years of work");
  expect_same(refusal(true));
  expect_old_model();
}

}  // namespace
}  // namespace nibble::transaction_test
