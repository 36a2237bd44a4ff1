// What a run that died left behind, and what somebody else wrote to look like it.

#include "formats/commit/recovery.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "tests/formats/commit/transaction_support.hpp"
#include "tests/support/journal.hpp"
#include "tests/support/remedies.hpp"

namespace nibble::transaction_test {
namespace {

using namespace std::string_literals;
using test::inode_of;
using testing::HasSubstr;

TEST_F(TransactionTest, LeftoversOfAKilledRunAreCleared) {
  make_private_directory(root_.path() / ".out.nibble");
  write(root_.path() / ".out.nibble" / "new" / "model.safetensors", "half");
  Transaction transaction = begin();
  stage_new_model(transaction);
  transaction.commit();
  expect_new_model();
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

TEST_F(TransactionTest, WorkDirectoryWithOtherThingsInItIsSpared) {
  make_private_directory(root_.path() / ".out.nibble");
  write(root_.path() / ".out.nibble" / "thesis.tex", "years of work");
  EXPECT_EQ(refusal(false), ".out.nibble: contains 'thesis.tex', which nibble did not create: move it away first");
  EXPECT_EQ(read_file(root_.path() / ".out.nibble" / "thesis.tex"), "years of work");
}

class InterruptedTest : public TransactionTest {
 protected:
  // A replacement of entries that died after so many of its six moves.
  void interrupt(int moves) const {
    fs::remove_all(out_);
    make_old_model_of_entries();
    write(work_ / "new" / "config.json", "new config");
    write(work_ / "new" / "model.safetensors", "new weights");
    write(work_ / "new" / "extra" / "note.txt", "new note");
    fs::create_directory(work_ / "old");
    const auto old = [&](const char* name) { return inode_of(out_ / name); };
    const auto fresh = [&](const char* name) { return inode_of(work_ / "new" / name); };
    write_journal(test::journal(out_, {{'-', "config.json", old("config.json"), 0},
                                       {'-', "model.safetensors", old("model.safetensors"), 0},
                                       {'-', "extra", old("extra"), 0},
                                       {},
                                       {'+', "extra", 0, fresh("extra")},
                                       {'+', "model.safetensors", 0, fresh("model.safetensors")},
                                       {'+', "config.json", 0, fresh("config.json")}}));
    if (moves > 0) fs::rename(out_ / "config.json", work_ / "old" / "config.json");
    if (moves > 1) fs::rename(out_ / "model.safetensors", work_ / "old" / "model.safetensors");
    if (moves > 2) fs::rename(out_ / "extra", work_ / "old" / "extra");
    if (moves > 3) fs::rename(work_ / "new" / "extra", out_ / "extra");
    if (moves > 4) fs::rename(work_ / "new" / "model.safetensors", out_ / "model.safetensors");
    if (moves > 5) fs::rename(work_ / "new" / "config.json", out_ / "config.json");
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
  for (int moves = 0; moves <= 6; ++moves) {
    interrupt(moves);
    EXPECT_EQ(refusal(false), "out: its replacement was interrupted") << moves;
    EXPECT_EQ(test::remedy_of([&] { Transaction(out_, Kind::directory, {}); }).kind, Remedy::Kind::finish_replacement);
    EXPECT_EQ(fs::exists(out_ / "extra"), moves != 3);
    { const Transaction transaction = begin(true); }
    expect_new_model();
  }
}

TEST_F(InterruptedTest, IsReplacedInTheSameRun) {
  interrupt(3);
  Transaction transaction = begin(true);
  stage(transaction, "config.json", "third config");
  transaction.commit();
  EXPECT_EQ(entries_of(out_), (Names{"config.json", "extra"}));  // which is not replaced by anything
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
  interrupt(6);
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

// A directory that is replaced from beside is exchanged in one step: no run writes a journal there.
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

// No run takes out what is not replaced.
TEST_F(ForgedTest, AboutWhatStays) {
  for (const char* const name : {".git", "notes", "thesis.tex"}) {
    fs::remove_all(out_);
    make_old_model_of_entries();
    write(out_ / ".git" / "HEAD", "ref");
    write(out_ / "notes" / "1.txt", "years of work");
    write(out_ / "thesis.tex", "years of work");
    fs::create_directory(work_ / "new");
    fs::create_directory(work_ / "old");
    write_journal(test::journal(out_, {{'-', name, inode_of(out_ / name), 0}}));
    EXPECT_EQ(refusal(true),
              "out/.nibble/.journal: names '" + std::string(name) + "', which nibble may not replace: remove it first");
    EXPECT_TRUE(fs::exists(out_ / name));
  }
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

}  // namespace
}  // namespace nibble::transaction_test
