// Outputs that are files, with the manifest beside them.

#include <gtest/gtest.h>

#include "tests/formats/commit/transaction_support.hpp"

namespace nibble::transaction_test {
namespace {

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

}  // namespace
}  // namespace nibble::transaction_test
