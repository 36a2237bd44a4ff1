// That a Scratch in a file leaves nothing, and says what went wrong. What all of them owe is in scratch_test.cpp.

#include "core/files/file_scratch.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "core/files/file.hpp"
#include "nibble/error.hpp"
#include "tests/core/memory/scratch_support.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::scratch_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;

class FileScratch : public testing::Test {
 protected:
  static std::size_t entries(const fs::path& directory) {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
  }
  test::TempDir directory_;
};

// What a killed run leaves behind is gone.
TEST_F(FileScratch, HasNoName) {
  const auto one = make_file_scratch(directory_.path()), other = make_file_scratch(directory_.path());
  one->write(0, pattern(100, 1));
  other->write(0, pattern(100, 2));
  EXPECT_EQ(entries(directory_.path()), 0U);
  EXPECT_EQ(read(*one, 0, 100), pattern(100, 1));
  EXPECT_EQ(read(*other, 0, 100), pattern(100, 2));
}

TEST_F(FileScratch, OutlivesItsDirectory) {
  const fs::path inside = directory_.path() / "inside";
  fs::create_directory(inside);
  const auto scratch = make_file_scratch(inside);
  fs::remove(inside);
  scratch->write(0, pattern(100, 1));
  EXPECT_EQ(read(*scratch, 0, 100), pattern(100, 1));
}

TEST_F(FileScratch, HoldsMoreThanMemory) {
  const auto scratch = make_file_scratch(directory_.path());
  scratch->write(5'000'000'000, pattern(1000, 1));
  scratch->write(0, pattern(1000, 2));
  EXPECT_EQ(read(*scratch, 5'000'000'000, 1000), pattern(1000, 1));
  EXPECT_EQ(read(*scratch, 0, 1000), pattern(1000, 2));
}

// Where there is room for it, as its caller knows.
TEST_F(FileScratch, LiesInItsDirectory) {
  if (!fs::exists("/proc/self/fd")) GTEST_SKIP() << "no Linux";
  const auto scratch = make_file_scratch(directory_.path());
  const std::string inside = fs::canonical(directory_.path()).string() + '/';
  std::size_t found = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone).string().starts_with(inside)) ++found;
  }
  EXPECT_EQ(found, 1U);
}

// What is written in part is no success. In a process of its own, which may write no more than a part.
TEST_F(FileScratch, BytesThatDoNotFitAreAnError) {
  const auto scratch = make_file_scratch(directory_.path());
  const Bytes bytes = pattern(300'000, 1);
  EXPECT_EXIT(
      {
        std::signal(SIGXFSZ, SIG_IGN);
        rlimit limit{};
        limit.rlim_cur = limit.rlim_max = 100'000;
        setrlimit(RLIMIT_FSIZE, &limit);
        const std::string error = error_of([&] { scratch->write(10'000, bytes); }, Errc::io);
        std::fputs(error.c_str(), stderr);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "cannot write a temporary file: File too large");
}

// By the text that the caller gave, and not by a name that nobody knows.
TEST_F(FileScratch, ErrorsAreAboutTheLabel) {
  const Directory opened(directory_.path());
  const auto scratch = make_file_scratch(opened.fd(), "the output");
  Bytes bytes(10);
  scratch->write(0, bytes);
  EXPECT_EQ(error_of([&] { scratch->read(1, bytes); }, Errc::io),
            "the output: cannot read a temporary file: Input/output error");
  EXPECT_EQ(error_of([&] { scratch->write(std::uint64_t{1} << 63, bytes); }, Errc::io),
            "the output: cannot write a temporary file: Invalid argument");

  const fs::path inside = directory_.path() / "inside";
  fs::create_directory(inside);
  const Directory removed(inside);
  fs::remove(inside);
  EXPECT_EQ(error_of([&] { (void)make_file_scratch(removed.fd(), "the output"); }, Errc::io),
            "the output: cannot create a temporary file: No such file or directory");
}

TEST_F(FileScratch, DirectoryThatIsNoneIsNamed) {
  const fs::path file = directory_.write("f\nile", "x");
  for (const fs::path& path : {file, directory_.path() / "f\nowhere"})
    EXPECT_THAT(error_of([&] { (void)make_file_scratch(path); }), testing::HasSubstr("f\\n")) << path;
}

}  // namespace
}  // namespace nibble::scratch_test
