#include "formats/commit/work_log.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::work_log_test {
namespace {

namespace fs = std::filesystem;
using Records = std::vector<std::string>;

class WorkLogTest : public testing::Test {
 protected:
  WorkLogTest() : work_(open(root_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}

  [[nodiscard]] WorkLog made(const Records& records) const {
    fs::remove(path_);
    WorkLog log(work_.get(), "work", "head");
    for (const std::string& record : records) log.append(record);
    return log;
  }
  [[nodiscard]] std::optional<WorkLog> find() const { return WorkLog::find(work_.get(), "work"); }
  static Records rest_of(WorkLog& log) {
    Records records;
    while (const auto record = log.read()) records.push_back(*record);
    return records;
  }
  [[nodiscard]] Records found() const {
    auto log = find();
    return log ? rest_of(*log) : Records{"nothing"};
  }
  void overwrite(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  [[nodiscard]] std::string refusal() const {
    return test::error_of([&] { (void)find(); }, Errc::output_exists);
  }
  static std::string refused(const std::string& fact) { return "work/log: cannot be resumed: " + fact; }

  test::TempDir root_;
  fs::path path_ = root_.path() / WorkLog::name;
  Descriptor work_;
};

TEST_F(WorkLogTest, IsReadAsItWasWritten) {
  EXPECT_FALSE(find());
  const Records records{"one", "", std::string(100'000, 'x')};
  made(records).flush();
  EXPECT_EQ(find()->head(), "head");
  EXPECT_TRUE(find()->has_records());
  EXPECT_FALSE(made({}).has_records());
  (void)made(records);
  EXPECT_EQ(found(), records);
}

TEST_F(WorkLogTest, ManyRecordsAreWrittenTogether) {
  Records records;
  for (int i = 0; i < 300; ++i) records.push_back(std::string(1000, static_cast<char>('a' + i % 26)));
  WorkLog log = made(records);
  const std::size_t written = found().size();
  EXPECT_GE(written, 280U);  // 16 KiB are written later
  EXPECT_LT(written, 300U);
  EXPECT_TRUE(log.has_records());
  log.write();
  EXPECT_EQ(found(), records);
  EXPECT_EQ(log.read(), std::nullopt);
  log.append("last");
  log.flush();
  EXPECT_EQ(found().back(), "last");
}

// A run that was killed may have written any part of the last record, and a file system any bytes in its place.
TEST_F(WorkLogTest, EndsBeforeARecordThatIsNotWhole) {
  (void)made({"one", "two"});
  const std::string whole = test::read_file(path_);
  const std::size_t last = whole.size() - 24 - 3;
  for (std::size_t bytes = last; bytes < whole.size(); ++bytes) {
    overwrite(whole.substr(0, bytes));
    EXPECT_EQ(found(), Records{"one"}) << bytes;
    std::string changed = whole;
    changed[bytes] = static_cast<char>(changed[bytes] ^ 1);
    overwrite(changed);
    EXPECT_EQ(found(), Records{"one"}) << bytes;
  }
}

TEST_F(WorkLogTest, GoesOnWhereItStands) {
  (void)made({"one", "two", "three"});
  auto log = find();
  (void)log->read();
  const WorkLog::Position behind_one = log->position();
  EXPECT_EQ(rest_of(*log), (Records{"two", "three"}));
  log->go_to(behind_one);
  log->append("2");
  EXPECT_EQ(found(), (Records{"one", "2"}));
}

// What lies behind a record counts only if it was written behind this very one.
TEST_F(WorkLogTest, RecordsOfAnEarlierOrderDoNotCount) {
  (void)made({"one", "two", "end"});
  const std::string old = test::read_file(path_);
  (void)made({"ONE"});
  const std::string replaced = test::read_file(path_);
  overwrite(replaced + old.substr(replaced.size()));
  EXPECT_EQ(found(), Records{"ONE"});
}

TEST_F(WorkLogTest, WithoutAHeadThereIsNothing) {
  (void)made({});
  const std::string whole = test::read_file(path_);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    overwrite(whole.substr(0, bytes));
    EXPECT_FALSE(find()) << bytes;
  }
  overwrite(std::string(whole.size(), '\0'));  // what a power cut may leave
  EXPECT_FALSE(find());
}

TEST_F(WorkLogTest, IsRefusedIfItIsNotOurs) {
  (void)made({"one"});
  const std::string whole = test::read_file(path_);
  std::string changed = whole;
  changed[16 + 24] = 'H';
  overwrite(changed);
  EXPECT_EQ(refusal(), refused("it is damaged"));
  changed = whole;
  changed[16] ^= 64;  // the number of bytes of the head, which is now beyond the end
  overwrite(changed);
  EXPECT_EQ(refusal(), refused("it is damaged"));
  overwrite("nibble log 1" + whole.substr(12));
  EXPECT_EQ(refusal(), refused("another version of nibble wrote it"));

  overwrite(whole);
  fs::permissions(path_, fs::perms::owner_all | fs::perms::group_write);
  EXPECT_EQ(refusal(), refused("others can write it"));
  fs::permissions(path_, fs::perms::owner_all);
  fs::create_hard_link(path_, root_.path() / "second");
  EXPECT_EQ(refusal(), refused("it has a second name"));
  fs::remove(path_);
  fs::create_symlink("second", path_);
  EXPECT_EQ(refusal(), refused("it is not a regular file"));
  fs::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(refusal(), refused("it is not a regular file"));
  if (geteuid() != 0) return;
  fs::remove(path_);
  fs::rename(root_.path() / "second", path_);
  ASSERT_EQ(chown(path_.c_str(), 65534, 65534), 0);
  EXPECT_EQ(refusal(), refused("it belongs to another user"));
}

}  // namespace
}  // namespace nibble::work_log_test
