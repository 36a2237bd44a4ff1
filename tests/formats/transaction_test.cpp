#include "formats/transaction.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::transaction_test {
namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

void write(int directory, const std::string& name, std::string_view text) {
  const Descriptor file(openat(directory, name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  ASSERT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

void write(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::vector<std::string> entries(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

template <class F> Errc code_of(F&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  return Errc{};
}

using Names = std::vector<std::string>;

class TransactionTest : public testing::Test {
 protected:
  test::TempDir root_;
  fs::path out_ = root_.path() / "out";

  void make_old_model() const {
    write(out_ / "config.json", "old config");
    write(out_ / "model.safetensors", "old weights");
    write(out_ / "extra" / "note.txt", "old note");
  }

  static void stage_new_model(const Transaction& transaction) {
    write(transaction.directory(), "config.json", "new config");
    write(transaction.directory(), "model.safetensors", "new weights");
  }
};

TEST_F(TransactionTest, NothingAppearsBeforeCommit) {
  Transaction transaction(out_, Transaction::Kind::directory, false);
  stage_new_model(transaction);
  EXPECT_EQ(entries(root_.path()), Names{".out.nibble"});
  transaction.commit();
  EXPECT_EQ(entries(root_.path()), Names{"out"});
  EXPECT_EQ(entries(out_), (Names{"config.json", "model.safetensors"}));
}

TEST_F(TransactionTest, WhatIsNotCommittedLeavesNothing) {
  { stage_new_model(Transaction(out_, Transaction::Kind::directory, false)); }
  { write(Transaction(out_, Transaction::Kind::file, false).directory(), Transaction::staged_file, "weights"); }
  EXPECT_TRUE(entries(root_.path()).empty());
}

TEST_F(TransactionTest, TrailingSlashIsTheSameOutput) {
  Transaction transaction(out_.string() + "/", Transaction::Kind::directory, false);
  stage_new_model(transaction);
  transaction.commit();
  EXPECT_EQ(entries(root_.path()), Names{"out"});
}

TEST_F(TransactionTest, ExistingOutputIsRefused) {
  make_old_model();
  EXPECT_EQ(code_of([&] { Transaction(out_, Transaction::Kind::directory, false); }), Errc::output_exists);
  EXPECT_EQ(entries(root_.path()), Names{"out"});
}

TEST_F(TransactionTest, OverwriteReplacesTheWholeDirectory) {
  make_old_model();
  Transaction transaction(out_, Transaction::Kind::directory, true);
  stage_new_model(transaction);
  EXPECT_EQ(read(out_ / "config.json"), "old config");
  transaction.commit();
  EXPECT_EQ(read(out_ / "config.json"), "new config");
  EXPECT_EQ(entries(out_), (Names{"config.json", "model.safetensors"}));
  EXPECT_EQ(entries(root_.path()), Names{"out"});
}

TEST_F(TransactionTest, OverwriteSparesWhatIsNoModel) {
  write(out_ / "thesis.tex", "years of work");
  EXPECT_EQ(code_of([&] { Transaction(out_, Transaction::Kind::directory, true); }), Errc::output_exists);
  EXPECT_EQ(read(out_ / "thesis.tex"), "years of work");
}

// A configuration alone is in many a project.
TEST_F(TransactionTest, OverwriteSparesAProject) {
  write(out_ / "config.json", "{}");
  write(out_ / "src" / "main.c", "years of work");
  EXPECT_EQ(code_of([&] { Transaction(out_, Transaction::Kind::directory, true); }), Errc::output_exists);
  EXPECT_EQ(read(out_ / "src" / "main.c"), "years of work");
}

// `link/..` is the folder that the link leads to, not the one that the link is in.
TEST_F(TransactionTest, DotsBehindALinkAreTheSystemsBusiness) {
  fs::create_directories(root_.path() / "else" / "where");
  fs::create_directory_symlink(root_.path() / "else" / "where", root_.path() / "link");
  Transaction transaction(root_.path() / "link" / ".." / "out", Transaction::Kind::directory, false);
  stage_new_model(transaction);
  transaction.commit();
  EXPECT_FALSE(fs::exists(out_));
  EXPECT_TRUE(fs::exists(root_.path() / "else" / "out" / "config.json"));
}

TEST_F(TransactionTest, ManifestOfAnotherFileIsSpared) {
  write(root_.path() / "out.nibble.json", "of another");
  EXPECT_EQ(code_of([&] { Transaction(out_, Transaction::Kind::file, false); }), Errc::output_exists);
}

TEST_F(TransactionTest, UnreadableJournalLeavesTheStagedModel) {
  make_old_model();
  write(out_ / ".nibble" / "config.json", "new config");
  fs::create_directory(out_ / ".nibble" / "journal");  // reading it fails
  EXPECT_EQ(code_of([&] { Transaction(out_, Transaction::Kind::directory, true); }), Errc::io);
  EXPECT_EQ(read(out_ / ".nibble" / "config.json"), "new config");
}

TEST_F(TransactionTest, OverwriteDoesNotFollowALink) {
  make_old_model();
  const fs::path link = root_.path() / "link";
  fs::create_directory_symlink(out_, link);
  EXPECT_EQ(code_of([&] { Transaction(link, Transaction::Kind::directory, true); }), Errc::output_exists);
}

TEST_F(TransactionTest, FileAndItsManifestAppear) {
  Transaction transaction(out_, Transaction::Kind::file, false);
  write(transaction.directory(), Transaction::staged_file, "weights");
  write(transaction.directory(), Transaction::staged_manifest, "manifest");
  transaction.commit();
  EXPECT_EQ(entries(root_.path()), (Names{"out", "out.nibble.json"}));
  EXPECT_EQ(read(out_), "weights");
}

TEST_F(TransactionTest, FileIsReplaced) {
  write(out_, "old");
  EXPECT_EQ(code_of([&] { Transaction(out_, Transaction::Kind::file, false); }), Errc::output_exists);
  Transaction transaction(out_, Transaction::Kind::file, true);
  write(transaction.directory(), Transaction::staged_file, "new");
  transaction.commit();
  EXPECT_EQ(read(out_), "new");
}

TEST_F(TransactionTest, OutputThatAppearsMeanwhileIsSpared) {
  Transaction transaction(out_, Transaction::Kind::directory, false);
  stage_new_model(transaction);
  make_old_model();
  EXPECT_EQ(code_of([&] { transaction.commit(); }), Errc::output_exists);
  EXPECT_EQ(read(out_ / "config.json"), "old config");
}

TEST_F(TransactionTest, SecondWriterIsRefused) {
  const Transaction first(out_, Transaction::Kind::directory, false);
  EXPECT_EQ(code_of([&] { Transaction(out_, Transaction::Kind::directory, false); }), Errc::output_exists);
}

TEST_F(TransactionTest, LeftoversOfAKilledRunAreCleared) {
  write(root_.path() / ".out.nibble" / "model.safetensors", "half");
  Transaction transaction(out_, Transaction::Kind::directory, false);
  write(transaction.directory(), "config.json", "new config");
  transaction.commit();
  EXPECT_EQ(entries(out_), Names{"config.json"});
}

TEST_F(TransactionTest, MissingFolderIsUsage) {
  EXPECT_EQ(code_of([&] { Transaction(root_.path() / "no" / "out", Transaction::Kind::file, false); }), Errc::usage);
}

// A run that dies while it swaps inside the target has written its journal: for every step at which it may have
// stopped, the next run finds the new model, whole.
TEST_F(TransactionTest, InterruptedSwapIsFinished) {
  const fs::path staging = out_ / ".nibble";
  for (int step = 0; step <= 5; ++step) {
    fs::remove_all(out_);
    make_old_model();
    write(staging / "config.json", "new config");
    write(staging / "model.safetensors", "new weights");
    constexpr auto journal = "-config.json\0-extra\0-model.safetensors\0+config.json\0+model.safetensors\0.\0"sv;
    write(staging / "journal", journal);
    if (step > 0) fs::remove(out_ / "config.json");
    if (step > 1) fs::remove(out_ / "model.safetensors");
    if (step > 2) fs::remove_all(out_ / "extra");
    if (step > 3) fs::rename(staging / "model.safetensors", out_ / "model.safetensors");
    if (step > 4) fs::rename(staging / "config.json", out_ / "config.json");
    EXPECT_EQ(code_of([&] { Transaction(out_, Transaction::Kind::directory, false); }), Errc::output_exists);
    EXPECT_EQ(entries(out_), (Names{"config.json", "model.safetensors"})) << "step " << step;
    EXPECT_EQ(read(out_ / "config.json"), "new config") << "step " << step;
    EXPECT_EQ(read(out_ / "model.safetensors"), "new weights") << "step " << step;
  }
}

// Without its end mark a journal was never whole, and nothing was moved yet.
TEST_F(TransactionTest, HalfAJournalChangesNothing) {
  make_old_model();
  write(out_ / ".nibble" / "config.json", "new config");
  write(out_ / ".nibble" / "journal", "-config.json\0-ex"sv);
  EXPECT_EQ(code_of([&] { Transaction(out_, Transaction::Kind::directory, false); }), Errc::output_exists);
  EXPECT_EQ(read(out_ / "config.json"), "old config");
}

}  // namespace
}  // namespace nibble::transaction_test
