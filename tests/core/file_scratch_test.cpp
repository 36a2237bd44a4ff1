// What every Scratch owes its users, and that one in a file leaves nothing.

#include "core/file_scratch.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "core/file.hpp"
#include "nibble/error.hpp"
#include "tests/support/corrupt.hpp"

namespace nibble::scratch_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  return bytes;
}

Bytes read(const Scratch& scratch, std::uint64_t offset, std::size_t size) {
  Bytes bytes(size);
  scratch.read(offset, bytes);
  return bytes;
}

constexpr std::size_t size = 5 << 20;  // more than a huge page, and no multiple of one

class ScratchContract : public testing::TestWithParam<std::string> {
 protected:
  ScratchContract() {
    if (GetParam() == "memory")
      scratch_ = std::make_unique<MemoryScratch>(size);
    else
      scratch_ = make_file_scratch(directory_.path());
  }

  test::TempDir directory_;
  std::unique_ptr<Scratch> scratch_;
};

// A tensor whose last part is empty asks for it at the end.
TEST(MemoryScratch, EmptyRangesAreEmptySpans) {
  MemoryScratch scratch(100);
  Bytes room;
  for (const std::uint64_t offset : {std::uint64_t{100}, std::uint64_t{1} << 40}) {
    EXPECT_EQ(scratch.lend(offset, 0, room).data(), nullptr);
    EXPECT_EQ(scratch.view(offset, 0, room).data(), nullptr);
  }
  EXPECT_EQ(scratch.lend(99, 1, room).data(), scratch.lend(0, 100, room).data() + 99);
}

TEST_P(ScratchContract, GivesBackWhatWasWritten) {
  const Bytes all = pattern(size, 1), some = pattern(4097, 2);
  scratch_->write(0, all);
  EXPECT_EQ(read(*scratch_, 0, size), all);
  scratch_->write(4095, some);
  scratch_->write(size - 1, std::span(some).first(1));
  Bytes expected = all;
  std::copy(some.begin(), some.end(), expected.begin() + 4095);
  expected.back() = some.front();
  EXPECT_EQ(read(*scratch_, 0, size), expected);
  EXPECT_EQ(read(*scratch_, 4000, 5000), Bytes(expected.begin() + 4000, expected.begin() + 9000));
}

TEST_P(ScratchContract, RangesMayBeWrittenInAnyOrder) {
  const Bytes back = pattern(1000, 1), front = pattern(1000, 2);
  scratch_->write(size - 1000, back);
  scratch_->write(0, front);
  EXPECT_EQ(read(*scratch_, size - 1000, 1000), back);
  EXPECT_EQ(read(*scratch_, 0, 1000), front);
}

TEST_P(ScratchContract, NoBytesAreNoTrouble) {
  scratch_->write(0, {});
  scratch_->write(size, {});
  scratch_->read(size, {});
  Bytes room;
  EXPECT_TRUE(scratch_->view(size, 0, room).empty());
}

TEST_P(ScratchContract, ViewsAreTheBytes) {
  const Bytes all = pattern(10'000, 3);
  scratch_->write(0, all);
  Bytes room, other;
  const auto first = scratch_->view(1, 5000, room);
  const auto second = scratch_->view(4000, 6000, other);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), all.begin() + 1, all.begin() + 5001));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), all.begin() + 4000, all.end()));
}

TEST_P(ScratchContract, WhatWasLentIsWritten) {
  const Bytes all = pattern(10'000, 5), some = pattern(1000, 6);
  scratch_->write(0, all);
  Bytes room;
  const auto lent = scratch_->lend(4000, some.size(), room);
  std::copy(some.begin(), some.end(), lent.begin());
  scratch_->write(4000, lent);
  Bytes expected = all;
  std::copy(some.begin(), some.end(), expected.begin() + 4000);
  EXPECT_EQ(read(*scratch_, 0, all.size()), expected);
  EXPECT_TRUE(scratch_->lend(0, 0, room).empty());
}

// Threads take turns in pieces that share pages.
TEST_P(ScratchContract, DisjointRangesAreWrittenConcurrently) {
  constexpr std::size_t piece = 1000, threads = 4;
  const Bytes all = pattern(size / piece * piece, 4);
  std::vector<std::thread> writers;
  for (std::size_t t = 0; t < threads; ++t)
    writers.emplace_back([&, t] {
      for (std::size_t at = t * piece; at < all.size(); at += threads * piece)
        scratch_->write(at, std::span(all).subspan(at, piece));
    });
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(read(*scratch_, 0, all.size()), all);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ScratchContract, testing::Values("memory", "file"),
                         [](const auto& each) { return each.param; });

TEST(MemoryScratch, IsViewedWhereItIs) {
  MemoryScratch scratch(100);
  scratch.write(0, pattern(100, 1));
  Bytes room;
  const auto one = scratch.view(10, 20, room);
  EXPECT_TRUE(room.empty());
  EXPECT_EQ(scratch.view(0, 100, room).data() + 10, one.data());
  EXPECT_EQ(scratch.lend(10, 20, room).data(), one.data());
}

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
