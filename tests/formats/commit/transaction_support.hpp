#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "formats/commit/transaction.hpp"
#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

/// Models and outputs in a folder of their own, for all tests of transactions.
namespace nibble::transaction_test {

namespace fs = std::filesystem;
using test::entries_of;
using test::error_of;
using test::read_file;
using Kind = Transaction::Kind;
using Names = std::vector<std::string>;

inline void write(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline void stage(const Transaction& transaction, const std::string& name, std::string_view text) {
  const Descriptor file(openat(transaction.directory(), name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  ASSERT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

inline mode_t mode_of(const fs::path& path) {
  struct stat status {};
  return lstat(path.c_str(), &status) == 0 ? status.st_mode & 07777 : 0;
}

inline void make_private_directory(const fs::path& path) {
  fs::create_directories(path);
  fs::permissions(path, fs::perms::owner_all);
}

/// Of a test that root runs: what it does meanwhile is done by a user who may do nothing special, also if it throws.
class AsNobody {
 public:
  static constexpr uid_t user = 65534;
  AsNobody() { EXPECT_EQ(seteuid(user), 0); }
  ~AsNobody() { EXPECT_EQ(seteuid(0), 0); }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;
  AsNobody(AsNobody&&) = delete;
  AsNobody& operator=(AsNobody&&) = delete;
};

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
    ASSERT_EQ(mkdirat(transaction.directory(), "extra", 0777), 0);
    stage(transaction, "extra/note.txt", "new note");
  }
  // What comes in beside a model's files is known at the start, so nothing of the old model stays.
  static Transaction::Options options(bool overwrite) {
    static const Names paths{"extra", "extra/note.txt"};
    return {.overwrite = overwrite, .paths = paths};
  }
  Transaction begin(bool overwrite = false) const { return {out_, Kind::directory, options(overwrite)}; }
  Transaction begin_file(bool overwrite = false) const { return {out_, Kind::file, {.overwrite = overwrite}}; }
  std::string refusal(bool overwrite, Kind kind = Kind::directory, Errc code = Errc::output_exists) const {
    return in_place(error_of([&] { Transaction(out_, kind, options(overwrite)); }, code));
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
    EXPECT_EQ(entries_of(out_), (Names{"config.json", "extra", "model.safetensors"}));
    EXPECT_EQ(read_file(out_ / "config.json"), "new config");
    EXPECT_EQ(read_file(out_ / "model.safetensors"), "new weights");
    EXPECT_EQ(read_file(out_ / "extra" / "note.txt"), "new note");
    EXPECT_EQ(entries_of(root_.path()), Names{"out"});
  }

  test::TempDir root_;
  fs::path out_ = root_.path() / "out";
};

}  // namespace nibble::transaction_test
