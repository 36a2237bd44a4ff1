// Outputs that are directories, and what every output has to be.

#include "formats/commit/transaction.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "tests/formats/commit/transaction_support.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::transaction_test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(TransactionTest, NothingAppearsBeforeCommit) {
  Transaction transaction = begin();
  stage_new_model(transaction);
  EXPECT_EQ(entries_of(root_.path()), Names{".out.nibble"});
  EXPECT_EQ(mode_of(root_.path() / ".out.nibble"), 0700);
  transaction.commit();
  expect_new_model();
}

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

TEST_F(TransactionTest, ExistingOutputIsRefused) {
  make_old_model();
  EXPECT_EQ(refusal(false), "out: exists");
  EXPECT_EQ(entries_of(root_.path()), Names{"out"});
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

// Of a run that was killed before anything was in OUT that stays.
TEST_F(TransactionTest, RemainsBesideTheOutputAreClearedToo) {
  make_old_model();
  write(out_ / "thesis.tex", "years of work");
  make_private_directory(root_.path() / ".out.nibble");
  write(root_.path() / ".out.nibble" / "new" / "model.safetensors", "half");
  const Transaction transaction = begin(true);
  EXPECT_EQ(entries_of(root_.path()), Names{"out"});
  EXPECT_TRUE(fs::exists(out_ / ".nibble"));
}

TEST_F(TransactionTest, EmptyDirectoryIsReplaced) {
  fs::create_directory(out_);
  Transaction transaction = begin(true);
  stage_new_model(transaction);
  transaction.commit();
  expect_new_model();
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

// --- what happens meanwhile -----------------------------------------------------------------------------------------

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

TEST_F(TransactionTest, WorkDirectoryWithOtherThingsInItIsSpared) {
  make_private_directory(root_.path() / ".out.nibble");
  write(root_.path() / ".out.nibble" / "thesis.tex", "years of work");
  EXPECT_EQ(refusal(false), ".out.nibble: contains 'thesis.tex', which nibble did not create: move it away first");
  EXPECT_EQ(read_file(root_.path() / ".out.nibble" / "thesis.tex"), "years of work");
}

// Elsewhere than in the root of a file system it is a folder like any other.
TEST_F(TransactionTest, LostAndFoundIsNoEmptyDirectory) {
  write(out_ / "lost+found" / "#123", "years of work");
  EXPECT_EQ(refusal(true), "out: exists and holds no model: remove it first");
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

// --- modes ----------------------------------------------------------------------------------------------------------

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

TEST_F(TransactionTest, MissingFolderIsUsage) {
  EXPECT_THAT(error_of([&] { Transaction(root_.path() / "no" / "out", Kind::file, {}); }, Errc::usage),
              HasSubstr("does not exist"));
}

TEST_F(TransactionTest, OutputsHaveNamesOfTheirOwn) {
  for (const char* const name : {"", "/", ".", "..", "a/.."})
    EXPECT_NE(error_of([&] { Transaction(name, Kind::directory, {}); }, Errc::usage), "") << name;
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
