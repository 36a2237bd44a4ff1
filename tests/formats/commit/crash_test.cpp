// What is on disk after the process was killed, or the power was cut, at any moment of a commit: the old output, the
// new one, or what says honestly that neither is there, and the next run finishes or clears it. These tests fail when
// two steps of a commit are swapped, or when a flush between them is left out.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/files/file.hpp"
#include "formats/commit/transaction.hpp"
#include "formats/commit/writer.hpp"
#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"
#include "tests/support/crash.hpp"
#include "tests/support/plain_parts.hpp"

namespace nibble::crash_test {
namespace {

namespace fs = std::filesystem;
using test::Crash;
using test::entries_of;
using test::Fate;
using test::read_file;
using test::run_and_crash;
using test::try_crashes;
using testing::AnyOf;
using testing::IsEmpty;
using Contents = std::map<std::string, std::string>;

constexpr const char* old_manifest = R"({"schema_version":1})";
constexpr const char* new_manifest = R"({"schema_version":1,"new":true})";

void write(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// The files in a folder and below it, without what is in a work directory.
Contents contents_of(const fs::path& folder, const std::string& prefix = {}) {
  Contents contents;
  if (!fs::exists(folder)) return contents;
  for (const std::string& name : entries_of(folder))
    if (!fs::is_directory(folder / name))
      contents[prefix + name] = read_file(folder / name);
    else if (!name.starts_with('.'))
      contents.merge(contents_of(folder / name, prefix + name + '/'));
  return contents;
}

// Whether a folder has a file, and which: that of one output or the other.
bool has(const Contents& contents, const Contents& of, const std::string& name) {
  const auto found = contents.find(name);
  const auto its = of.find(name);
  return found != contents.end() && its != of.end() && found->second == its->second;
}

class CrashTest : public testing::Test {
 protected:
  CrashTest() {
    write(in_ / "model.safetensors", test::safetensors_with({"a"}));
    write(in_ / "config.json", "{\"generation\": \"new\"}");
  }

  // Writes a checkpoint with the weights of the input as they are.
  static void convert(const fs::path& in, const fs::path& out, bool overwrite) {
    const auto source = open_checkpoint(in);
    const auto writer = create_checkpoint(out, *source, {.bytes = 16, .overwrite = overwrite});
    const test::PlainParts parts(source->tensors());
    std::vector<std::byte> bytes(source->tensors()[0].bytes());
    source->read(0, 0, bytes);
    writer->begin(0, parts);
    writer->write(0, 0, bytes);
    writer->end();
    writer->write_manifest(0, new_manifest);
    Finish finish;
    finish.shards.push_back(&parts);
    writer->complete(finish);
    writer->commit();
  }

  // In memory, where there is such a file system: thousands of files are made.
  static fs::path folder() { return fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path(); }

  test::TempDir root_{folder()}, away_{folder()};
  fs::path in_ = away_.path() / "in";
  fs::path lost_ = away_.path() / "lost";
};

// --- a file and its manifest ----------------------------------------------------------------------------------------

class FileCrashTest : public CrashTest {
 protected:
  static constexpr const char* file = "out.safetensors";
  static constexpr const char* manifest = "out.safetensors.nibble.json";

  void prepare(bool with_old) const {
    for (const fs::path& entry : fs::directory_iterator(root_.path())) fs::remove_all(entry);
    for (const auto& [name, text] : with_old ? old_ : Contents{}) write(root_.path() / name, text);
  }
  void convert_file() const { convert(in_ / "model.safetensors", out_, true); }
  void recover() const { const Transaction transaction(out_, Transaction::Kind::file, {.overwrite = true}); }

  // A file without a manifest claims nothing. A manifest has to be that of the file beside it.
  void expect_honest(const Contents& found, const std::string& crash) const {
    if (!found.contains(manifest)) return;
    EXPECT_TRUE((has(found, old_, manifest) && has(found, old_, file)) ||
                (has(found, new_, manifest) && has(found, new_, file)))
        << crash << ": the manifest is not that of the file";
  }

  void check(const Contents& before, bool file_stays, const std::string& crash, bool ended) const {
    const Contents found = contents_of(root_.path());
    expect_honest(found, crash);
    EXPECT_TRUE(!file_stays || has(found, old_, file) || has(found, new_, file)) << crash << ": there is no file";
    ASSERT_NO_THROW(recover()) << crash;
    EXPECT_THAT(contents_of(root_.path()), AnyOf(ended ? new_ : before, new_)) << crash;
    EXPECT_EQ(entries_of(root_.path()).size(), contents_of(root_.path()).size()) << crash;
  }

  void find_new() {
    prepare(false);
    convert_file();
    new_ = contents_of(root_.path());
    ASSERT_EQ(new_.size(), 2U);
  }

  std::size_t try_all(const Crash& kind, const Contents& before) {
    find_new();
    const auto prepare_it = [&] { prepare(!before.empty()); };
    const auto check_it = [&](const std::string& crash, bool ended) {
      check(before, kind.can_exchange && !before.empty(), crash, ended);
    };
    return try_crashes(
        kind, prepare_it, [&] { convert_file(); }, check_it, lost_);
  }

  fs::path out_ = root_.path() / file;
  Contents old_{{file, test::safetensors_with({"old"})}, {manifest, old_manifest}};
  Contents new_;
};

TEST_F(FileCrashTest, NewPair) { EXPECT_GT(try_all({}, {}), 50U); }
TEST_F(FileCrashTest, ReplacedPair) { EXPECT_GT(try_all({}, old_), 50U); }
TEST_F(FileCrashTest, ReplacedPairWithoutExchange) { EXPECT_GT(try_all({.can_exchange = false}, old_), 50U); }

// The last step fails, and all of them are taken back: that can be stopped, too.
TEST_F(FileCrashTest, UndonePair) {
  for (const bool can_exchange : {true, false}) {
    EXPECT_GT(try_all({.failing = {"rename .journal"}, .can_exchange = can_exchange}, old_), 50U);
    EXPECT_EQ(contents_of(root_.path()), old_);
    EXPECT_EQ(entries_of(root_.path()).size(), old_.size());
  }
}

// A journal that could not be removed is carried out by the next run, which finds what it names.
TEST_F(FileCrashTest, UndonePairWithItsJournal) {
  EXPECT_GT(try_all({.failing = {"rename .journal", "remove .journal"}}, old_), 50U);
  EXPECT_EQ(contents_of(root_.path()), old_);
  recover();
  EXPECT_EQ(contents_of(root_.path()), new_);
}

// So is what is put back because it was written to meanwhile.
TEST_F(FileCrashTest, PairThatIsJudgedBad) {
  static int looks;
  looks = 0;
  constexpr auto not_in_the_end = [](int /*file*/) { return ++looks < 3; };  // at the start, before and after the steps
  const auto work = [&] {
    Transaction transaction(out_, Transaction::Kind::file, {.overwrite = true, .may_replace = not_in_the_end});
    for (const auto& [name, text] : new_) {
      OutputFile part(transaction.directory(), name, name);
      part.write_at(0, std::as_bytes(std::span(text)));
      part.flush();
    }
    transaction.commit();
  };
  find_new();
  const auto check_it = [&](const std::string& crash, bool ended) { check(old_, true, crash, ended); };
  EXPECT_GT(try_crashes(
                {}, [&] { prepare(true); }, work, check_it, lost_),
            50U);
  EXPECT_EQ(contents_of(root_.path()), old_);
}

// So can the run that finishes them. From each step on at which the one before it may have died.
TEST_F(FileCrashTest, FinishedPair) {
  find_new();
  for (const char* const step : {"exchange new/out.safetensors", "rename new/out.safetensors.nibble.json",
                                 "remove old/out.safetensors.nibble.json"}) {
    const auto interrupt = [&] {
      prepare(true);
      EXPECT_EQ(run_and_crash({.before = step}, lost_, [&] { convert_file(); }), Fate::crashed) << step;
    };
    const auto check_it = [&](const std::string& crash, bool ended) {
      check(old_, true, step + (", " + crash), ended);
    };
    EXPECT_GT(try_crashes(
                  {}, interrupt, [&] { recover(); }, check_it, lost_),
              10U)
        << step;
    EXPECT_EQ(contents_of(root_.path()), new_) << step;
  }
}

// --- directories ----------------------------------------------------------------------------------------------------

class DirectoryCrashTest : public CrashTest {
 protected:
  DirectoryCrashTest() {
    write(in_ / "tokenizer.json", "new tokens");
    write(in_ / "pooling" / "config.json", "new pooling");
    write(in_ / "extra" / "note.txt", "new note");
  }

  // In the last two, what is in it is replaced one by one: in the last, because of what stays.
  enum class Before { nothing, model, entries, with_more };

  void prepare(Before before) const {
    fs::remove_all(out_);
    fs::remove_all(root_.path() / ".out.nibble");
    if (before == Before::nothing) return;
    for (const auto& [name, text] : old_) write(out_ / name, text);
    if (before == Before::with_more)
      for (const auto& [name, text] : more_) write(out_ / name, text);
    if (before != Before::entries) return;
    fs::create_directory(out_ / ".nibble");
    fs::permissions(out_ / ".nibble", fs::perms::owner_all);
  }
  void convert_directory() const { convert(in_, out_, true); }
  void recover() const {
    const std::vector<std::string> paths{"extra", "extra/note.txt", "pooling", "pooling/config.json"};
    const Transaction transaction(out_, Transaction::Kind::directory, {.overwrite = true, .paths = paths});
  }

  // What a loader takes for a model must be all of one. Where the directory is exchanged in one step, nothing else
  // is seen at any time.
  void check(const Contents& before, bool in_one_step, const std::string& crash, bool ended,
             bool with_more = false) const {
    for (const auto& [name, text] : with_more ? more_ : Contents{})
      EXPECT_EQ(read_file(out_ / name), text) << crash << ": " << name;
    const Contents found = without_more(contents_of(out_));
    const bool is_model = found.contains("config.json") && found.contains("model.safetensors");
    if (in_one_step || is_model) {
      EXPECT_THAT(found, AnyOf(before, new_)) << crash << ": a mixture";
    }
    ASSERT_NO_THROW(recover()) << crash;
    for (const auto& [name, text] : with_more ? more_ : Contents{})
      EXPECT_EQ(read_file(out_ / name), text) << crash << ": " << name;
    EXPECT_THAT(without_more(contents_of(out_)), AnyOf(ended ? new_ : before, new_)) << crash;
    EXPECT_EQ(entries_of(root_.path()).size(), fs::exists(out_) ? 1U : 0U) << crash;
    EXPECT_FALSE(fs::exists(out_ / ".nibble")) << crash;
  }

  void find_new() {
    prepare(Before::nothing);
    convert_directory();
    new_ = contents_of(out_);
    ASSERT_EQ(new_.size(), 6U);
  }

  std::size_t try_all(const Crash& kind, Before before) {
    find_new();
    const bool in_one_step = before == Before::nothing || (before == Before::model && kind.can_exchange);
    const auto check_it = [&](const std::string& crash, bool ended) {
      check(before == Before::nothing ? Contents{} : old_, in_one_step, crash, ended, before == Before::with_more);
    };
    return try_crashes(
        kind, [&] { prepare(before); }, [&] { convert_directory(); }, check_it, lost_);
  }

  Contents without_more(Contents contents) const {
    for (const auto& [name, text] : more_) contents.erase(name);
    return contents;
  }

  fs::path out_ = root_.path() / "out";
  Contents more_{{".git/HEAD", "ref"}, {".gitattributes", "lfs"}, {"notes/thesis.tex", "years of work"}};
  Contents old_{{"config.json", "{}"},
                {"model.safetensors", test::safetensors_with({"old"})},
                {"nibble.json", old_manifest},
                {"extra/note.txt", "old note"}};
  Contents new_;
};

TEST_F(DirectoryCrashTest, New) { EXPECT_GT(try_all({}, Before::nothing), 30U); }
TEST_F(DirectoryCrashTest, Replaced) { EXPECT_GT(try_all({}, Before::model), 50U); }
TEST_F(DirectoryCrashTest, ReplacedWithoutExchange) { EXPECT_GT(try_all({.can_exchange = false}, Before::model), 50U); }
TEST_F(DirectoryCrashTest, ReplacedEntries) { EXPECT_GT(try_all({}, Before::entries), 50U); }
TEST_F(DirectoryCrashTest, ReplacedBesideWhatStays) { EXPECT_GT(try_all({}, Before::with_more), 50U); }

// For each call that can fail when the new entries are there already.
TEST_F(DirectoryCrashTest, Undone) {
  const std::string flush = "flush " + root_.path().filename().string();
  for (const auto& [failing, before] :
       {std::pair("rename .out.nibble/exchanged", Before::model), std::pair(flush.c_str(), Before::model),
        std::pair("rename .journal", Before::entries)}) {
    EXPECT_GT(try_all({.failing = {failing}}, before), 50U) << failing;
    EXPECT_EQ(contents_of(out_), old_) << failing;
  }
}

TEST_F(DirectoryCrashTest, FinishedEntries) {
  find_new();
  for (const char* const step : {"rename new/tokenizer.json", "rename new/config.json", "remove old/config.json"}) {
    const auto interrupt = [&] {
      prepare(Before::entries);
      EXPECT_EQ(run_and_crash({.before = step}, lost_, [&] { convert_directory(); }), Fate::crashed) << step;
    };
    const auto check_it = [&](const std::string& crash, bool ended) {
      check(old_, false, step + (", " + crash), ended);
    };
    EXPECT_GT(try_crashes(
                  {}, interrupt, [&] { recover(); }, check_it, lost_),
              10U)
        << step;
    EXPECT_EQ(contents_of(out_), new_) << step;
  }
}

}  // namespace
}  // namespace nibble::crash_test
