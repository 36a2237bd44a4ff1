#include "formats/commit/work_directory.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::work_directory_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;

class WorkDirectoryTest : public testing::Test {
 protected:
  Descriptor open_root() const { return Descriptor(open(root_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); }
  std::unique_ptr<WorkDirectory> make() const {
    return std::make_unique<WorkDirectory>(open_root(), ".work", "out", "");
  }
  Descriptor check() const { return WorkDirectory::check(open_root().get(), ".work", "out", ""); }
  // What is said by who wants one, and by who only asks.
  std::string refusal(Errc code = Errc::output_exists) const {
    const std::string said = error_of([&] { make(); }, code);
    EXPECT_EQ(error_of([&] { (void)check(); }, code), said);
    return said;
  }
  fs::perms mode() const { return fs::status(work_).permissions(); }

  test::TempDir root_;
  fs::path work_ = root_.path() / ".work";
};

TEST_F(WorkDirectoryTest, IsItsOwnersAloneAndGoneAtTheEnd) {
  {
    const auto work = make();
    EXPECT_EQ(mode(), fs::perms::owner_all);
    (void)root_.write(".work/file", "");
  }
  EXPECT_FALSE(fs::exists(work_));
}

TEST_F(WorkDirectoryTest, SecondOneIsRefused) {
  const auto first = make();
  EXPECT_EQ(refusal(), "out: another nibble is writing it");
  EXPECT_TRUE(fs::exists(work_));
}

// A dry run looks whether it could have the lock, and that takes a moment.
TEST_F(WorkDirectoryTest, CheckOfAnotherProcessIsWaitedFor) {
  make()->keep();
  const Descriptor checked(open(work_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(flock(checked.get(), LOCK_SH), 0);
  std::thread end_of_check([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    (void)flock(checked.get(), LOCK_UN);
  });
  EXPECT_NO_THROW(make());
  end_of_check.join();
}

// What a killed run left may be needed: nothing is removed before it was looked at.
TEST_F(WorkDirectoryTest, RemainsStayUntilTheyAreCleared) {
  fs::create_directory(work_);
  fs::permissions(work_, fs::perms::owner_all);
  (void)root_.write(".work/journal", "");
  { const auto work = make(); }
  EXPECT_TRUE(fs::exists(work_ / "journal"));
  {
    const auto work = make();
    work->clear();
    EXPECT_TRUE(fs::is_empty(work_));
  }
  EXPECT_FALSE(fs::exists(work_));
}

TEST_F(WorkDirectoryTest, IsKeptForTheNextRun) {
  make()->keep();
  EXPECT_TRUE(fs::exists(work_));
}

// Others could put into it what would count as ours.
TEST_F(WorkDirectoryTest, OneThatOthersCanWriteIsRefused) {
  fs::create_directory(work_);
  for (const auto others : {fs::perms::group_write, fs::perms::others_write}) {
    fs::permissions(work_, fs::perms::owner_all | others);
    EXPECT_EQ(refusal(), ".work: others can write it: remove it first");
  }
  EXPECT_TRUE(fs::exists(work_));
}

TEST_F(WorkDirectoryTest, OneOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a directory to another user";
  fs::create_directory(work_);
  fs::permissions(work_, fs::perms::owner_all);
  ASSERT_EQ(chown(work_.c_str(), 65534, 65534), 0);
  EXPECT_EQ(refusal(), ".work: belongs to another user: remove it first");
}

TEST_F(WorkDirectoryTest, LinksAndFilesAreInTheWay) {
  fs::create_directory(root_.path() / "elsewhere");
  fs::create_directory_symlink("elsewhere", work_);
  EXPECT_EQ(refusal(), ".work: is in the way: remove it first");
  fs::remove(work_);
  (void)root_.write(".work", "");
  EXPECT_EQ(refusal(), ".work: is in the way: remove it first");
}

// Root may write everywhere: it is somebody else here.
TEST_F(WorkDirectoryTest, FolderThatCannotBeWrittenIsSaid) {
  fs::permissions(root_.path(), fs::perms(0555));
  const uid_t user = geteuid();
  ASSERT_EQ(seteuid(user == 0 ? 65534 : user), 0);
  EXPECT_EQ(refusal(Errc::io), "out: cannot create its work directory: Permission denied");
  ASSERT_EQ(seteuid(user), 0);
  fs::permissions(root_.path(), fs::perms::owner_all);
}

TEST_F(WorkDirectoryTest, CheckCreatesNothingAndKeepsNoLock) {
  EXPECT_LT(check().get(), 0);
  EXPECT_TRUE(fs::is_empty(root_.path()));
  make()->keep();
  const Descriptor checked = check();
  EXPECT_GE(checked.get(), 0);
  EXPECT_GE(check().get(), 0);
  const auto work = make();  // while what was checked is still open
}

TEST_F(WorkDirectoryTest, MovesWithItsLock) {
  fs::create_directory(root_.path() / "inner");
  const auto work = make();
  ASSERT_TRUE(work->move(Descriptor(open((root_.path() / "inner").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
                         ".nibble", "out"));
  EXPECT_EQ(work->shown(), "out/.nibble");
  EXPECT_TRUE(fs::exists(root_.path() / "inner" / ".nibble"));
  EXPECT_TRUE(work->remove());
  EXPECT_TRUE(fs::is_empty(root_.path() / "inner"));
}

}  // namespace
}  // namespace nibble::work_directory_test
