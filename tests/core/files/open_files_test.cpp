#include "core/files/open_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/support/corrupt.hpp"

namespace nibble::open_files_test {
namespace {

using test::error_of;

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class Shards : public testing::Test {
 protected:
  void make(std::size_t count, OpenFiles& files) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::string name = fmt::format("f{}", i);
      dir.write(name, name);
      shards.emplace_back(directory.fd(), name, name, &files);
    }
  }
  [[nodiscard]] std::string read(std::size_t shard) const {
    std::string text(shards[shard].size(), '\0');
    shards[shard].read(0, std::as_writable_bytes(std::span(text)));
    return text;
  }

  test::TempDir dir;
  Directory directory{dir.path()};
  std::vector<InputFile> shards;
};

TEST_F(Shards, OnlySomeAreOpenAndAllAreRead) {
  const std::size_t before = open_descriptors();
  OpenFiles files(3);
  make(10, files);
  EXPECT_EQ(open_descriptors(), before + 3);
  for (int round = 0; round < 2; ++round)
    for (std::size_t i = 0; i < shards.size(); ++i) EXPECT_EQ(read(i), fmt::format("f{}", i));
  EXPECT_EQ(open_descriptors(), before + 3);
  for (const InputFile& shard : shards) shard.check_unchanged();
}

TEST_F(Shards, TheOneUsedLeastRecentlyIsClosed) {
  OpenFiles files(2);
  make(2, files);
  EXPECT_EQ(read(0), "f0");
  make(1, files);  // closes the second
  std::filesystem::remove(dir.path() / "f0");
  std::filesystem::remove(dir.path() / "f1");
  EXPECT_EQ(read(0), "f0");
  EXPECT_EQ(error_of([&] { (void)read(1); }, Errc::input_changed), "f1: no longer exists: No such file or directory");
}

TEST_F(Shards, OneThatIsOpenedAgainHasToBeTheSame) {
  OpenFiles files(1);
  make(2, files);
  dir.write("f0", "g0");
  const timespec times[2] = {{0, UTIME_OMIT}, {1, 1}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (dir.path() / "f0").c_str(), times, 0), 0);
  EXPECT_EQ(error_of([&] { (void)read(0); }, Errc::input_changed), "f0: changed while it was read");
  EXPECT_EQ(error_of([&] { shards[0].check_unchanged(); }, Errc::input_changed), "f0: changed while it was read");
  EXPECT_EQ(read(1), "f1");
}

TEST_F(Shards, WhatIsInUseStaysOpen) {
  OpenFiles files(1);
  const auto never = []() -> Descriptor { throw std::logic_error("opened again"); };
  const std::string path = dir.write("x", "x");
  const std::size_t first = files.add(Descriptor(::open(path.c_str(), O_RDONLY)));
  const OpenFiles::Use use = files.use(first, never);
  const std::size_t second = files.add(Descriptor(::open(path.c_str(), O_RDONLY)));
  {
    const OpenFiles::Use other = files.use(second, never);
    EXPECT_NE(::fcntl(use.fd(), F_GETFD), -1);
    EXPECT_NE(::fcntl(other.fd(), F_GETFD), -1);
  }
  const std::size_t third = files.add(Descriptor(::open(path.c_str(), O_RDONLY)));  // closes the second
  EXPECT_THROW((void)files.use(second, never), std::logic_error);
  EXPECT_EQ(files.use(first, never).fd(), use.fd());
  (void)third;
}

TEST_F(Shards, AreReadByManyThreads) {
  OpenFiles files(2);
  make(20, files);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (std::size_t t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 400; ++i) wrong += read((7 * i + t) % 20) != fmt::format("f{}", (7 * i + t) % 20);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Shards, LeaveRoomForAllElse) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto max_open = [&](rlim_t allowed) {
    shards.clear();
    const rlimit limited{allowed, before.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limited), 0);
    OpenFiles files;
    ::setrlimit(RLIMIT_NOFILE, &before);
    const std::size_t others = open_descriptors();
    make(70, files);
    return open_descriptors() - others;
  };
  EXPECT_EQ(max_open(512), 32U);
  EXPECT_EQ(max_open(32), 4U);
  EXPECT_EQ(max_open(std::min<rlim_t>(before.rlim_max, 4096)), 64U);
}

}  // namespace
}  // namespace nibble::open_files_test
