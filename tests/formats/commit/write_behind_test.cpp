#include "formats/commit/write_behind.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/corrupt.hpp"

namespace nibble::write_behind_test {
namespace {

using test::error_of;

struct Range {
  std::uint64_t offset = 0;
  std::size_t size = 0;
};

// A file in a directory, and what it has to hold: bytes that say where they are.
class WriteBehindTest : public testing::Test {
 protected:
  static std::byte byte_at(std::uint64_t offset) { return static_cast<std::byte>(offset * 0x9E3779B97F4A7C15u >> 56); }

  void hand_over(WriteBehind& behind, const Range& range) {
    Buffers::Loan loan = buffers_.lend(range.size, range.offset, behind.way());
    for (std::size_t i = 0; i < range.size; ++i) loan.bytes()[i] = byte_at(range.offset + i);
    behind.write(range.offset, std::move(loan));
  }

  // What is read next comes from the disk, not from the page cache.
  static void drop_from_cache(const std::filesystem::path& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  }

  // Bytes that went another way than they should, in the file of that size.
  std::uint64_t wrong_after(const std::filesystem::path& directory, const std::vector<Range>& ranges) {
    std::uint64_t size = 0;
    for (const Range& range : ranges) size = std::max(size, range.offset + range.size);
    std::filesystem::remove(directory / "f");
    {
      const Directory opened(directory);
      OutputFile file(opened.fd(), "f", "f");
      file.reserve(size);
      WriteBehind behind(file, opened.fd(), "f", 3);
      for (const Range& range : ranges) hand_over(behind, range);
      behind.drain();
      file.flush();
      file.close();
      drop_from_cache(directory / "f");
    }
    const std::string text = test::read_file(directory / "f");
    EXPECT_EQ(text.size(), size);
    std::vector<bool> covered(size);
    for (const Range& range : ranges)
      std::fill_n(covered.begin() + static_cast<std::ptrdiff_t>(range.offset), range.size, true);
    std::uint64_t wrong = 0;
    for (std::uint64_t i = 0; i < text.size(); ++i)
      wrong += static_cast<std::byte>(text[i]) != (covered[i] ? byte_at(i) : std::byte{});
    return wrong;
  }

  test::TempDir dir_;
  Buffers buffers_;
};

TEST_F(WriteBehindTest, AnySequenceOfRanges) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<Range> ranges;
    std::uint64_t offset = random() % 10'000;
    const std::size_t chunk = round % 3 == 0 ? 64 << 10 : round % 3 == 1 ? 256 << 10 : 300'001;
    for (int i = 0; i < 12; ++i) {
      const std::size_t size = random() % 4 == 0 ? random() % 9000 : chunk + random() % 3 * (random() % 5000);
      ranges.push_back({offset, size});
      offset += size;
      if (random() % 4 == 0) offset += random() % 5000;  // another part lies between
    }
    if (round % 5 == 4) std::shuffle(ranges.begin(), ranges.end(), random);
    EXPECT_EQ(wrong_after(dir_.path(), ranges), 0u) << "round " << round;
    if (std::filesystem::is_directory("/dev/shm")) {
      const test::TempDir memory("/dev/shm");
      EXPECT_EQ(wrong_after(memory.path(), ranges), 0u) << "round " << round << " in memory";
    }
  }
}

// Two parts that share a page, handed over piece by piece in turns, and a part between them that goes the usual way.
TEST_F(WriteBehindTest, PagesAreShared) {
  const Directory opened(dir_.path());
  OutputFile file(opened.fd(), "f", "f");
  constexpr std::uint64_t piece = 200'000, second = 8 * piece + 100;
  file.reserve(second + 8 * piece);
  WriteBehind behind(file, opened.fd(), "f", 8);
  for (std::uint64_t i = 0; i < 8; ++i) {
    hand_over(behind, {i * piece, piece});
    hand_over(behind, {second + i * piece, piece});
  }
  const std::vector<std::byte> between(100, std::byte{1});
  file.write_at(8 * piece, between);
  behind.drain();
  const std::string text = test::read_file(dir_.path() / "f");
  for (std::uint64_t i = 0; i < text.size(); ++i)
    ASSERT_EQ(static_cast<std::byte>(text[i]), i / 100 == 8 * piece / 100 ? std::byte{1} : byte_at(i)) << i;
}

// Files may not grow beyond a size, which is found only by the thread that writes.
class LimitedFiles {
 public:
  explicit LimitedFiles(rlim_t bytes) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const ::rlimit limit{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  LimitedFiles(const LimitedFiles&) = delete;
  LimitedFiles& operator=(const LimitedFiles&) = delete;
  ~LimitedFiles() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  ::rlimit before_{};
  void (*handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

TEST_F(WriteBehindTest, FailuresComeWithALaterCall) {
  const Directory opened(dir_.path());
  OutputFile file(opened.fd(), "f", "f");
  const LimitedFiles limit(1 << 20);
  EXPECT_EQ(error_of([&] {
              WriteBehind behind(file, opened.fd(), "f", 2);
              for (std::uint64_t i = 0; i < 64; ++i) hand_over(behind, {i << 18, 1 << 18});
            }),
            "code 4: f: cannot write: File too large");
}

// Of the last writes nobody but drain() can tell.
TEST_F(WriteBehindTest, FailuresOfTheLastWritesComeAtTheEnd) {
  const Directory opened(dir_.path());
  OutputFile file(opened.fd(), "f", "f");
  const LimitedFiles limit(1 << 20);
  WriteBehind behind(file, opened.fd(), "f", 8);
  for (std::uint64_t i = 0; i < 5; ++i) hand_over(behind, {i << 18, 1 << 18});
  EXPECT_EQ(error_of([&] { behind.drain(); }), "code 4: f: cannot write: File too large");
}

// The system cuts a write short at the limit, in the middle of a buffer and of a page.
TEST_F(WriteBehindTest, ShortWritesGoOnWhereTheyEnded) {
  const Directory opened(dir_.path());
  OutputFile file(opened.fd(), "f", "f");
  constexpr std::uint64_t max_bytes = 300 * 4096 + 512;
  const LimitedFiles limit(max_bytes);
  WriteBehind behind(file, opened.fd(), "f", 8);
  hand_over(behind, {0, 400 * 4096});
  EXPECT_EQ(error_of([&] { behind.drain(); }), "code 4: f: cannot write: File too large");
  const std::string text = test::read_file(dir_.path() / "f");
  ASSERT_GE(text.size(), 300u * 4096);
  for (std::uint64_t i = 0; i < text.size(); ++i) ASSERT_EQ(static_cast<std::byte>(text[i]), byte_at(i)) << i;
}

// What the disk cannot take as it is goes through the page cache: here, memory off by one.
TEST_F(WriteBehindTest, WhatTheDiskRefusesIsWrittenAllTheSame) {
  const Directory opened(dir_.path());
  OutputFile file(opened.fd(), "f", "f");
  const Descriptor direct = file.open_direct(opened.fd(), "f");
  if (direct.get() < 0) GTEST_SKIP() << "the file system has no way past the page cache";
  const Buffers::Loan loan = buffers_.lend(1 << 18, 1, Buffers::Way::direct);
  for (std::size_t i = 0; i < loan.bytes().size(); ++i) loan.bytes()[i] = byte_at(i);
  file.write_direct(direct.get(), 0, loan.bytes());
  const std::string text = test::read_file(dir_.path() / "f");
  ASSERT_EQ(text.size(), loan.bytes().size());
  for (std::uint64_t i = 0; i < text.size(); ++i) ASSERT_EQ(static_cast<std::byte>(text[i]), byte_at(i)) << i;
}

// After drain() every byte is in the file and every buffer is back; before it no more than `max_buffers` are away.
TEST_F(WriteBehindTest, KeepsNoMoreThanItMay) {
  const Directory opened(dir_.path());
  OutputFile file(opened.fd(), "f", "f");
  file.reserve(64 << 18);
  constexpr std::size_t max_buffers = 3;
  std::set<const std::byte*> buffers;
  WriteBehind behind(file, opened.fd(), "f", max_buffers);
  for (std::uint64_t i = 0; i < 64; ++i) {
    Buffers::Loan loan = buffers_.lend(1 << 18, i << 18, behind.way());
    buffers.insert(loan.bytes().data());
    behind.write(i << 18, std::move(loan));
  }
  behind.drain();
  EXPECT_LE(buffers.size(), max_buffers + 1);
  std::vector<Buffers::Loan> again;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    again.push_back(buffers_.lend(1 << 18, 0, behind.way()));
    EXPECT_TRUE(buffers.contains(again.back().bytes().data()));
  }
}

// A buffer that lies elsewhere than its bytes in the file.
TEST_F(WriteBehindTest, AnyBufferIsTaken) {
  const Directory opened(dir_.path());
  OutputFile file(opened.fd(), "f", "f");
  WriteBehind behind(file, opened.fd(), "f", 8);
  hand_over(behind, {0, (1 << 18) + 100});
  constexpr std::uint64_t second = (1 << 18) + 100;
  Buffers::Loan loan = buffers_.lend(1 << 18, 0, Buffers::Way::direct);
  for (std::size_t i = 0; i < loan.bytes().size(); ++i) loan.bytes()[i] = byte_at(second + i);
  behind.write(second, std::move(loan));
  behind.drain();
  const std::string text = test::read_file(dir_.path() / "f");
  for (std::uint64_t i = 0; i < text.size(); ++i) ASSERT_EQ(static_cast<std::byte>(text[i]), byte_at(i)) << i;
}

// Buffers come back, whether their bytes were written or not, and nothing waits for ever.
TEST_F(WriteBehindTest, MayBeGivenUp) {
  const Directory opened(dir_.path());
  OutputFile file(opened.fd(), "f", "f");
  file.reserve(16 << 20);
  for (int round = 0; round < 20; ++round) {
    WriteBehind behind(file, opened.fd(), "f", 8);
    for (std::uint64_t i = 0; i < 6; ++i) hand_over(behind, {i << 20, 1 << 20});
  }
}

// A file that has replaced the one that is written is not touched.
TEST_F(WriteBehindTest, OnlyTheFileItselfIsOpenedAgain) {
  const Directory opened(dir_.path());
  const OutputFile file(opened.fd(), "f", "f");
  std::filesystem::rename(dir_.path() / "f", dir_.path() / "g");
  EXPECT_LT(file.open_direct(opened.fd(), "f").get(), 0);
  dir_.write("f", "another");
  EXPECT_LT(file.open_direct(opened.fd(), "f").get(), 0);
  std::filesystem::remove(dir_.path() / "f");
  std::filesystem::create_symlink("g", dir_.path() / "f");
  EXPECT_LT(file.open_direct(opened.fd(), "f").get(), 0);
}

}  // namespace
}  // namespace nibble::write_behind_test
