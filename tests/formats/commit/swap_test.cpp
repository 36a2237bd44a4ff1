#include "formats/commit/swap.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "core/files/directory.hpp"
#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/journal.hpp"

namespace nibble::swap_test {
namespace {

namespace fs = std::filesystem;
using test::entries_of;
using test::error_of;
using test::inode_of;
using test::JournalStep;
using test::read_file;
using testing::ElementsAre;
using Action = Swap::Action;

class SwapTest : public testing::Test {
 protected:
  SwapTest() { start(); }

  // A target of three entries, and two that shall replace them.
  void start() {
    for (const char* const name : {"target", "work"}) fs::remove_all(root_.path() / name);
    for (const char* const name : {"target", "target/extra", "work", "work/new", "work/old"})
      fs::create_directory(root_.path() / name);
    (void)root_.write("target/config.json", "old config");
    (void)root_.write("target/model.safetensors", "old weights");
    (void)root_.write("target/extra/note.txt", "old note");
    (void)root_.write("work/new/config.json", "new config");
    (void)root_.write("work/new/model.safetensors", "new weights");
    target_fd_ = Descriptor(open(target_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    work_fd_ = Descriptor(open(work_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }

  Swap swap() const { return {target_fd_.get(), work_fd_.get(), "out"}; }
  Swap::Steps steps() const { return swap().replace(entries_of(target_)); }

  bool is_old() const {
    return entries_of(target_) == std::vector<std::string>{"config.json", "extra", "model.safetensors"} &&
           read_file(target_ / "config.json") == "old config" &&
           read_file(target_ / "model.safetensors") == "old weights" &&
           read_file(target_ / "extra" / "note.txt") == "old note";
  }
  bool is_new() const {
    return entries_of(target_) == std::vector<std::string>{"config.json", "model.safetensors"} &&
           read_file(target_ / "config.json") == "new config" &&
           read_file(target_ / "model.safetensors") == "new weights";
  }

  // The journal of steps, as text for tests.
  static std::vector<JournalStep> described(const Swap::Steps& steps) {
    std::vector<JournalStep> result;
    for (const Swap::Step& step : steps)
      result.push_back({"-=+|"[static_cast<std::size_t>(step.action)], step.name, step.old_inode, step.new_inode});
    return result;
  }
  void write_journal(std::string_view text) const { (void)root_.write("work/.journal", text); }
  std::string problem() const { return swap().journal().problem; }

  test::TempDir root_;
  fs::path target_ = root_.path() / "target";
  fs::path work_ = root_.path() / "work";
  Descriptor target_fd_{-1}, work_fd_{-1};
};

// What a loader would take for a model leaves first and comes last.
TEST_F(SwapTest, AtNoTimeIsThereAMixture) {
  std::vector<std::string> order;
  for (const Swap::Step& step : steps())
    order.push_back(std::string(1, "-=+|"[static_cast<std::size_t>(step.action)]) + step.name);
  EXPECT_THAT(order, ElementsAre("-config.json", "-model.safetensors", "|", "-extra", "|", "|", "+config.json",
                                 "+model.safetensors", "|"));
}

TEST_F(SwapTest, EntriesAreReplaced) {
  swap().run(steps());
  EXPECT_TRUE(is_new());
  EXPECT_THAT(entries_of(work_ / "old"), ElementsAre("config.json", "extra", "model.safetensors"));
  EXPECT_FALSE(swap().journal().is_there);
  EXPECT_TRUE(fs::exists(work_ / Swap::done_name));
}

TEST_F(SwapTest, FilesChangePlaces) {
  swap().run({swap().step(Action::exchange, "config.json")});
  EXPECT_EQ(read_file(target_ / "config.json"), "new config");
  EXPECT_EQ(read_file(work_ / "new" / "config.json"), "old config");
}

// For every entry that cannot be moved: what was done before it is taken back.
TEST_F(SwapTest, WhatFailsIsUndone) {
  const Swap::Steps all = steps();
  for (std::size_t broken = 0; broken < all.size(); ++broken) {
    if (all[broken].action == Action::barrier) continue;
    start();
    Swap::Steps changed = steps();
    (changed[broken].action == Action::take_out ? changed[broken].old_inode : changed[broken].new_inode) += 1;
    EXPECT_EQ(error_of([&] { swap().run(changed); }, Errc::output_exists),
              "out: '" + changed[broken].name + "' was changed meanwhile; nothing is replaced");
    EXPECT_TRUE(is_old()) << "step " << broken;
    EXPECT_THAT(entries_of(work_ / "new"), ElementsAre("config.json", "model.safetensors")) << "step " << broken;
    EXPECT_FALSE(swap().journal().is_there) << "step " << broken;
  }
}

TEST_F(SwapTest, ExchangeIsUndone) {
  Swap::Steps list{swap().step(Action::exchange, "config.json"), swap().step(Action::take_out, "extra")};
  list.back().old_inode += 1;
  EXPECT_NE(error_of([&] { swap().run(list); }, Errc::output_exists), "");
  EXPECT_TRUE(is_old());
}

// The mask of the user who runs must not make a journal one that others can write.
TEST_F(SwapTest, JournalsAreTheirOwnersAlone) {
  const mode_t before = umask(0);
  Swap::Steps all = steps();
  mode_t mode = 0;
  swap().run(all, [&] {
    struct stat status {};
    ASSERT_EQ(stat((work_ / Swap::journal_name).c_str(), &status), 0);
    mode = status.st_mode & 07777;
  });
  umask(before);
  EXPECT_EQ(mode, 0600);
}

TEST_F(SwapTest, WhatIsJudgedBadIsUndone) {
  const auto judge = [] { throw Error(Errc::output_exists, "mine"); };
  EXPECT_EQ(error_of([&] { swap().run(steps(), judge); }, Errc::output_exists), "mine");
  EXPECT_TRUE(is_old());
  EXPECT_FALSE(swap().journal().is_there);
}

// An entry that appears between the plan and its step is nobody's to overwrite.
TEST_F(SwapTest, NothingIsWrittenOver) {
  const Swap::Steps list{swap().step(Action::take_out, "config.json"), swap().step(Action::put_in, "config.json")};
  (void)root_.write("elsewhere", "another's");
  fs::rename(root_.path() / "elsewhere", target_ / "config.json");
  EXPECT_NE(error_of([&] { swap().run(list); }, Errc::output_exists), "");
  EXPECT_EQ(read_file(target_ / "config.json"), "another's");
}

TEST_F(SwapTest, EntriesInTheWayStopWhatIsPutIn) {
  const Swap::Steps list{swap().step(Action::put_in, "config.json")};
  EXPECT_EQ(error_of([&] { swap().run(list); }, Errc::output_exists),
            "out: 'config.json' was changed meanwhile; nothing is replaced");
  EXPECT_TRUE(is_old());
}

// For every step at which a run may have died, what it began is finished.
TEST_F(SwapTest, InterruptedRunsAreFinished) {
  const std::size_t count = steps().size();
  for (std::size_t died = 0; died <= count; ++died) {
    start();
    const Swap::Steps all = steps();
    write_journal(test::journal(target_, described(all)));
    for (std::size_t i = 0; i < died; ++i) {
      const std::string& name = all[i].name;
      if (all[i].action == Action::take_out) fs::rename(target_ / name, work_ / "old" / name);
      if (all[i].action == Action::put_in) fs::rename(work_ / "new" / name, target_ / name);
    }
    const Swap::Journal found = swap().journal();
    EXPECT_EQ(found.problem, "") << "step " << died;
    EXPECT_EQ(found.steps, all) << "step " << died;
    swap().finish(found.steps);
    EXPECT_TRUE(is_new()) << "step " << died;
    EXPECT_FALSE(swap().journal().is_there) << "step " << died;
  }
}

TEST_F(SwapTest, WhatChangedSinceStopsTheFinish) {
  const Swap::Steps all = steps();
  (void)root_.write("elsewhere", "another's");
  fs::rename(root_.path() / "elsewhere", target_ / "config.json");
  EXPECT_NE(error_of([&] { swap().finish(all); }, Errc::output_exists), "");
  EXPECT_EQ(read_file(target_ / "config.json"), "another's");
}

TEST_F(SwapTest, JournalsThatDoNotCount) {
  EXPECT_FALSE(swap().journal().is_there);
  const std::string good = test::journal(target_, described(steps()));
  write_journal(good);
  EXPECT_EQ(problem(), "");

  std::string flipped = good;
  flipped[flipped.find("config")] = 'C';
  write_journal(flipped);
  EXPECT_EQ(problem(), "its checksum is wrong");
  write_journal(good.substr(0, good.size() / 2));
  EXPECT_EQ(problem(), "its checksum is wrong");
  write_journal(good.substr(0, 20));
  EXPECT_EQ(problem(), "it is not whole");
  write_journal("");
  EXPECT_EQ(problem(), "it is not a journal of this version");
  using namespace std::string_view_literals;
  write_journal("-../victim\0.\0"sv);
  EXPECT_EQ(problem(), "it is not a journal of this version");
  write_journal(test::journal(work_, described(steps())));
  EXPECT_EQ(problem(), "it is about another directory");
}

// With the right checksum, too: whoever knows the format can write one.
TEST_F(SwapTest, JournalsNameEntriesAlone) {
  for (const char* const name : {"../victim", "/absolute", "..", ".", "", "a/b"})
    for (const char action : {'-', '=', '+'}) {
      write_journal(test::journal(target_, {{action, name, 1, 1}}));
      EXPECT_EQ(problem(), "it has a step that no run has written") << action << name;
    }
  write_journal(test::journal(target_, {{'?', "name", 1, 1}}));
  EXPECT_NE(problem(), "");
  write_journal(test::journal(target_, {{'|', "name", 0, 0}}));
  EXPECT_NE(problem(), "");
}

TEST_F(SwapTest, JournalsOfOthersDoNotCount) {
  write_journal(test::journal(target_, described(steps())));
  const fs::path path = work_ / Swap::journal_name;
  fs::permissions(path, fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(problem(), "others can write it");
  fs::permissions(path, fs::perms::others_write, fs::perm_options::remove);
  fs::create_hard_link(path, root_.path() / "second");
  EXPECT_EQ(problem(), "it has a second name");
  fs::remove(root_.path() / "second");
  EXPECT_EQ(problem(), "");
  if (geteuid() == 0) {
    ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
    EXPECT_EQ(problem(), "it belongs to another user");
  }
  fs::rename(path, root_.path() / "elsewhere");
  fs::create_symlink("../elsewhere", path);
  EXPECT_EQ(problem(), "it is not a regular file");
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_EQ(problem(), "it is not a regular file");
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(problem(), "it is not a regular file");
}

TEST_F(SwapTest, JournalsAreBounded) {
  write_journal("x");
  fs::resize_file(work_ / Swap::journal_name, 1ULL << 40);
  EXPECT_EQ(problem(), "it is too long");
}

}  // namespace
}  // namespace nibble::swap_test
