// One file, because each test is a way in which an output, or what lies in its place, can come to harm; they share
// their models and their forgeries.

#include "formats/commit/transaction.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/journal.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::transaction_test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_literals;
using test::entries_of;
using test::error_of;
using test::inode_of;
using test::read_file;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = Transaction::Kind;
using Names = std::vector<std::string>;

void write(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

void stage(const Transaction& transaction, const std::string& name, std::string_view text) {
  const Descriptor file(openat(transaction.directory(), name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  ASSERT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

void make_private_directory(const fs::path& path) {
  fs::create_directories(path);
  fs::permissions(path, fs::perms::owner_all);
}

class TransactionTest : public testing::Test {
 protected:
  void make_old_model() const {
    write(out_ / "config.json", "old config");
    write(out_ / "model.safetensors", "old weights");
    write(out_ / "extra" / "note.txt", "old note");
  }
  // In a directory that has a work directory already, entries are replaced one by one, as in a mount point.
  void make_old_model_of_entries() const {
    make_old_model();
    make_private_directory(out_ / ".nibble");
  }
  static void stage_new_model(const Transaction& transaction) {
    stage(transaction, "config.json", "new config");
    stage(transaction, "model.safetensors", "new weights");
  }
  Transaction begin(bool overwrite = false) const { return {out_, Kind::directory, {.overwrite = overwrite}}; }
  Transaction begin_file(bool overwrite = false) const { return {out_, Kind::file, {.overwrite = overwrite}}; }
  std::string refusal(bool overwrite, Kind kind = Kind::directory, Errc code = Errc::output_exists) const {
    return in_place(error_of([&] { Transaction(out_, kind, {.overwrite = overwrite}); }, code));
  }
  // Messages without the folder of the test.
  std::string in_place(std::string text) const {
    const std::string folder = root_.path().string() + "/";
    for (std::size_t at = text.find(folder); at != std::string::npos; at = text.find(folder))
      text.erase(at, folder.size());
    return text;
  }
  void expect_old_model() const {
    EXPECT_EQ(read_file(out_ / "config.json"), "old config");
    EXPECT_EQ(read_file(out_ / "model.safetensors"), "old weights");
    EXPECT_EQ(read_file(out_ / "extra" / "note.txt"), "old note");
  }
  void expect_new_model() const {
    EXPECT_EQ(entries_of(out_), (Names{"config.json", "model.safetensors"}));
    EXPECT_EQ(read_file(out_ / "config.json"), "new config");
    EXPECT_EQ(read_file(out_ / "model.safetensors"), "new weights");
    EXPECT_EQ(entries_of(root_.path()), Names{"out"});
  }

  test::TempDir root_;
  fs::path out_ = root_.path() / "out";
};

// --- directories ----------------------------------------------------------------------------------------------------

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
    EXPECT_EQ(seteuid(65534), 0);
    const std::string real = refused([&] { Transaction(target, kind, {.overwrite = true}); });
    const std::string dry = refused([&] { (void)Transaction::check(target, kind, {.overwrite = true}); });
    EXPECT_EQ(seteuid(0), 0);
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
  (void)Transaction::check(directory, Kind::directory, {.overwrite = true});
  ASSERT_EQ(chown(root_.path().c_str(), 65534, 65534), 0);
  ASSERT_EQ(seteuid(65534), 0);
  (void)Transaction::check(out_, Kind::file, {.overwrite = true});
  ASSERT_EQ(seteuid(0), 0);
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
  ASSERT_EQ(mkdirat(transaction.directory(), "extra", 0777), 0);
  stage(transaction, "extra/note.txt", "new note");
  transaction.commit();
  EXPECT_EQ(mode_of(out_ / "extra"), 0700);
  EXPECT_EQ(mode_of(out_ / "extra" / "note.txt"), 0600);
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

TEST_F(TransactionTest, ReplacedFileKeepsItsMode) {
  write(out_, "old");
  fs::permissions(out_, fs::perms::owner_read | fs::perms::owner_write);
  Transaction transaction = begin_file(true);
  stage(transaction, "out", "new");
  stage(transaction, "out.nibble.json", "manifest");
  transaction.commit();
  EXPECT_EQ(mode_of(out_), 0600);
  EXPECT_EQ(mode_of(root_.path() / "out.nibble.json"), 0600);
}

// --- files ----------------------------------------------------------------------------------------------------------

TEST_F(TransactionTest, FileAndItsManifestAppear) {
  Transaction transaction = begin_file();
  stage(transaction, "out", "weights");
  stage(transaction, "out.nibble.json", "manifest");
  transaction.commit();
  EXPECT_EQ(entries_of(root_.path()), (Names{"out", "out.nibble.json"}));
  EXPECT_EQ(read_file(out_), "weights");
}

TEST_F(TransactionTest, FileAndItsManifestAreReplaced) {
  const fs::path manifest = root_.path() / "out.nibble.json";
  write(out_, "old");
  write(manifest, R"({"schema_version":1})");
  EXPECT_EQ(refusal(false, Kind::file), "out: exists");
  {
    Transaction transaction = begin_file(true);
    stage(transaction, "out", "new");
    stage(transaction, "out.nibble.json", "new manifest");
    transaction.commit();
  }
  EXPECT_EQ(read_file(out_), "new");
  EXPECT_EQ(read_file(manifest), "new manifest");
  EXPECT_EQ(entries_of(root_.path()), (Names{"out", "out.nibble.json"}));
}

// A manifest that stayed would tell of another file.
TEST_F(TransactionTest, ManifestOfTheOldFileGoes) {
  write(out_, "old");
  write(root_.path() / "out.nibble.json", R"({"schema_version":1})");
  Transaction transaction = begin_file(true);
  stage(transaction, "out", "new");
  transaction.commit();
  EXPECT_EQ(entries_of(root_.path()), Names{"out"});
}

// The file that is in the way is the one that is named.
TEST_F(TransactionTest, ManifestInTheWayIsNamed) {
  write(root_.path() / "out.nibble.json", R"({"schema_version":1})");
  EXPECT_EQ(refusal(false, Kind::file), "out.nibble.json: exists");
  write(root_.path() / "out.nibble.json", "my notes");
  EXPECT_EQ(refusal(true, Kind::file),
            "out.nibble.json: exists and does not look like a file that nibble wrote: remove it first");
  fs::remove(root_.path() / "out.nibble.json");
  fs::create_directory(root_.path() / "out.nibble.json");
  EXPECT_EQ(refusal(true, Kind::file), "out.nibble.json: exists and is not a regular file");
}

TEST_F(TransactionTest, ManifestThatAppearsMeanwhileIsSpared) {
  write(out_, "old");
  {
    Transaction transaction = begin_file(true);
    stage(transaction, "out", "new");
    stage(transaction, "out.nibble.json", "manifest");
    write(root_.path() / "out.nibble.json", "my notes");
    EXPECT_NE(error_of([&] { transaction.commit(); }, Errc::output_exists), "");
  }
  EXPECT_EQ(read_file(out_), "old");
  EXPECT_EQ(read_file(root_.path() / "out.nibble.json"), "my notes");
  EXPECT_EQ(entries_of(root_.path()), (Names{"out", "out.nibble.json"}));
}

TEST_F(TransactionTest, FileThatIsNotToBeReplacedIsSpared) {
  constexpr auto no_file = [](int /*file*/) { return false; };
  write(out_, "years of work");
  EXPECT_EQ(in_place(error_of(
                [&] {
                  Transaction(out_, Kind::file, {true, no_file});
                },
                Errc::output_exists)),
            "out: exists and does not look like a file that nibble wrote: remove it first");
  write(out_, "");  // an empty file is no loss
  const Transaction transaction(out_, Kind::file, {true, no_file});
}

TEST_F(TransactionTest, FileThatAppearsMeanwhileIsSpared) {
  constexpr auto no_file = [](int /*file*/) { return false; };
  Transaction transaction(out_, Kind::file, {true, no_file});
  stage(transaction, "out", "new");
  write(out_, "years of work");
  EXPECT_NE(error_of([&] { transaction.commit(); }, Errc::output_exists), "");
  EXPECT_EQ(read_file(out_), "years of work");
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
    return in_place(error_of([&] { (void)Transaction::check(out_, Kind::directory, {.overwrite = overwrite}); },
                             Errc::output_exists));
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
    const auto check = [&] { (void)Transaction::check(out_, Kind::directory, {.overwrite = true}); };
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

// --- what a run before this one left --------------------------------------------------------------------------------

TEST_F(TransactionTest, LeftoversOfAKilledRunAreCleared) {
  make_private_directory(root_.path() / ".out.nibble");
  write(root_.path() / ".out.nibble" / "new" / "model.safetensors", "half");
  Transaction transaction = begin();
  stage_new_model(transaction);
  transaction.commit();
  expect_new_model();
}

class InterruptedTest : public TransactionTest {
 protected:
  // A replacement of entries that died after so many of its five moves.
  void interrupt(int moves) const {
    fs::remove_all(out_);
    make_old_model_of_entries();
    write(work_ / "new" / "config.json", "new config");
    write(work_ / "new" / "model.safetensors", "new weights");
    fs::create_directory(work_ / "old");
    const auto old = [&](const char* name) { return inode_of(out_ / name); };
    const auto fresh = [&](const char* name) { return inode_of(work_ / "new" / name); };
    write_journal(test::journal(out_, {{'-', "config.json", old("config.json"), 0},
                                       {'-', "model.safetensors", old("model.safetensors"), 0},
                                       {'-', "extra", old("extra"), 0},
                                       {},
                                       {'+', "model.safetensors", 0, fresh("model.safetensors")},
                                       {'+', "config.json", 0, fresh("config.json")}}));
    if (moves > 0) fs::rename(out_ / "config.json", work_ / "old" / "config.json");
    if (moves > 1) fs::rename(out_ / "model.safetensors", work_ / "old" / "model.safetensors");
    if (moves > 2) fs::rename(out_ / "extra", work_ / "old" / "extra");
    if (moves > 3) fs::rename(work_ / "new" / "model.safetensors", out_ / "model.safetensors");
    if (moves > 4) fs::rename(work_ / "new" / "config.json", out_ / "config.json");
  }
  void write_journal(std::string_view text) const {
    write(work_ / ".journal", text);
    fs::permissions(work_ / ".journal", fs::perms::owner_read | fs::perms::owner_write);
  }

  fs::path work_ = out_ / ".nibble";
};

// For every step at which a run may have died: who may replace finds the new model whole, everybody else touches
// nothing.
TEST_F(InterruptedTest, IsFinishedByWhoMayReplace) {
  for (int moves = 0; moves <= 5; ++moves) {
    interrupt(moves);
    EXPECT_EQ(refusal(false), "out: its replacement was interrupted") << moves;
    EXPECT_EQ(test::remedy_of([&] { Transaction(out_, Kind::directory, {}); }).kind, Remedy::Kind::finish_replacement);
    EXPECT_EQ(fs::exists(out_ / "extra"), moves < 3);
    { const Transaction transaction = begin(true); }
    expect_new_model();
  }
}

TEST_F(InterruptedTest, IsReplacedInTheSameRun) {
  interrupt(3);
  Transaction transaction = begin(true);
  stage(transaction, "config.json", "third config");
  transaction.commit();
  EXPECT_EQ(entries_of(out_), Names{"config.json"});
}

// What was replaced is lost only when all of it was replaced.
TEST_F(InterruptedTest, OldEntriesWithoutAJournalAreSpared) {
  interrupt(3);
  fs::remove(work_ / ".journal");
  write(out_ / "nibble.json", "{}");
  EXPECT_EQ(refusal(true), "out/.nibble/old: contains the output that an interrupted run replaced: move it away first");
  EXPECT_EQ(entries_of(work_ / "old").size(), 3U);
}

TEST_F(InterruptedTest, NothingIsLeftToFinishOfOneThatWasDone) {
  interrupt(5);
  fs::rename(work_ / ".journal", work_ / ".done");
  { const Transaction transaction = begin(true); }
  expect_new_model();
}

TEST_F(InterruptedTest, JournalOfAnotherIsIgnoredAndSaidSo) {
  interrupt(0);
  std::string text = read_file(work_ / ".journal");
  text[text.size() / 2] ^= 1;
  write_journal(text);
  fs::remove(work_ / "old");
  {
    const Transaction transaction = begin(true);
    ASSERT_EQ(transaction.warnings().size(), 1U);
    EXPECT_EQ(in_place(transaction.warnings()[0]), "out/.nibble/.journal is ignored: its checksum is wrong");
  }
  expect_old_model();
}

// --- forgeries ------------------------------------------------------------------------------------------------------

class ForgedTest : public InterruptedTest {
 protected:
  ForgedTest() {
    write(root_.path() / "victim" / "thesis.tex", "years of work");
    write(root_.path() / ".bashrc", "mine");
  }
  ~ForgedTest() override {
    EXPECT_EQ(read_file(root_.path() / "victim" / "thesis.tex"), "years of work");
    EXPECT_EQ(read_file(root_.path() / ".bashrc"), "mine");
  }
  ForgedTest(const ForgedTest&) = delete;
  ForgedTest& operator=(const ForgedTest&) = delete;

  // Tries it as a new output, and as one that is replaced.
  void attack() const {
    for (const bool overwrite : {false, true}) {
      try {
        Transaction transaction = begin(overwrite);
        stage_new_model(transaction);
        transaction.commit();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Errc::output_exists) << error.what();
      }
    }
  }
};

// As version 0.1.0 wrote them: they were carried out in any directory that existed.
TEST_F(ForgedTest, OldJournals) {
  const std::string absolute = "-" + (root_.path() / "victim").string() + "\0.\0"s;
  for (const std::string& text : {"-../victim\0.\0"s, absolute, "+../.bashrc\0.\0"s}) {
    fs::remove_all(out_);
    make_private_directory(work_);
    write(out_ / ".bashrc", "evil");
    for (const char* const name : {"journal", ".journal"}) write(work_ / name, text);
    attack();
  }
}

TEST_F(ForgedTest, PathsWithTheRightChecksum) {
  for (const std::string& name : {"../victim"s, (root_.path() / "victim").string(), ".."s})
    for (const char action : {'-', '=', '+'}) {
      fs::remove_all(out_);
      make_old_model_of_entries();
      fs::create_directory(work_ / "new");
      fs::create_directory(work_ / "old");
      write_journal(test::journal(out_, {{action, name, inode_of(root_.path() / "victim"), 0}}));
      attack();
    }
}

// A well-formed one does nothing that this command line does not allow.
TEST_F(ForgedTest, WellFormedWithoutOverwrite) {
  interrupt(0);
  EXPECT_NE(refusal(false), "");
  expect_old_model();
}

TEST_F(ForgedTest, WellFormedInADirectoryThatIsNoModel) {
  write(out_ / "thesis.tex", "years of work");
  make_private_directory(work_);
  fs::create_directory(work_ / "new");
  fs::create_directory(work_ / "old");
  write_journal(test::journal(out_, {{'-', "thesis.tex", inode_of(out_ / "thesis.tex"), 0}}));
  attack();
  EXPECT_EQ(read_file(out_ / "thesis.tex"), "years of work");
  EXPECT_EQ(refusal(true), "out: exists and holds no model: remove it first");
}

// Beside a file lie others, which are not part of it.
TEST_F(ForgedTest, BesideAFile) {
  write(out_, "old");
  const fs::path work = root_.path() / ".out.nibble";
  make_private_directory(work);
  fs::create_directory(work / "new");
  fs::create_directory(work / "old");
  write(work / ".journal", test::journal(root_.path(), {{'-', "victim", inode_of(root_.path() / "victim"), 0}}));
  EXPECT_EQ(refusal(true, Kind::file),
            ".out.nibble/.journal: names 'victim', which nibble may not replace: remove it first");
  EXPECT_EQ(read_file(out_), "old");
}

// A directory that is replaced from beside changes places in one step: no run writes a journal there.
TEST_F(ForgedTest, BesideADirectory) {
  const fs::path work = root_.path() / ".out.nibble";
  for (const char* const name : {"out", "out.nibble.json"}) {
    fs::remove_all(out_);
    write(out_ / "thesis.tex", "years of work");
    write(root_.path() / "out.nibble.json" / "notes", "years of work");
    make_private_directory(work);
    fs::create_directory(work / "new");
    fs::create_directory(work / "old");
    write(work / ".journal", test::journal(root_.path(), {{'-', name, inode_of(root_.path() / name), 0}}));
    attack();
    EXPECT_EQ(read_file(out_ / "thesis.tex"), "years of work") << name;
    EXPECT_EQ(read_file(root_.path() / "out.nibble.json" / "notes"), "years of work") << name;
  }
}

// A report has no manifest.
TEST_F(ForgedTest, BesideAReport) {
  write(root_.path() / "out.nibble.json", "mine");
  const fs::path work = root_.path() / ".out.nibble";
  make_private_directory(work);
  fs::create_directory(work / "new");
  fs::create_directory(work / "old");
  write(work / ".journal",
        test::journal(root_.path(), {{'-', "out.nibble.json", inode_of(root_.path() / "out.nibble.json"), 0}}));
  EXPECT_NE(error_of([&] { Transaction(out_, Kind::file, {.overwrite = true, .with_manifest = false}); },
                     Errc::output_exists),
            "");
  EXPECT_EQ(read_file(root_.path() / "out.nibble.json"), "mine");
}

// What lies in `old` does not vouch for a target that is no model.
TEST_F(ForgedTest, WithAModelThatWasNeverTakenOut) {
  write(out_ / "thesis.tex", "years of work");
  make_private_directory(work_);
  fs::create_directory(work_ / "new");
  write(work_ / "old" / "nibble.json", "{}");
  write_journal(test::journal(out_, {{'-', "thesis.tex", inode_of(out_ / "thesis.tex"), 0}}));
  EXPECT_EQ(refusal(true), "out: exists and holds no model: remove it first");
  EXPECT_EQ(read_file(out_ / "thesis.tex"), "years of work");
}

// What an exchange brought back is named as it is, and spared if it is no model.
TEST_F(InterruptedTest, WhatCameBackFromAnExchangeIsJudged) {
  make_old_model();
  write(root_.path() / ".out.nibble" / "exchanged" / "thesis.tex", "years of work");
  make_private_directory(root_.path() / ".out.nibble");
  EXPECT_EQ(refusal(true),
            ".out.nibble/exchanged: contains the output that an interrupted run replaced: move it away first");
  EXPECT_EQ(read_file(root_.path() / ".out.nibble" / "exchanged" / "thesis.tex"), "years of work");
}

TEST_F(InterruptedTest, WhatChangedSinceIsSaid) {
  interrupt(1);
  fs::remove_all(out_ / "extra");
  EXPECT_THAT(refusal(true), HasSubstr("out: an interrupted run replaced a part of it, and it was changed since: the "
                                       "rest of the old output is in out/.nibble/old"));
}

TEST_F(ForgedTest, AboutNibblesOwnDirectory) {
  make_old_model_of_entries();
  fs::create_directory(work_ / "new");
  fs::create_directory(work_ / "old");
  write_journal(test::journal(out_, {{'-', ".nibble", inode_of(work_), 0}}));
  EXPECT_EQ(refusal(true), "out/.nibble/.journal: names '.nibble', which nibble may not replace: remove it first");
}

// In a shared folder somebody else may have prepared what nibble will use.
TEST_F(ForgedTest, WorkDirectoryThatOthersCanWrite) {
  fs::create_directory(root_.path() / ".out.nibble");
  fs::permissions(root_.path() / ".out.nibble", fs::perms::all);
  EXPECT_EQ(refusal(false), ".out.nibble: others can write it: remove it first");
  EXPECT_FALSE(fs::exists(out_));
}

// The run died before it looked at what it had taken out, which had been written to meanwhile.
TEST_F(InterruptedTest, WhatAFileReplacedIsJudged) {
  constexpr auto starts_with_weights = [](int file) {
    std::string head(7, ' ');
    return pread(file, head.data(), head.size(), 0) == 7 && head == "weights";
  };
  const fs::path work = root_.path() / ".out.nibble";
  make_private_directory(work);
  write(out_, "weights, new");
  write(work / "new" / "out", "years of work");
  fs::create_directory(work / "old");
  write(work / ".journal", test::journal(root_.path(), {{'=', "out", inode_of(work / "new" / "out"), inode_of(out_)}}));
  fs::permissions(work / ".journal", fs::perms::owner_read | fs::perms::owner_write);
  const auto begin_weights = [&] { Transaction(out_, Kind::file, {true, starts_with_weights}); };
  for (int run = 0; run < 2; ++run) {  // and by every run that comes after it
    EXPECT_THAT(in_place(error_of(begin_weights, Errc::output_exists)),
                HasSubstr("out: an interrupted run replaced a part of it"));
    EXPECT_EQ(read_file(work / "new" / "out"), "years of work");
  }
  fs::remove(work / "new" / "out");
  begin_weights();
  EXPECT_EQ(read_file(out_), "weights, new");
  EXPECT_EQ(entries_of(root_.path()), Names{"out"});
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
